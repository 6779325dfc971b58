# SPDX-License-Identifier: Apache-2.0
"""The same flows on SimGrid and on ns.py, where they are installed, and on the fluid engine.

The network is a star: hosts on one switch, 400 Gbit/s and 1 us a cable, no headers, no latency
but that of the cables.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from fluid import Bed
from scale_cases import RATE_BPS, Arrivals, Found, Sizes, Timer, errors, send

import railweave
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["nspy", "nspy_times", "simgrid", "simgrid_times", "star"]

CABLE_S = 1e-6
HEADER_BYTES = 128  # what a switch of ours that cuts through receives before it sends on
PACKET_BYTES = 4096
LOAD = 0.6


def star(hosts: int, *, cut_through: bool) -> Bed:
    """Build hosts on one switch.

    With ``cut_through`` cables are shorter by what the switch waits for, so that a message takes
    2 us and its bytes, as on a network of links alone.
    """
    waiting_s = HEADER_BYTES * 8 / RATE_BPS if cut_through else 0.0
    delay_ps = round((CABLE_S - waiting_s / 2) * 1e12)
    build = FabricBuilder("star")
    switch = build.add_device("s0", DeviceKind.SWITCH, tier=1)
    for number in range(hosts):
        name = f"h{number}"
        nic = build.add_device(name, DeviceKind.NIC, host=build.add_host(name))
        build.add_cable(
            nic, switch, rate_bps=int(RATE_BPS), delay_ps=delay_ps,
            model=LinkModel.ROCE_LOSSLESS,
        )  # fmt: skip
    settings = railweave.NetworkSettings(
        mtu_bytes=PACKET_BYTES, cut_through=cut_through, switch_latency_ps=0, host_latency_ps=0,
        ack_every=0, frame_overhead_bytes=0,
    )  # fmt: skip
    fabric = build.finish()
    return Bed(fabric, railweave.Routing(fabric), settings)


def _beside(
    name: str,
    peer: Callable[[Arrivals, int, Found], NDArray[np.float64]],
    arrivals: Arrivals,
    hosts: int,
    *,
    cut_through: bool,
) -> Found:
    """Time flows on a peer and on the fluid engine, and compare their completion times."""
    if find_spec(name) is None:
        return Found(said="not installed")
    bed, ours, theirs = star(hosts, cut_through=cut_through), Found(), Found()
    times = send(bed, arrivals, bed.fabric.nics, ours)
    others = peer(arrivals, hosts, theirs)
    return Found(
        {"ours": ours.seconds["run"], "peer": theirs.seconds["run"]}, errors(times, others)
    )


# ---------------------------------------------------------------------- SimGrid
def simgrid(sizes: Sizes) -> Found:
    """Time flows on SimGrid's network model CM02, driven from Python."""
    arrivals = Arrivals.poisson(sizes.first, hosts=sizes.star, load=LOAD)
    return _beside("simgrid", simgrid_times, arrivals, sizes.star, cut_through=True)


def simgrid_times(arrivals: Arrivals, hosts: int, found: Found) -> NDArray[np.float64]:
    """Return the completion time of each flow on SimGrid 3 in ps; building is not timed.

    One actor starts all flows at their times (``Comm.sendto_async``), so that SimGrid need not
    switch between actors. CM02 as its authors call it: no slow start, no cross traffic.
    """
    import simgrid as sg

    engine = sg.Engine(
        [
            "railweave", "--log=root.thresh:error", "--cfg=network/model:CM02",
            "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0",
        ]
    )  # fmt: skip
    zone = sg.NetZone.create_star_zone("star")
    seats = []
    for number in range(hosts):
        seat = zone.create_host(f"h{number}", 1e9)
        cable = zone.create_split_duplex_link(f"c{number}", RATE_BPS / 8)
        for half in (cable.link_up, cable.link_down):
            half.set_latency(CABLE_S)
        cable.seal()
        seat.seal()
        route = [sg.LinkInRoute(cable, sg.LinkInRoute.UP)]
        zone.add_route(seat.netpoint, None, None, None, route, True)
        seats.append(seat)
    zone.seal()
    messages: list[Any] = []

    def start_all() -> None:
        columns = (arrivals.src, arrivals.dst, arrivals.size_bytes, arrivals.start_ps)
        for src, dst, size, start in zip(*(column.tolist() for column in columns), strict=True):
            if start / 1e12 > sg.Engine.clock:
                sg.this_actor.sleep_until(start / 1e12)
            messages.append(sg.Comm.sendto_async(seats[src], seats[dst], size))
        for message in messages:
            message.wait()

    sg.Actor.create("sender", seats[0], start_all)
    with Timer(found, "run"):
        engine.run()
    return np.array([(one.finish_time - one.start_time) * 1e12 for one in messages])


# ---------------------------------------------------------------------- ns.py
def nspy(sizes: Sizes) -> Found:
    """Time flows on ns.py, which moves packets: the first few of those for SimGrid."""
    arrivals = Arrivals.poisson(sizes.first, hosts=sizes.star, load=LOAD)
    return _beside(
        "ns", nspy_times, arrivals.first(sizes.packet_flows), sizes.star, cut_through=False
    )


def nspy_times(arrivals: Arrivals, hosts: int, found: Found) -> NDArray[np.float64]:
    """Return the completion time of each flow on ns.py in ps; building is not timed.

    A host serves its flows in turn (deficit round robin), the switch each cable in order of
    arrival. Only the ports in use are built.
    """
    import simpy
    from ns.demux.fib_demux import FIBDemux
    from ns.packet.packet import Packet
    from ns.port.port import Port
    from ns.port.wire import Wire
    from ns.scheduler.drr import DRRServer

    env = simpy.Environment()
    done_s = np.zeros(len(arrivals))

    class Sink:
        def put(self, packet: Any) -> None:
            done_s[packet.flow_id] = env.now

    def cable(out: Any) -> Any:
        wire = Wire(env, lambda: CABLE_S)
        wire.out = out
        return wire

    sink = Sink()
    outs = {}
    for host in np.unique(arrivals.dst).tolist():
        outs[host] = Port(env, RATE_BPS)
        outs[host].out = cable(sink)
    switch = FIBDemux(fib=dict(enumerate(arrivals.dst.tolist())), outs=outs)
    nics = {}
    for host in np.unique(arrivals.src).tolist():
        weights = dict.fromkeys(np.flatnonzero(arrivals.src == host).tolist(), 1)
        nics[host] = DRRServer(env, RATE_BPS, weights)
        nics[host].out = cable(switch)

    def start_all() -> Iterator[Any]:
        columns = (arrivals.src, arrivals.size_bytes, arrivals.start_ps)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for flow, (src, size, start) in enumerate(rows):
            yield env.timeout(max(start / 1e12 - env.now, 0.0))
            for number, first in enumerate(range(0, size, PACKET_BYTES)):
                length = min(PACKET_BYTES, size - first)
                nics[src].put(Packet(env.now, length, number, flow_id=flow))

    env.process(start_all())
    with Timer(found, "run"):
        env.run()
    return done_s * 1e12 - arrivals.start_ps
