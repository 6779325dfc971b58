# SPDX-License-Identifier: Apache-2.0
"""What `scale.py` times: many flows and large collectives on the fluid engine.

Each case is a function that runs once and returns what it timed, to be called in a process of its
own. Beds are those of `fluid.py`: acknowledgements are off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from fluid import Bed, rail_optimized, run_once

import railweave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "Arrivals",
    "Found",
    "Sizes",
    "Timer",
    "bed_of",
    "errors",
    "exchange",
    "fat_tree",
    "hierarchical",
    "poisson",
    "rail_pods",
    "ring",
    "send",
    "tolerance_error",
    "warm_up",
]

BUFFER_BYTES = 2**30
MEAN_BYTES, SIGMA = 1e6, 1.0
RATE_BPS = 400e9
CABLE = {"model": "roce-lossless", "rate": "400Gbps"}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large everything is; the defaults are what the limits are about."""

    flows: int = 100_000
    first: int = 20_000  # of them, for the error of a tolerance and for SimGrid
    k: int = 16  # the fat-tree of the flows and of the exchange: k^3 / 4 hosts
    ring_k: int = 32
    rings: Sequence[int] = (512, 1024, 2048, 4096)
    hosts: int = 2048  # of 8 GPUs, for the hierarchical all_reduce
    group: int = 32
    star: int = 1024  # hosts of the peers
    packet_flows: int = 500  # for ns.py, which simulates packets

    @property
    def tree_hosts(self) -> int:
        """Hosts of the fat-tree of the flows and of the exchange."""
        return self.k**3 // 4


@dataclass
class Found:
    """What a case timed, in CPU seconds, and a few words on what came of it."""

    seconds: dict[str, float] = field(default_factory=dict)
    said: str = ""


class Timer:
    """Adds up the CPU seconds of named pieces of work.

    Examples
    --------
    >>> found = Found()
    >>> with Timer(found, "run"):
    ...     pass
    >>> list(found.seconds)
    ['run']
    """

    def __init__(self, found: Found, name: str) -> None:
        self._found, self._name = found, name

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._found.seconds[self._name] = time.process_time() - self._started


# ---------------------------------------------------------------------- fabrics
def fat_tree(k: int) -> dict[str, Any]:
    """Return a k-ary fat-tree with the hosts and cables of the shipped ``fat-tree-k16``."""
    return {
        "schema": 1,
        "kind": "fat-tree",
        "k": k,
        "hosts": {"model": "single-nic-400g"},
        "links": {
            "host-leaf": {**CABLE, "length": "3m"},
            "leaf-spine": {**CABLE, "length": "10m"},
            "spine-core": {**CABLE, "length": "30m"},
        },
        "network": {"mtu": "4096B"},
    }


def rail_pods(hosts: int, *, group: int) -> dict[str, Any]:
    """Return rail-optimized DGX H100 in groups with spines of their own, under a core if many."""
    topology = rail_optimized(hosts, group=group)
    if hosts > group:
        topology["core"] = {"switch": "spectrum-4", "oversubscription": "1:1"}
        topology["links"]["spine-core"] = {**CABLE, "length": "30m"}
    return topology


def bed_of(topology: dict[str, Any], *, policy: str = "ecmp") -> Bed:
    """Build a fabric with routing of a policy."""
    fabric = railweave.build_topology(railweave.load_topology(topology))
    settings = railweave.NetworkSettings(ack_every=0)
    return Bed(fabric, railweave.Routing(fabric, policy=policy), settings)


def warm_up() -> None:
    """Compile or load the kernels on a small fabric, which shares nothing with those timed."""
    bed = bed_of(fat_tree(4))
    plan = railweave.plan("all_reduce", ranks=16, size_bytes=2**20, algorithm="ring")
    run_once(bed, plan)(bed.engine())
    send(bed, Arrivals.poisson(200, hosts=16, load=0.5), bed.fabric.gpus, Found())


