# SPDX-License-Identifier: Apache-2.0
"""Where the replicas of the pools sit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.fabric.graph import Fabric
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.pool_keys import ReplicasModel
    from railweave.workloads.workload import WorkloadContext

__all__ = ["place_pools", "placed_replicas"]


def placed_replicas(workload: ServingModel) -> dict[str, int]:
    """Return, by pool, the replicas that GPUs are kept for: as many as it may ever have."""
    placed = {name: pool.replicas for name, pool in workload.pools.items()}
    for rule in workload.autoscale:
        if rule.pool in placed:
            placed[rule.pool] = max(placed[rule.pool], rule.most)
    return placed


def place_pools(
    pools: Mapping[str, ReplicasModel], counts: Mapping[str, int], context: WorkloadContext
) -> dict[str, list[list[int]]]:
    """Return, by pool, the device indices of each replica's GPUs, tensor parallelism innermost.

    Packed pools fill hosts in order, prefill first. The decode pool begins on a host of its own,
    and a replica that one host can hold is not split over two, as long as there are hosts enough.

    Parameters
    ----------
    pools
        The keys of each pool, by name.
    counts
        The replicas of each that GPUs are kept for.
    context
        The fabric, and where the workload is placed.

    Raises
    ------
    InputError
        There are not enough GPUs.
    """
    fabric = context.fabric
    needs = {name: counts[name] * pool.ranks for name, pool in pools.items()}
    total = sum(needs.values())
    if total > len(fabric.gpus):
        attention = any(pool.ranks > pool.tp * pool.pp for pool in pools.values())
        product = "replicas x tp x pp" + " x dp" * attention
        asked = " + ".join(f"{needs[name]} for {name}" for name in pools)
        raise context.error(
            f"the replicas need {total} GPUs ({asked}), but {fabric.name} has {len(fabric.gpus)}",
            at=(max(needs, key=lambda name: needs[name]), "replicas"),
            expected=f"{product} of all pools at most {len(fabric.gpus)}",
        )
    own = [name for name in pools if pools[name].placement is not None]
    placed: dict[str, list[list[int]]] = {}
    taken: set[int] = set()
    for name in own:
        pool, placement = pools[name], pools[name].placement
        assert placement is not None
        with context.at(name, "replicas"):
            order = context.place(
                needs[name] if placement.policy != "packed" else None,
                placement=placement,
                at=(name, "placement"),
                taken=taken,
            )
        packed = placement.policy == "packed"
        sized = [(counts[name], pool.ranks)]
        placed[name] = _replicas(fabric, order, sized, packed=packed)[0]
        taken.update(gpu for replica in placed[name] for gpu in replica)
    shared = [name for name in pools if name not in own]
    if shared:
        packed = context.placement.policy == "packed"
        need = sum(needs[name] for name in shared)
        with context.at(shared[0], "replicas"):
            order = context.place(None if packed else need, taken=taken)
        sized = [(counts[name], pools[name].ranks) for name in shared]
        found = _replicas(fabric, order, sized, packed=packed)
        placed.update(zip(shared, found, strict=True))
    return {name: placed[name] for name in pools}


def _replicas(
    fabric: Fabric, order: Sequence[int], pools: Sequence[tuple[int, int]], *, packed: bool
) -> list[list[list[int]]]:
    """Divide GPUs in this order among pools of (replicas, GPUs of each)."""
    if packed:
        whole = _on_whole_hosts(fabric, order, pools)
        if whole is not None:
            return whole
    at, found = 0, []
    for count, size in pools:
        found.append([list(order[at + i * size : at + (i + 1) * size]) for i in range(count)])
        at += count * size
    return found


def _on_whole_hosts(
    fabric: Fabric, order: Sequence[int], pools: Sequence[tuple[int, int]]
) -> list[list[list[int]]] | None:
    """Divide GPUs without splitting what a host can hold; None if the hosts do not suffice."""
    hosts: dict[int, list[int]] = {}
    for gpu in order:
        hosts.setdefault(int(fabric.host[gpu]), []).append(gpu)
    rest = list(hosts.values())
    found = []
    for count, size in pools:
        replicas: list[list[int]] = []
        here: list[int] = []
        for _ in range(count):
            if len(here) < size:
                here = []
            while len(here) < size and rest:
                here += rest.pop(0)
            if len(here) < size:
                return None
            replicas.append(here[:size])
            here = here[size:]
        found.append(replicas)
    return found
