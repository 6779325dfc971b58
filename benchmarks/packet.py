# SPDX-License-Identifier: Apache-2.0
"""How many packet-hops a CPU second the packet engine does.

``python benchmarks/packet.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measure import cpu_of, machine, peak_mib, reference
from packet_peers import nspy_hops

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

__all__ = [
    "Case",
    "Figures",
    "Sizes",
    "cases",
    "fat_tree",
    "in_a_process",
    "leaf_spine",
    "main",
    "measure_case",
    "measure_once",
    "permutation",
]

RATE_BPS = 400 * 10**9
DELAY_PS = 500_000
TIMES_NSPY = 100
MOST_MIB = 300


def _cabled(
    tiers: Sequence[tuple[str, int]], cables: Sequence[tuple[str, str]], model: LinkModel
) -> Fabric:
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
        build.add_cable(number[a], number[b], rate_bps=RATE_BPS, delay_ps=DELAY_PS, model=model)
    return build.finish()


def leaf_spine(hosts: int, model: LinkModel = LinkModel.ROCE_LOSSLESS) -> Fabric:
    """Return a leaf-spine without oversubscription, 16 hosts a leaf (fewer where there are few)."""
    each = 16 if hosts % 16 == 0 else hosts // 2
    leaves = hosts // each
    cables = [(f"h{i}", f"l{i // each}") for i in range(hosts)]
    cables += [(f"l{i}", f"s{j}") for i in range(leaves) for j in range(each)]
    return _cabled([("h", hosts), ("l", leaves), ("s", each)], cables, model)


def fat_tree(k: int) -> Fabric:
    """Return a three-tier fat tree of k-port switches (k^3/4 hosts)."""
    half = k // 2
    cables = [(f"h{i}", f"l{i // half}") for i in range(k * half * half)]
    for pod in range(k):
        for i in range(half):
            cables += [(f"l{pod * half + i}", f"a{pod * half + j}") for j in range(half)]
            cables += [(f"a{pod * half + i}", f"c{i * half + j}") for j in range(half)]
    tiers = [("h", k * half * half), ("l", k * half), ("a", k * half), ("c", half * half)]
    return _cabled(tiers, cables, LinkModel.ROCE_LOSSLESS)


def permutation(hosts: int, *, seed: int = 1) -> list[tuple[int, int]]:
    """Return a random derangement."""
    draw = random.Random(seed)
    while True:
        to = list(range(hosts))
        draw.shuffle(to)
        if all(a != b for a, b in enumerate(to)):
            return list(enumerate(to))


@dataclass(frozen=True)
class Sizes:
    """How large everything is: hosts of the leaf-spine, ports of the fat trees, bytes."""

    hosts: int = 128
    k: int = 16
    large_k: int = 40
    size: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload on one fabric: pairs of hosts that each send ``size`` bytes at once."""

    name: str
    fabric: Callable[[], Fabric]
    pairs: Callable[[int], Sequence[tuple[int, int]]]
    size: int
    least_mhops: float
    most_events: float | None = None
    most_mib: int | None = None
    ack_every: int = 0
    packet: dict[str, Any] | None = None  # None: pauses, marks and DCQCN


@dataclass(frozen=True)
class Figures:
    """What a case took: CPU seconds of each run, packet-hops, events, memory of the process."""

    seconds: tuple[float, ...]
    hops: int
    events: int
    mib: float

    @property
    def mhops(self) -> float:
        """Million data packet-hops per CPU second."""
        return self.hops / median(self.seconds) / 1e6


def measure_case(case: Case, *, repeats: int) -> Figures:
    """Run a case several times on fresh engines, each packet by itself (no elision)."""
    fabric = case.fabric()
    spray = (case.packet or {}).get("spread") == "spray"
    routing = Routing(fabric, policy="spray" if spray else "ecmp")
    hosts = [int(nic) for nic in fabric.nics]
    build = ScheduleBuilder(n_ranks=len(hosts))
    for src, dst in case.pairs(len(hosts)):
        build.transfer(src, dst, case.size)
    schedule = build.finish()
    keys = {"cc": cc_profile("scaled")} if case.packet is None else case.packet
    packet = PacketSettings(elide=False, **keys)
    network = NetworkSettings(ack_every=case.ack_every, host_latency_ps=0)
    engines: list[PacketEngine] = []

    def fresh() -> PacketEngine:
        engine = PacketEngine(FabricEnvironment(), fabric, routing, network, packet=packet)
        engine.execute(schedule, hosts)
        engines[:] = [engine]
        return engine

    def run(engine: PacketEngine) -> None:
        engine.env.run()

    run(fresh())  # loads the kernel
    cpu = cpu_of(run, setup=fresh, repeats=repeats)
    state = engines[-1].state
    assert state.run.violations == 0
    return Figures(cpu.seconds, int(state.run.hops), int(state.run.events), peak_mib())


def all_pairs(hosts: int) -> list[tuple[int, int]]:
    """Return every ordered pair of hosts, in rounds."""
    return [(i, (i + shift) % hosts) for shift in range(1, hosts) for i in range(hosts)]


def ring(hosts: int) -> list[tuple[int, int]]:
    """Return one step of a ring in rank order."""
    return [(i, (i + 1) % hosts) for i in range(hosts)]


