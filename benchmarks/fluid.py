# SPDX-License-Identifier: Apache-2.0
"""How fast the fluid engine is, and what the fabric under it takes to build.

``python benchmarks/fluid.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import HEADER, Cpu, cpu_of, machine, reference, row

import railweave
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import simpy

__all__ = ["Bed", "build_with_routes", "main", "process_per_gpu", "rail_optimized", "run_once"]

RING_BYTES = 2**30
HOP_PS = 20_000_000  # what a step of a process without a network takes: any time would do


@dataclass(frozen=True)
class Bed:
    """A built fabric with its routing, on which engines are tried."""

    fabric: Any
    routing: Any
    settings: Any

    @classmethod
    def of(cls, topology: Any) -> Bed:
        """Build a topology; acknowledgements are off."""
        spec = railweave.load_topology(topology)
        fabric = railweave.build_topology(spec)
        return cls(fabric, railweave.Routing(fabric), railweave.NetworkSettings(ack_every=0))

    def engine(self) -> tuple[Any, Any]:
        """Return a fresh environment and fluid engine that remembers nothing."""
        env = railweave.FabricEnvironment()
        engine = railweave.make_engine(
            "fluid", env, self.fabric, self.routing, self.settings, memo=False
        )
        return env, engine

    def gpus(self, ranks: int) -> list[int]:
        """Return the first GPUs in host order."""
        return [int(gpu) for gpu in self.fabric.gpus[:ranks]]


def run_once(bed: Bed, schedule: Any) -> Any:
    """Return a function that executes a schedule on a fresh engine, for `cpu_of`."""
    gpus = bed.gpus(schedule.n_ranks)

    def run(ready: tuple[Any, Any]) -> int:
        env, engine = ready
        env.run(until=engine.execute(schedule, gpus))
        return int(env.now)

    return run


def process_per_gpu(env: Any, engine: Any, gpus: list[int], *, steps: int) -> simpy.Event:
    """Start a ring as one SimPy process per GPU and return the event of its end.

    In each step a rank passes a chunk on to the next, then waits for the one before it.

    Parameters
    ----------
    env, engine
        As `Bed.engine` returns them; with ``engine`` None nothing is sent, and a step is just a
        pause and two events.
    gpus
        The GPU of each rank.
    steps
        Steps of the ring; a whole all_reduce has ``2 * (ranks - 1)``.
    """
    ranks = len(gpus)
    chunk = RING_BYTES // ranks
    arrived = [[env.event() for _ in range(steps)] for _ in gpus]

    def rank(number: int) -> Iterator[simpy.Event]:
        after = (number + 1) % ranks
        for step in range(steps):
            if engine is None:
                yield env.timeout(HOP_PS)
            else:
                flow = railweave.Flow(
                    id=f"{number}.{step}", src=gpus[number], dst=gpus[after], size_bytes=chunk
                )
                yield engine.send(flow)
            arrived[after][step].succeed()
            yield arrived[number][step]

    return env.all_of([env.process(rank(number)) for number in range(ranks)])


def rail_optimized(hosts: int, *, group: int) -> dict[str, Any]:
    """Return a rail-optimized topology of DGX H100 hosts in groups that share their spines."""
    return {
        "schema": 1,
        "kind": "rail-optimized",
        "hosts": {"count": hosts, "model": "dgx-h100"},
        "group": group,
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4", "oversubscription": "1:1"},
        "links": {
            "host-leaf": {"model": "roce-lossless", "rate": "400Gbps", "length": "3m"},
            "leaf-spine": {"model": "roce-lossless", "rate": "400Gbps", "length": "30m"},
        },
    }


def build_with_routes(topology: dict[str, Any]) -> int:
    """Build a fabric, route a ring over all its GPUs and all pairs of leaves; count the links."""
    fabric = railweave.build_topology(railweave.load_topology(topology))
    routing = railweave.Routing(fabric)
    ring = routing.routes(fabric.gpus, np.roll(fabric.gpus, -1))
    # One NIC under each leaf stands for it.
    homes = np.flatnonzero(
        fabric.link_network
        & (fabric.kind[fabric.link_src] == DeviceKind.NIC)
        & (fabric.kind[fabric.link_dst] == DeviceKind.SWITCH)
    )
    _, first = np.unique(fabric.link_dst[homes], return_index=True)
    nics = fabric.link_src[homes[first]]
    src, dst = np.repeat(nics, len(nics)), np.tile(nics, len(nics))
    pairs = routing.routes(src[src != dst], dst[src != dst])
    return len(ring.links) + len(pairs.links)


def main(*, ranks: int = 1024, hosts: int = 128, repeats: int = 5, steps: int = 20) -> None:
    """Print the table.

    Parameters
    ----------
    ranks
        GPUs of the rings; the all_to_all has a quarter of them.
    hosts
        Hosts of the rail-optimized fabric.
    repeats
        Runs of each row.
    steps
        Steps of the ring that the processes take before their times are extrapolated.
    """
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    bed = Bed.of("fat-tree-k16")
    planned = cpu_of(
        lambda _: railweave.plan(
            "all_reduce", ranks=ranks, size_bytes=RING_BYTES, algorithm="ring"
        ),
        repeats=1,  # plans are remembered
    )
    print(row(f"plan a ring all_reduce of {ranks:,} GPUs, the first time", planned))
    ring = railweave.plan("all_reduce", ranks=ranks, size_bytes=RING_BYTES, algorithm="ring")
    inside = _schedule_rows(bed, ring, repeats=repeats)
    _process_rows(bed, ranks, inside, steps=steps)
    exchange = railweave.plan("all_to_all", ranks=ranks // 4, size_bytes=RING_BYTES)
    run = run_once(bed, exchange)
    run(bed.engine())
    name = f"all_to_all of {ranks // 4} GPUs, {len(exchange):,} transfers at once"
    print(row(name, cpu_of(run, setup=bed.engine, repeats=repeats)))
    topology = rail_optimized(hosts, group=32)
    links = build_with_routes(topology)
    built = cpu_of(lambda _: build_with_routes(topology), repeats=repeats)
    name = f"rail-optimized fabric of {8 * hosts:,} GPUs, routes over {links:,} links"
    print(row(name, built, limit=1.0))


def _schedule_rows(bed: Bed, ring: Any, *, repeats: int) -> Cpu:
    """Print what executing a ring takes, and return it."""
    run = run_once(bed, ring)
    run(bed.engine())
    executed = cpu_of(run, setup=bed.engine, repeats=repeats)
    print(row(f"execute it in the engine, {ring.n_runs:,} transfers", executed, limit=1.0))
    return executed


def _process_rows(bed: Bed, ranks: int, inside: Cpu, *, steps: int) -> None:
    """Print what the same ring takes as a process per GPU, without and with the engine."""
    gpus = bed.gpus(ranks)
    steps = min(steps, 2 * (ranks - 1))
    factor = 2 * (ranks - 1) / steps

    def ready() -> tuple[Any, Any]:
        env, engine = bed.engine()
        after = [*gpus[1:], gpus[0]]
        engine.prepare(
            railweave.Flow(id="", src=src, dst=dst, size_bytes=0)
            for src, dst in zip(gpus, after, strict=True)
        )
        return env, engine

    def run(beds: tuple[Any, Any]) -> None:
        env, engine = beds
        env.run(until=process_per_gpu(env, engine, gpus, steps=steps))

    bare = cpu_of(run, setup=lambda: (bed.engine()[0], None), repeats=3).scaled(factor)
    sent = cpu_of(run, setup=ready, repeats=3).scaled(factor)
    said = f"from {steps} of {2 * (ranks - 1):,} steps"
    print(row(f"a process per GPU without any network, {said}", bare))
    print(row("... and the engine against it", inside, against=bare, least=10))
    print(row(f"a process per GPU that sends each chunk, {said}", sent))
    print(row("... and the engine against it", inside, against=sent, least=10))


if __name__ == "__main__":
    main()
