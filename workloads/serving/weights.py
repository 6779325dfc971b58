# SPDX-License-Identifier: Apache-2.0
"""Weights on their way to a replica that starts, grows its pool, or comes back after a failure.

All of its ranks load before any serves. ``peer``: rank by rank from a replica that serves, over
the fabric of the GPUs (as BlitzScale, OSDI 2025, does), each from the rank that holds what it
needs. ``storage``: from the storage on the front-end network to each of the replica's servers. A
host by name: from its GPUs' NICs in turn. ``disk``: from the disks of each server, over no link;
so too where a peer is wanted and none serves. Class of traffic ``weights``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow
from railweave.fabric.units import PS_PER_S
from railweave.topologies.front_end import STORAGE, server_nic
from railweave.workloads.memory import weight_bytes_per_rank
from railweave.workloads.serving.replica import ReplicaLostError

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.groups import Group
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.workload import WorkloadContext

__all__ = ["WeightLoader"]

_WORDS = ("peer", "storage", "disk")


class WeightLoader:
    """Loads weights.

    Parameters
    ----------
    workload, context, fleet, shape
        What is served, on what.

    Raises
    ------
    InputError
        There is no such source.
    """

    def __init__(
        self, workload: ServingModel, context: WorkloadContext, fleet: Fleet, shape: ModelShape
    ) -> None:
        self._workload, self._context, self._fleet = workload, context, fleet
        self._sizes = {
            name: [
                weight_bytes_per_rank(shape, pool.plan, stage=stage, dtype=workload.dtype)
                for stage in range(pool.pp)
            ]
            for name, pool in workload.pools.items()
        }
        self._loads: Counter[Group | None] = Counter()  # under way, by peer
        self._count = 0
        self.check(workload.weights.source, ("weights", "source"))

    def check(self, source: str, at: tuple[Any, ...]) -> None:
        """Refuse a source that is not there."""
        context = self._context
        if source == "storage" and f"{STORAGE}/nic0" not in context.fabric.device_index:
            raise context.error(
                "there is no front-end network, on which storage is", at=at,
                expected="frontend: {...}, or peer, disk or a host by name",
            )  # fmt: skip
        if source not in _WORDS and not self._gpus_of(source):
            raise context.error(
                f"there is no host '{source}' with GPUs", at=at,
                expected="peer, storage, disk or a host by name",
            )  # fmt: skip

    def _gpus_of(self, host: str) -> list[int]:
        fabric = self._context.fabric
        number = fabric.host_index.get(host, -1)
        return [int(gpu) for gpu in fabric.gpus if fabric.host[gpu] == number]

    def load(
        self, group: Group, source: str | None = None
    ) -> Generator[simpy.Event, Any, dict[str, Any]]:
        """Load the weights of all ranks of what starts together.

        Parameters
        ----------
        group
            Whose.
        source
            Instead of the workload's.

        Returns
        -------
        Where they came from, and their bytes.
        """
        wanted = source or self._workload.weights.source
        while True:
            peer = self._peer(group) if wanted == "peer" else None
            if wanted == "disk" or (wanted == "peer" and peer is None):
                yield self._context.env.timeout(self._disk_ps(group))
                return {"weights_from": "disk", "weights_bytes": 0}
            flows = self._flows(group, wanted, peer)
            try:
                yield from self._send(flows, peer)
            except ReplicaLostError:
                continue  # look for another peer
            name = wanted if peer is None else peer.name
            moved = sum(flow.size_bytes for flow in flows)
            return {"weights_from": name, "weights_bytes": moved}

    def _send(self, flows: list[Flow], peer: Group | None) -> Generator[simpy.Event, Any, None]:
        """Send all flows and wait for them, as long as the peer serves."""
        env, engine = self._context.env, self._context.engine
        under_way = [(flow, engine.send(flow)) for flow in flows]
        done = env.all_of([event for _, event in under_way])
        wait = done if peer is None else env.any_of([done, peer.lost])
        self._loads[peer] += 1
        try:
            yield wait
        except BaseException:  # it is wanted no more, or the peer is lost
            done.defused = wait.defused = True
            for flow, event in under_way:
                if not event.triggered:
                    event.defused = True
                    with suppress(InputError):  # it ends at this very instant
                        engine.cancel(flow)
            raise
        finally:
            self._loads[peer] -= 1

    def _rank_bytes(self, group: Group) -> list[int]:
        """Return the bytes of each rank, in the order of its devices."""
        keys, sizes = self._workload.pools[group.pool], self._sizes[group.pool]
        return [sizes[keys.plan.stage_of(rank)] for rank in range(len(group.devices))]

    def _disk_ps(self, group: Group) -> int:
        """Return what the server with most bytes takes to read them."""
        held: Counter[int] = Counter()
        for device, size in zip(group.devices, self._rank_bytes(group), strict=True):
            held[int(self._context.fabric.host[device])] += size
        most = max(held.values())
        return -(-most * 8 * PS_PER_S // self._workload.weights.disk_rate)

    def _peer(self, group: Group) -> Group | None:
        """Return who serves and has fewest to load from it; of the same pool if any."""
        fleet = self._fleet
        everybody = [one for pool in fleet.groups.values() for one in pool]
        for groups in (fleet.groups[group.pool], everybody):
            serving = [one for one in groups if one is not group and fleet.serves(one)]
            if serving:
                return min(serving, key=lambda one: self._loads[one])
        return None

    def _flows(self, group: Group, wanted: str, peer: Group | None) -> list[Flow]:
        fabric = self._context.fabric
        self._count += 1
        sizes = self._rank_bytes(group)
        pairs: Counter[tuple[int, int]] = Counter()
        if wanted == "storage":
            storage = fabric.device_index[f"{STORAGE}/nic0"]
            for device, size in zip(group.devices, sizes, strict=True):
                host = fabric.host_names[int(fabric.host[device])]
                pairs[storage, fabric.device_index[server_nic(host)]] += size
        else:
            sources = self._gpus_of(wanted) if peer is None else list(peer.devices)
            for rank, (device, size) in enumerate(zip(group.devices, sizes, strict=True)):
                # As heads are divided: the first rank of the peer that holds part of the same.
                at = rank % len(sources) if peer is None else rank * len(sources) // len(sizes)
                pairs[sources[at], device] += size
        return [
            Flow(
                id=f"{self._context.prefix}{group.name}.w{self._count}.{number}",
                src=src,
                dst=dst,
                size_bytes=size,
                tag="weights",
            )
            for number, ((src, dst), size) in enumerate(pairs.items())
            if src != dst
        ]
