# SPDX-License-Identifier: Apache-2.0
"""Compute time of a mixture of experts whose experts are divided over ranks.

The roofline of `railweave.workloads.compute`: a rank computes its share of the (token, expert)
pairs of its group, drawn evenly, and reads those of its experts that any token visits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.compute import experts_visited, roofline_ps
from railweave.workloads.shapes import plain_bytes
from railweave.workloads.shapes_tensors import Store
from railweave.workloads.shapes_weights import (
    feed_forward_weights,
    storage_format,
    stored_bytes,
)

if TYPE_CHECKING:
    from railweave.fabric.devices import GpuModel
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import ModelShape, MoeFeedForward
    from railweave.workloads.shapes_tensors import Weight

__all__ = ["expert_block_ps"]


def expert_block_ps(
    shape: ModelShape,
    block: MoeFeedForward,
    plan: ParallelismPlan,
    gpu: GpuModel,
    *,
    tokens: int,
    group_tokens: int,
    dtype: str | None,
    overhead_ps: int,
) -> int:
    """Return the time of a feed-forward block under expert parallelism, in ps.

    Parameters
    ----------
    shape, block, plan
        The model, the block, and how it is divided; ``plan.ep`` is more than 1.
    gpu
        What each rank has.
    tokens
        Tokens that the rank's replica sends through router and shared expert.
    group_tokens
        Tokens of all replicas of the expert-parallel group.
    dtype
        Format of the weights, None: the checkpoint's.
    overhead_ps
        Fixed time of the block.
    """
    fmt = storage_format(shape, dtype)
    plain = plain_bytes(shape, fmt)
    weights = list(feed_forward_weights(block, shape.hidden_size))
    routed = [w for w in weights if w.name.startswith("experts")]
    common = [w for w in weights if not w.name.startswith("experts")]
    tp = 1 if plan.ep_over_tp else plan.tp  # of one expert

    def elements(of: list[Weight], over: int) -> int:
        total = 0
        for weight in of:
            rows, columns = weight.local(over)
            total += rows * columns * weight.count
        return total

    per_expert = elements([w for w in routed if w.rows > 1], tp) // block.experts
    meets_all = elements([w for w in common if w.rows > 1], plan.tp)
    pairs = -(-group_tokens * block.top_k // plan.ep)
    visited = -(-experts_visited(group_tokens, block.experts, block.top_k) // plan.ep)
    moved = stored_bytes(common, fmt=fmt, plain=plain, tp=plan.tp)
    moved += stored_bytes(routed, fmt=fmt, plain=plain, tp=tp) * visited // block.experts
    quantised = any(w.store is Store.EXPERT for w in routed)
    arithmetic = "fp8" if fmt == "fp8" and quantised and "fp8" in gpu.flops else "bf16"
    if arithmetic not in gpu.flops:
        arithmetic = shape.dtype
    flops = 2 * (meets_all * tokens + per_expert * pairs)
    return overhead_ps + roofline_ps(flops=flops, moved_bytes=moved, gpu=gpu, dtype=arithmetic)
