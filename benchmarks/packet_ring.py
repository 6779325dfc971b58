# SPDX-License-Identifier: Apache-2.0
"""What elision and quantum save: a ring all_reduce over the hosts of a fat tree, to its end.

``python benchmarks/packet_ring.py`` runs it in the order of hosts with elision and at random with
quantum 16; with ``--exact`` once more packet by packet, which takes minutes each.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from typing import Any

from measure import cpu_of, machine
from packet import fat_tree

from railweave.collectives.planner import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

__all__ = ["Outcome", "main", "run_ring"]

#: Buffers that never fill, no marks, no rate control: nothing holds a sender back.
FREE: dict[str, Any] = {"cc": None, "ecn": False, "buffer_bytes": 10**12}


@dataclass(frozen=True)
class Outcome:
    """CPU seconds, end in ps, packet-hops, and the shares elided and sent in trains."""

    seconds: float
    end_ps: int
    hops: int
    elided: float
    trains: float


def run_ring(*, k: int, size: int, shuffled: bool, repeats: int = 1, **packet: Any) -> Outcome:
    """Run a ring all_reduce over the hosts of a fat tree of k-port switches, ACKs off."""
    fabric = fat_tree(k)
    hosts = [int(nic) for nic in fabric.nics]
    if shuffled:
        random.Random(1).shuffle(hosts)
    settings = PacketSettings(**({"cc": cc_profile("scaled")} | packet))
    network = NetworkSettings(ack_every=0, host_latency_ps=0)
    engines: list[PacketEngine] = []

    def run(_: object) -> None:
        schedule = plan("all_reduce", algorithm="ring", ranks=len(hosts), size_bytes=size)
        engine = PacketEngine(
            FabricEnvironment(), fabric, Routing(fabric), network, packet=settings
        )
        engine.execute(schedule, hosts)
        engine.env.run()
        engines.append(engine)

    cpu = cpu_of(run, repeats=repeats)
    state = engines[-1].state.run
    return Outcome(
        cpu.median, engines[-1].collectives()[0].end_ps, int(state.hops),
        int(state.elided_hops) / int(state.hops), int(state.train_hops) / int(state.hops),
    )  # fmt: skip


def _told(name: str, found: Outcome) -> None:
    print(
        f"{name:<46}{found.seconds:9.2f}{found.end_ps / 1e9:12.6f}{found.hops / 1e6:10.1f}"
        f"{100 * found.elided:9.1f}{100 * found.trains:9.1f}"
    )


def main(*, k: int = 16, size: int = 2**30, exact: bool = False, repeats: int = 3) -> None:
    """Print the table."""
    print(machine())
    run_ring(k=4, size=2**16, shuffled=False)  # compiles or loads the kernel
    print(f"{'':46}{'CPU s':>9}{'end ms':>12}{'Mhops':>10}{'elided %':>9}{'trains %':>9}")
    elided = run_ring(k=k, size=size, shuffled=False, repeats=repeats)
    _told("rank order, pauses, ECN, DCQCN", elided)
    free = run_ring(k=k, size=size, shuffled=True, quantum=16, **FREE)
    _told("at random, buffers without end, quantum 16", free)
    print(f"at most 1 s: {'ok' if elided.seconds <= 1 else 'MISSED'}")
    print(f"at most 10 s: {'ok' if free.seconds <= 10 else 'MISSED'}")
    if exact:
        each = run_ring(k=k, size=size, shuffled=False, elide=False)
        _told("rank order, packet by packet", each)
        print(f"equal to the picosecond: {'ok' if each.end_ps == elided.end_ps else 'MISSED'}")
        each = run_ring(k=k, size=size, shuffled=True, **FREE)
        _told("at random, packet by packet", each)
        error = abs(free.end_ps / each.end_ps - 1)
        print(f"error of quantum 16: {100 * error:.3f} %: {'ok' if error <= 0.01 else 'MISSED'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A ring all_reduce with elision and with quantum")
    parser.add_argument("--exact", action="store_true", help="compare with every packet")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    main(exact=given.exact, repeats=given.repeats)
