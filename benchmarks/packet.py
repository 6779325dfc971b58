# SPDX-License-Identifier: Apache-2.0
"""How many packet-hops a CPU second the packet engine does.

``python benchmarks/packet.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

import argparse
import random
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

from measure import Cpu, cpu_of, machine, reference

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import ScheduleBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["Case", "Figures", "fat_tree", "leaf_spine", "main", "measure_case", "permutation"]

RATE_BPS = 400 * 10**9
DELAY_PS = 500_000


def _cabled(tiers: Sequence[tuple[str, int]], cables: Sequence[tuple[str, str]]) -> Fabric:
    """Build hosts and switches by name, tier by tier, and join them."""
    build = FabricBuilder("benchmark")
    number: dict[str, int] = {}
    for tier, (letter, count) in enumerate(tiers):
        for i in range(count):
            name = f"{letter}{i}"
            if tier == 0:
                number[name] = build.add_device(name, DeviceKind.NIC, host=build.add_host(name))
            else:
                number[name] = build.add_device(name, DeviceKind.SWITCH, tier=tier)
    for a, b in cables:
        build.add_cable(
            number[a], number[b], rate_bps=RATE_BPS, delay_ps=DELAY_PS,
            model=LinkModel.ROCE_LOSSLESS,
        )  # fmt: skip
    return build.finish()


def leaf_spine(hosts: int) -> Fabric:
    """Return a leaf-spine without oversubscription, 16 hosts a leaf (fewer where there are few)."""
    each = 16 if hosts % 16 == 0 else hosts // 2
    leaves = hosts // each
    cables = [(f"h{i}", f"l{i // each}") for i in range(hosts)]
    cables += [(f"l{i}", f"s{j}") for i in range(leaves) for j in range(each)]
    return _cabled([("h", hosts), ("l", leaves), ("s", each)], cables)


def fat_tree(k: int) -> Fabric:
    """Return a three-tier fat tree of k-port switches (k^3/4 hosts)."""
    half = k // 2
    cables = [(f"h{i}", f"l{i // half}") for i in range(k * half * half)]
    for pod in range(k):
        for i in range(half):
            cables += [(f"l{pod * half + i}", f"a{pod * half + j}") for j in range(half)]
            cables += [(f"a{pod * half + i}", f"c{i * half + j}") for j in range(half)]
    tiers = [("h", k * half * half), ("l", k * half), ("a", k * half), ("c", half * half)]
    return _cabled(tiers, cables)


def permutation(hosts: int, *, seed: int = 1) -> list[tuple[int, int]]:
    """Return a random derangement."""
    draw = random.Random(seed)
    while True:
        to = list(range(hosts))
        draw.shuffle(to)
        if all(a != b for a, b in enumerate(to)):
            return list(enumerate(to))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload on one fabric: pairs of hosts that each send ``size`` bytes at once."""

    name: str
    fabric: Callable[[], Fabric]
    pairs: Callable[[int], Sequence[tuple[int, int]]]
    size: int
    least_mhops: float
    most_events: float | None = None
    ack_every: int = 0
    packet: PacketSettings | None = None  # None: pauses, marks and DCQCN


@dataclass(frozen=True)
class Figures:
    """What a case took: CPU seconds, packet-hops, events."""

    cpu: Cpu
    hops: int
    events: int

    @property
    def mhops(self) -> float:
        """Million data packet-hops per CPU second."""
        return self.hops / self.cpu.median / 1e6