# ---------------------------------------------------------------------- flows
@dataclass(frozen=True)
class Arrivals:
    """Flows that arrive at random: host numbers, bytes and times in ps, int64 (flows,)."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    start_ps: NDArray[np.int64]

    @classmethod
    def poisson(cls, flows: int, *, hosts: int, load: float, seed: int = 1) -> Arrivals:
        """Draw Poisson arrivals of lognormal sizes between hosts that are drawn uniformly.

        Parameters
        ----------
        flows, hosts
            Numbers of them; no host sends to itself.
        load
            Payload that arrives, as a part of what all hosts together can send at 400 Gbit/s.
        seed
            Of the random numbers.
        """
        rng = np.random.default_rng(seed)
        size = rng.lognormal(np.log(MEAN_BYTES) - SIGMA**2 / 2, SIGMA, flows)
        per_second = load * hosts * RATE_BPS / 8 / MEAN_BYTES
        start = np.cumsum(rng.exponential(1e12 / per_second, flows))
        src = rng.integers(0, hosts, flows)
        dst = (src + rng.integers(1, hosts, flows)) % hosts
        return cls(src, dst, np.maximum(size, 1).astype(np.int64), start.astype(np.int64))

    def __len__(self) -> int:
        return len(self.src)

    def first(self, flows: int) -> Arrivals:
        """Return those that arrive first."""
        part = slice(flows)
        return Arrivals(self.src[part], self.dst[part], self.size_bytes[part], self.start_ps[part])

    def flows(self, devices: Sequence[int]) -> list[Any]:
        """Return them as flows between ``devices``, the device of each host."""
        device = np.asarray(devices, np.int64)
        columns = (device[self.src], device[self.dst], self.size_bytes)
        return [
            railweave.Flow(id=str(number), src=src, dst=dst, size_bytes=size)
            for number, (src, dst, size) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]


def send(
    bed: Bed, arrivals: Arrivals, devices: Sequence[int], found: Found, *, tolerance: float = 0.0
) -> NDArray[np.int64]:
    """Send flows on a fresh engine, timed as ``run``; return their completion times in ps."""
    flows, start_ps = arrivals.flows(devices), arrivals.start_ps.tolist()
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine(
        "fluid", env, bed.fabric, bed.routing, bed.settings, memo=False, tolerance=tolerance
    )
    with Timer(found, "run"):
        env.run(until=engine.send_all(flows, start_ps=start_ps))
    return np.array([record.fct_ps for record in engine.records()], np.int64)


def errors(times: NDArray[Any], against: NDArray[Any]) -> str:
    """Say by how much completion times are off, relative to others of the same flows."""
    off = np.abs(times / against - 1)
    mean = abs(times.mean() / against.mean() - 1)
    return (
        f"completion times off by {off.mean():.1e} on average, median {np.median(off):.1e}, "
        f"p99 {np.percentile(off, 99):.1e}, max {off.max():.1e}; their mean by {mean:.1e}"
    )


def poisson(sizes: Sizes, *, load: float, tolerance: float = 0.0) -> Found:
    """Time Poisson flows on a fat-tree, from nothing routed to the last end."""
    found = Found()
    bed = bed_of(fat_tree(sizes.k))
    arrivals = Arrivals.poisson(sizes.flows, hosts=sizes.tree_hosts, load=load)
    times = send(bed, arrivals, bed.fabric.gpus, found, tolerance=tolerance)
    found.said = (
        f"completion times: mean {times.mean() / 1e6:.3f} us, "
        f"p99 {np.percentile(times, 99) / 1e6:.3f} us"
    )
    return found


def tolerance_error(sizes: Sizes, *, load: float, tolerance: float) -> Found:
    """Time the first of the Poisson flows with a tolerance and exactly, and compare."""
    exactly, found = Found(), Found()
    bed = bed_of(fat_tree(sizes.k))
    arrivals = Arrivals.poisson(sizes.flows, hosts=sizes.tree_hosts, load=load).first(sizes.first)
    exact = send(bed, arrivals, bed.fabric.gpus, exactly)
    about = send(bed, arrivals, bed.fabric.gpus, found, tolerance=tolerance)
    found.seconds = {"exact": exactly.seconds["run"], "tolerant": found.seconds["run"]}
    found.said = f"{errors(about, exact)} (tolerance {tolerance:g})"
    return found


# ---------------------------------------------------------------------- collectives
def _execute(bed: Bed, plan: Any, found: Found, *, memo: bool = False) -> Any:
    """Execute a schedule on a fresh engine, timed as ``run``; return its record."""
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, bed.fabric, bed.routing, bed.settings, memo=memo)
    with Timer(found, "run"):
        done = env.run(until=engine.execute(plan, bed.gpus(plan.n_ranks)))
    found.said += (
        f"took {done.end_ps / 1e9:.3f} ms, {done.end_ps / done.bound_ps:.4f} times its bound"
    )
    return done


def exchange(sizes: Sizes, *, policy: str) -> Found:
    """Time an all_to_all on a fat-tree: routing and interning first, then the engine."""
    found = Found()
    bed = bed_of(fat_tree(sizes.k), policy=policy)
    ranks = sizes.tree_hosts
    plan = railweave.plan("all_to_all", ranks=ranks, size_bytes=BUFFER_BYTES, algorithm="direct")
    env, engine = bed.engine()
    with Timer(found, "route"):
        bound = engine.binder.bind(plan, np.asarray(bed.gpus(ranks), np.int32))
    with Timer(found, "run"):
        done = env.run(until=engine.execute(plan, bed.gpus(ranks)))
    found.said = (
        f"{len(bound.path):,} flows took {done.end_ps / 1e9:.3f} ms, "
        f"{done.end_ps / done.bound_ps:.4f} times the bound of its busiest link"
    )
    return found


def ring(sizes: Sizes, *, ranks: int) -> Found:
    """Time planning and executing a ring all_reduce on the first hosts of a fat-tree."""
    found = Found()
    with Timer(found, "build"):
        bed = bed_of(fat_tree(sizes.ring_k))
    with Timer(found, "plan"):
        plan = railweave.plan("all_reduce", ranks=ranks, size_bytes=BUFFER_BYTES, algorithm="ring")
    _execute(bed, plan, found)
    return found


def hierarchical(sizes: Sizes, *, policy: str) -> Found:
    """Time a hierarchical all_reduce over all GPUs of a rail-optimized fabric."""
    found = Found()
    with Timer(found, "build"):
        bed = bed_of(rail_pods(sizes.hosts, group=sizes.group), policy=policy)
    ranks = len(bed.fabric.gpus)
    hosts = [rank * sizes.hosts // ranks for rank in range(ranks)]
    with Timer(found, "plan"):
        plan = railweave.plan(
            "all_reduce", ranks=ranks, size_bytes=BUFFER_BYTES, algorithm="hierarchical",
            hosts=hosts,
        )  # fmt: skip
    _execute(bed, plan, found, memo=True)
    found.said += f", {plan.n_runs:,} transfers"
    return found