def cases(sizes: Sizes) -> list[Case]:
    """Return the table's cases."""
    hosts, size = sizes.hosts, sizes.size

    def small() -> Fabric:
        return leaf_spine(hosts)

    def half() -> Fabric:
        return leaf_spine(max(hosts // 2, 4))

    def tree() -> Fabric:
        return fat_tree(sizes.k)

    def large() -> Fabric:
        return fat_tree(sizes.large_k)

    def trimming() -> Fabric:
        return leaf_spine(hosts, LinkModel.TRIMMING)

    lossy = {"pfc": False, "ecn": False}
    spine = f"{hosts} hosts, leaf-spine"
    many = f"{sizes.k**3 // 4:,} hosts, fat tree"
    acks = {"least_mhops": 4, "ack_every": 4, "pairs": permutation, "size": 2 * size}
    return [
        Case(name=f"permutation, {spine}", fabric=small, pairs=permutation, size=2 * size,
             least_mhops=10, most_events=1.6),
        Case(name=f"incast from {hosts // 2}", fabric=small, size=size, least_mhops=10,
             pairs=lambda n: [(i, n - 1) for i in range(n // 2)], most_events=2.3),
        Case(name=f"ring step, {many}", fabric=tree, size=size, least_mhops=10, pairs=ring,
             most_events=1.6, most_mib=MOST_MIB),
        Case(name=f"all-to-all, {max(hosts // 2, 4)} hosts", fabric=half, pairs=all_pairs,
             size=size, least_mhops=8, most_events=2.3),
        Case(name=f"all-to-all, {hosts} hosts", fabric=small, pairs=all_pairs, size=size,
             least_mhops=8, most_events=2.3),
        Case(name=f"permutation, {many}", fabric=tree, pairs=permutation, size=2 * size,
             least_mhops=8, most_events=1.6, most_mib=MOST_MIB),
        Case(name=f"permutation, {sizes.large_k**3 // 4:,} hosts, fat tree", fabric=large,
             pairs=permutation, size=size, least_mhops=4, most_events=1.6),
        Case(name=f"permutation, {spine}, an ACK for 4 packets", fabric=small, **acks),
        Case(name="the same without pauses, go-back-N", fabric=small, packet=lossy, **acks),
        Case(name="the same, selective repeat", fabric=small,
             packet={**lossy, "recovery": "selective-repeat"}, **acks),
        Case(name="the same, trimming, spray, credit", fabric=trimming,
             packet={"pfc": False, "recovery": "trim", "spread": "spray"}, **acks),
    ]  # fmt: skip


# ---------------------------------------------------------------------- processes
def measure_once(number: int, repeats: int, sizes: Sizes) -> Figures:
    """Run a case of the table in this process."""
    return measure_case(cases(sizes)[number], repeats=repeats)


def in_a_process(number: int, repeats: int, sizes: Sizes) -> Figures:
    """Run a case in a process of its own, whose peak of memory is no other's."""
    what = json.dumps([number, repeats, asdict(sizes)])
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", what]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return Figures(tuple(found["seconds"]), found["hops"], found["events"], found["mib"])


# ---------------------------------------------------------------------- the table
def _verdict(case: Case, found: Figures) -> str:
    """Say what was wanted of a case, and whether it held."""
    wanted, ok = f"at least {case.least_mhops:g} M", found.mhops >= case.least_mhops
    if case.most_events is not None:
        wanted += f", at most {case.most_events:g} events"
        ok = ok and found.events / found.hops <= case.most_events
    if case.most_mib is not None:
        wanted += f" and {case.most_mib} MiB"
        ok = ok and found.mib <= case.most_mib
    return f"{wanted}: {'ok' if ok else 'MISSED'}"


def _show_peer(sizes: Sizes, mhops: float) -> None:
    """Print what ns.py does of the first case, with a twentieth of the bytes."""
    name = f"{'ns.py, permutation without headers, pauses, marks':<52}"
    fabric = leaf_spine(sizes.hosts)
    found = nspy_hops(fabric, permutation(sizes.hosts), max(sizes.size // 10, 4096))
    if found is None:
        print(f"{name}not installed")
        return
    hops, seconds = found
    theirs = hops / seconds / 1e6
    ok = mhops >= TIMES_NSPY * theirs
    print(
        f"{name}{theirs:8.3f}{seconds:8.3f}{hops / 1e6:8.2f}{'':20}  "
        f"{mhops / theirs:.0f} times slower, at least {TIMES_NSPY} wanted: "
        f"{'ok' if ok else 'MISSED'}"
    )


def main(
    *,
    sizes: Sizes | None = None,
    repeats: int = 3,
    only: str = "",
    measure: Callable[[int, int, Sizes], Figures] = in_a_process,
) -> None:
    """Print the table.

    Parameters
    ----------
    sizes
        How large everything is.
    repeats
        Runs of each case, of which the median counts.
    only
        Leave out cases without it in their names.
    measure
        Runs a case: `measure_once` in this process, by default in one of its own.
    """
    sizes = sizes or Sizes()
    print(machine())
    fixed = cpu_of(reference, repeats=repeats)
    print(f"a fixed loop of Python: {min(fixed.seconds):.3f} to {max(fixed.seconds):.3f} s\n")
    print(f"{'':52}{'Mhop/s':>8}{'s':>8}{'Mhops':>8}{'events/hop':>12}{'MiB':>8}")
    first = None
    for number, case in enumerate(cases(sizes)):
        if only not in case.name:
            continue
        found = measure(number, repeats, sizes)
        first = first or found
        print(
            f"{case.name:<52}{found.mhops:8.2f}{median(found.seconds):8.3f}"
            f"{found.hops / 1e6:8.2f}{found.events / found.hops:12.2f}{found.mib:8.0f}  "
            f"{_verdict(case, found)}",
            flush=True,
        )
    if first is not None:
        _show_peer(sizes, first.mhops)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Packet-hops per CPU second of the packet engine")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        number, repeats, keys = json.loads(given.measure)
        print(json.dumps(asdict(measure_once(number, repeats, Sizes(**keys)))))
    else:
        main(repeats=given.repeats, only=given.only)