def measure_case(case: Case, *, repeats: int) -> Figures:
    """Run a case several times on fresh engines."""
    fabric = case.fabric()
    routing = Routing(fabric)
    hosts = [int(nic) for nic in fabric.nics]
    build = ScheduleBuilder(n_ranks=len(hosts))
    for src, dst in case.pairs(len(hosts)):
        build.transfer(src, dst, case.size)
    schedule = build.finish()
    packet = case.packet or PacketSettings(cc=cc_profile("scaled"))
    network = NetworkSettings(ack_every=case.ack_every, host_latency_ps=0)
    engines: list[PacketEngine] = []

    def fresh() -> PacketEngine:
        engine = PacketEngine(FabricEnvironment(), fabric, routing, network, packet=packet)
        engine.execute(schedule, hosts)
        return engine

    def run(engine: PacketEngine) -> None:
        engine.env.run()
        engines.append(engine)

    run(fresh())  # compiles or loads the kernel
    cpu = cpu_of(run, setup=fresh, repeats=repeats)
    state = engines[-1].state
    assert state.run.violations == 0
    return Figures(cpu, int(state.run.hops), int(state.run.events))


def all_pairs(hosts: int) -> list[tuple[int, int]]:
    """Return every ordered pair of hosts, in rounds."""
    return [(i, (i + shift) % hosts) for shift in range(1, hosts) for i in range(hosts)]


def cases(*, hosts: int, k: int, size: int) -> list[Case]:
    """Return the table's cases for a size of fabric."""

    def small() -> Fabric:
        return leaf_spine(hosts)

    def half() -> Fabric:
        return leaf_spine(max(hosts // 2, 4))

    def tree() -> Fabric:
        return fat_tree(k)

    lossy = {"cc": None, "pfc": False, "ecn": False}
    return [
        Case(name="permutation, leaf-spine", fabric=small, pairs=permutation, size=2 * size,
             least_mhops=10, most_events=1.6),
        Case(name="incast of half of them", fabric=small, size=size, least_mhops=10,
             pairs=lambda n: [(i, n - 1) for i in range(n // 2)], most_events=2.3),
        Case(name="ring step, fat tree", fabric=tree, size=size, least_mhops=10,
             pairs=lambda n: [(i, (i + 1) % n) for i in range(n)], most_events=1.6),
        Case(name="all-to-all of half of them", fabric=half, pairs=all_pairs, size=size,
             least_mhops=8, most_events=2.3),
        Case(name="permutation, fat tree", fabric=tree, pairs=permutation, size=2 * size,
             least_mhops=8, most_events=1.6),
        Case(name="permutation, leaf-spine, an ACK for 4 packets", fabric=small,
             pairs=permutation, size=2 * size, least_mhops=4, ack_every=4),
        Case(name="the same without pauses, go-back-N", fabric=small, pairs=permutation,
             size=2 * size, least_mhops=4, ack_every=4, packet=PacketSettings(**lossy)),
        Case(name="the same, selective repeat", fabric=small, pairs=permutation,
             size=2 * size, least_mhops=4, ack_every=4,
             packet=PacketSettings(**lossy, recovery="selective-repeat")),
    ]  # fmt: skip


def main(*, hosts: int = 128, k: int = 16, size: int = 1_000_000, repeats: int = 3) -> None:
    """Print the table."""
    print(machine())
    fixed = cpu_of(reference, repeats=repeats)
    print(f"a fixed loop of Python: {min(fixed.seconds):.3f} to {max(fixed.seconds):.3f} s\n")
    print(f"{'':52}{'Mhop/s':>8}{'s':>8}{'Mhops':>8}{'events/hop':>12}")
    for case in cases(hosts=hosts, k=k, size=size):
        found = measure_case(case, repeats=repeats)
        per_hop = found.events / found.hops
        ok = found.mhops >= case.least_mhops and (
            case.most_events is None or per_hop <= case.most_events
        )
        wanted = f"at least {case.least_mhops:g} M"
        if case.most_events is not None:
            wanted += f", at most {case.most_events:g} events"
        print(
            f"{case.name:<52}{found.mhops:8.2f}{found.cpu.median:8.3f}{found.hops / 1e6:8.2f}"
            f"{per_hop:12.2f}  {wanted}: {'ok' if ok else 'MISSED'}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nmost memory of the process: {peak:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Packet-hops per CPU second of the packet engine")
    parser.add_argument("--repeats", type=int, default=3)
    main(repeats=parser.parse_args().repeats)
