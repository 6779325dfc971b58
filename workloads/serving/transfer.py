# SPDX-License-Identifier: Apache-2.0
"""The KV cache of a prompt on its way from a prefill to a decode replica.

Each pair of ranks that has bytes to move is one flow, and all of them start together once the whole
prompt has been prefilled: vLLM's NIXL connector pulls so (RDMA READ), and a push (RDMA WRITE) moves
the same bytes the same way. The trip of the read request itself is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from railweave.fabric.chain import parallel
from railweave.fabric.flow import Flow
from railweave.workloads.kv_transfer import kv_matrix

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.kv_transfer import KvTransfer
    from railweave.workloads.serving.replica import ReplicaPlan
    from railweave.workloads.serving.request import Request
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["KvMover"]


@dataclass(frozen=True, kw_only=True)
class KvMover:
    """Moves caches between replicas of two pools.

    Parameters
    ----------
    shape
        The model.
    prefill_tp, prefill_pp, decode_tp
        How it is divided on both sides.
    block
        Tokens of a KV block; whole blocks move.
    kv_dtype
        Number format of the cache.
    prefix
        What the ids of its flows begin with.
    """

    shape: ModelShape
    prefill_tp: int
    prefill_pp: int
    decode_tp: int
    block: int
    kv_dtype: str | None
    prefix: str

    def matrix(self, tokens: int) -> KvTransfer:
        """Return which rank sends what to which rank for a prompt of so many tokens."""
        return kv_matrix(
            self.shape,
            self.prefill_tp,
            self.decode_tp,
            tokens,
            block=self.block,
            prefill_pp=self.prefill_pp,
            kv_dtype=self.kv_dtype,
        )

    def move(
        self,
        request: Request,
        source: ReplicaPlan,
        target: ReplicaPlan,
        *,
        env: FabricEnvironment,
        engine: Engine,
    ) -> Generator[simpy.Event, Any, None]:
        """Send the cache of a request; note its bytes and its bound."""
        moved = self.matrix(request.prompt_tokens)
        flows = [
            Flow(
                id=f"{self.prefix}{request.name}.kv{flow.src_rank}-{flow.dst_rank}",
                src=source.devices[flow.src_rank],
                dst=target.devices[flow.dst_rank],
                size_bytes=flow.size_bytes,
                tag="kv",
            )
            for flow in moved.transfers
        ]
        request.kv_bytes = moved.wire_bytes
        begun = int(env.now)
        ended = yield env.all_of([engine.send(flow) for flow in flows])
        together_ps = self._together_ps(moved, source, target, engine)
        request.kv_bound_ps = max(together_ps, *(record.bound_ps for record in ended.values()))
        if not engine.capabilities.contention:
            # Such an engine times each flow alone; the links they share still carry them all.
            yield env.timeout(max(0, begun + together_ps - int(env.now)))

    @staticmethod
    def _together_ps(
        moved: KvTransfer, source: ReplicaPlan, target: ReplicaPlan, engine: Engine
    ) -> int:
        """Return the least that all transfers together take on an empty fabric, in ps."""
        ranks = (*source.devices, *target.devices)
        first = len(source.devices)  # rank of the first target
        together = parallel(
            len(ranks),
            tuple((flow.src_rank, first + flow.dst_rank) for flow in moved.transfers),
            tuple(flow.size_bytes for flow in moved.transfers),
            op="kv",
        )
        return engine.bound_ps(together, ranks)
