# SPDX-License-Identifier: Apache-2.0
"""The same packets on ns.py, where it is installed: packet-hops per CPU second of a peer.

ns.py moves each packet as a Python object through SimPy processes. As driven here it has ports with
a rate, cables with a delay and forwarding tables, and nothing else: no headers, pauses, marks or
rate control, so it does less for each hop than the packet engine does.
"""

from __future__ import annotations

from importlib.util import find_spec
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["nspy_hops"]

PACKET_BYTES = 4096


def nspy_hops(
    fabric: Fabric, pairs: Sequence[tuple[int, int]], size: int
) -> tuple[int, float] | None:
    """Send ``size`` bytes between each pair of hosts on ns.py.

    Returns
    -------
    tuple or None
        Packet-hops and the CPU seconds they took, building not counted; None: not installed.
    """
    if find_spec("ns") is None:
        return None
    import simpy
    from ns.demux.fib_demux import FIBDemux
    from ns.packet.packet import Packet
    from ns.port.port import Port
    from ns.port.wire import Wire

    env, arrived = simpy.Environment(), [0]

    class Sink:
        def put(self, packet: Any) -> None:
            arrived[0] += 1

    nics = fabric.nics
    src, dst = (np.array([nics[pair[end]] for pair in pairs]) for end in (0, 1))
    routes, sink = Routing(fabric).routes(src, dst), Sink()
    ports: dict[int, Any] = {}
    tables: dict[int, dict[int, int]] = {}  # device: flow: link
    for flow in range(len(pairs)):
        for link in routes.path(flow):
            if link not in ports:
                ports[link] = Port(env, float(fabric.link_rate_bps[link]))
            tables.setdefault(int(fabric.link_src[link]), {})[flow] = link
    nodes = {device: FIBDemux(fib=table, outs=ports) for device, table in tables.items()}
    for link, port in ports.items():
        delay_s = float(fabric.link_delay_ps[link]) * 1e-12
        port.out = Wire(env, lambda delay_s=delay_s: delay_s)
        to = int(fabric.link_dst[link])
        port.out.out = sink if to in nics else nodes[to]
    hops = packets = 0
    for flow, device in enumerate(src.tolist()):
        for number, first in enumerate(range(0, size, PACKET_BYTES)):
            length = min(PACKET_BYTES, size - first)
            nodes[device].put(Packet(0.0, length, number, flow_id=flow))
            hops += len(routes.path(flow))
            packets += 1
    started = process_time()
    env.run()
    seconds = process_time() - started
    assert arrived[0] == packets
    return hops, seconds
