# SPDX-License-Identifier: Apache-2.0
"""KV caches on their way from a prefill to a decode replica, as flows between their ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.chain import parallel
from railweave.fabric.flow import Flow
from railweave.fabric.units import PS_PER_S
from railweave.workloads.kv_transfer import KvFlow, KvTransfer, kv_matrix
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes_model import GroupedAttention

if TYPE_CHECKING:
    import simpy

    from railweave.fabric.engine import Engine
    from railweave.fabric.graph import Fabric
    from railweave.fabric.routing import Routing
    from railweave.workloads.serving.replica import ReplicaPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["KvMover"]


@dataclass(kw_only=True)
class KvMover:
    """Moves caches between replicas of two pools.

    Parameters
    ----------
    shape
        The model.
    prefill_tp, prefill_pp, decode_tp, decode_pp
        How it is divided on both sides.
    block
        Tokens of a KV block; whole blocks move.
    kv_dtype
        Number format of the cache.
    prefix
        What the ids of its flows begin with.
    message_ps
        Time that a rank takes to post a message, one for the keys and one for the values of each
        block in each layer (one for both of a latent cache), in ps.
    nic
        ``affine``: each GPU sends through its own NIC; ``single``: all over NVLink to the replica's
        first and out through its; ``rail``: over NVLink to the GPU on the rail of the receiver.
    efficiency
        Payload per wire byte.
    routing
        Where the paths over other NICs come from; None if there are none.
    """

    shape: ModelShape
    prefill_tp: int
    prefill_pp: int
    decode_tp: int
    decode_pp: int = 1
    block: int
    kv_dtype: str | None
    prefix: str
    message_ps: int = 0
    nic: str = "affine"
    efficiency: float = 1.0
    routing: Routing | None = None
    _known: dict[int, KvTransfer] = field(default_factory=dict, repr=False)
    _paths: dict[tuple[int, int, int], tuple[int, ...] | None] = field(
        default_factory=dict, repr=False
    )

    def matrix(self, tokens: int) -> KvTransfer:
        """Return which rank sends what to which rank for so many tokens of a cache."""
        whole = -(-tokens // self.block) * self.block
        known = self._known.get(whole)
        if known is None:
            known = self._known[whole] = kv_matrix(
                self.shape,
                self.prefill_tp,
                self.decode_tp,
                whole,
                block=self.block,
                prefill_pp=self.prefill_pp,
                decode_pp=self.decode_pp,
                kv_dtype=self.kv_dtype,
            )
        return known

    def between(self, first: int, end: int) -> list[KvFlow]:
        """Return what moves for the tokens ``first`` to ``end - 1`` of those that are to move."""
        before = {flow[:2]: flow.size_bytes for flow in self.matrix(first).transfers}
        return [
            flow._replace(size_bytes=flow.size_bytes - before.get(flow[:2], 0))
            for flow in self.matrix(end).transfers
            if flow.size_bytes > before.get(flow[:2], 0)
        ]

    def messages(self, source: int, tokens: int) -> int:
        """Return the messages that a prefill rank posts for so many tokens."""
        stages = ParallelismPlan(self.prefill_tp, self.prefill_pp).stage_layers(self.shape.n_layers)
        parts = 0
        for index in stages[source // self.prefill_tp]:
            attention = self.shape.layers[index].attention
            parts += 0 if attention is None else 1 + isinstance(attention, GroupedAttention)
        return parts * -(-tokens // self.block)

    def send(
        self,
        name: str,
        flows: list[KvFlow],
        tokens: int,
        source: ReplicaPlan,
        target: ReplicaPlan,
        engine: Engine,
    ) -> list[tuple[Flow, simpy.Event]]:
        """Start flows now, for a piece of a cache of so many tokens; return them and their ends.

        Parameters
        ----------
        name
            What their ids begin with.
        """
        started = []
        for flow in flows:
            src, dst = source.devices[flow.src_rank], target.devices[flow.dst_rank]
            cap = None
            if self.message_ps:
                posting_ps = self.messages(flow.src_rank, tokens) * self.message_ps
                wire_bits = flow.size_bytes * 8 / self.efficiency
                cap = max(int(wire_bits * PS_PER_S / max(posting_ps, 1)), 1)
            sent = Flow(
                id=f"{self.prefix}{name}.kv{flow.src_rank}-{flow.dst_rank}",
                src=src,
                dst=dst,
                size_bytes=flow.size_bytes,
                cap_bps=cap,
                path=self._path(src, dst, source.devices[0], engine.fabric),
                tag="kv",
            )
            started.append((sent, engine.send(sent)))
        return started

    def _path(self, src: int, dst: int, first: int, fabric: Fabric) -> tuple[int, ...] | None:
        """Return the links over another NIC than the sender's own; None where it is its own."""
        key = (src, dst, first)
        if self.nic == "affine" or self.routing is None:
            return None
        if key not in self._paths:
            self._paths[key] = self._detour(src, dst, first, fabric)
        return self._paths[key]

    def _detour(self, src: int, dst: int, first: int, fabric: Fabric) -> tuple[int, ...] | None:
        if fabric.host[src] == fabric.host[dst]:
            return None
        over = first
        if self.nic == "rail":
            hosts = fabric.host[fabric.gpus]
            place = int(np.flatnonzero(fabric.gpus[hosts == fabric.host[dst]] == dst)[0])
            siblings = fabric.gpus[hosts == fabric.host[src]]
            over = int(siblings[place]) if place < len(siblings) else src
        if over == src or fabric.host[over] != fabric.host[src]:
            return None
        assert self.routing is not None
        ends = np.array([[src, over], [over, dst]], np.int32)
        routes = self.routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), np.zeros(2, np.int32))
        return (*routes.path(0), *routes.path(1))

    def together_ps(
        self, flows: list[KvFlow], source: ReplicaPlan, target: ReplicaPlan, engine: Engine
    ) -> int:
        """Return the least that flows together take on an empty fabric, in ps."""
        if not flows or self.nic != "affine":
            return 0
        ranks = (*source.devices, *target.devices)
        first = len(source.devices)  # rank of the first target
        together = parallel(
            len(ranks),
            tuple((flow.src_rank, first + flow.dst_rank) for flow in flows),
            tuple(flow.size_bytes for flow in flows),
            op="kv",
        )
        return engine.bound_ps(together, ranks)
