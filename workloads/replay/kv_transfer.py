# SPDX-License-Identifier: Apache-2.0
"""The workload ``kv-transfer``: caches of prompts go from prefill to decode replicas at once.

What serving moves between its pools, and nothing else: which rank sends which bytes is that of
`railweave.workloads.kv_transfer`. Cache ``i`` goes from prefill replica ``i`` to decode replica
``i``, each modulo the replicas of its pool; all begin together, so that the fabric alone decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from railweave.fabric.flow import Flow
from railweave.workloads.kv_transfer import kv_matrix
from railweave.workloads.limits import MOST_REQUESTS, MOST_TOKENS
from railweave.workloads.replay.of_model import OfModel
from railweave.workloads.serving.placing import place_pools
from railweave.workloads.serving.pool_keys import ReplicasModel
from railweave.workloads.workload import WorkloadContext, workload_kind

if TYPE_CHECKING:
    import simpy

__all__ = ["KvTransferModel", "cache_flows"]

_MOST_FLOWS = 2**20  # a record each


class KvTransferModel(OfModel):
    """KV caches of equal prompts, all handed over at once."""

    kind: Literal["kv-transfer"]
    prefill: ReplicasModel = Field(ReplicasModel(), description="The replicas that have caches")
    decode: ReplicasModel = Field(ReplicasModel(), description="The replicas that get them")
    prompt: int = Field(ge=1, le=MOST_TOKENS, description="Tokens of each prompt")
    requests: int | None = Field(
        None, ge=1, le=MOST_REQUESTS,
        description="How many caches; default one for each replica of the larger pool",
    )  # fmt: skip
    block: int = Field(16, ge=1, le=MOST_TOKENS, description="Tokens of a block; whole blocks move")
    kv_dtype: str | None = Field(None, description="Number format of the cache", examples=["fp8"])

    @property
    def pools(self) -> dict[str, ReplicasModel]:
        """Its pools by name, prefill first."""
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def replicas(self) -> dict[str, int]:
        """The replicas of each pool."""
        return {name: pool.replicas for name, pool in self.pools.items()}


def cache_flows(workload: KvTransferModel, context: WorkloadContext) -> list[Flow]:
    """Place both pools and return what goes from rank to rank, cache by cache.

    Raises
    ------
    InputError
        The model cannot be divided so, or there are not enough GPUs.
    """
    shape = workload.shape(context)
    pools = place_pools(workload.pools, workload.replicas, context)
    with context.at():
        moved = kv_matrix(
            shape, workload.prefill.tp, workload.decode.tp, workload.prompt, block=workload.block,
            prefill_pp=workload.prefill.pp, decode_pp=workload.decode.pp,
            kv_dtype=workload.kv_dtype,
        ).transfers  # fmt: skip
    requests = workload.requests or max(workload.replicas.values())
    if requests * len(moved) > _MOST_FLOWS:
        raise context.error(
            f"{requests:,} caches go as {requests * len(moved):,} flows",
            at=("requests",),
            expected=f"at most {_MOST_FLOWS:,} flows",
        )
    for pool in pools.values():
        context.occupy(gpu for replica in pool for gpu in replica)
    flows = []
    for number in range(requests):
        source = pools["prefill"][number % len(pools["prefill"])]
        target = pools["decode"][number % len(pools["decode"])]
        flows += [
            Flow(
                id=f"{context.prefix}r{number}.kv{one.src_rank}-{one.dst_rank}",
                src=source[one.src_rank],
                dst=target[one.dst_rank],
                size_bytes=one.size_bytes,
                tag="kv",
            )
            for one in moved
        ]
    return flows


@workload_kind(KvTransferModel)
def start(workload: KvTransferModel, context: WorkloadContext) -> simpy.Event:
    """Send every cache at the workload's start."""
    flows = cache_flows(workload, context)
    with context.at():
        context.engine.prepare(flows)  # where nothing joins two of them, it says so
    return context.engine.send_all(flows, start_ps=[workload.start] * len(flows))
