# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: gradients and parameters on the wire, and what a training rank holds.

ZeRO (Rajbhandari et al., arXiv 1910.02054) divides the optimizer's state (1), the gradients (2)
and the parameters (3) over the replicas; 1 is Megatron-LM's distributed optimizer, 3 is FSDP.
Stage 0 sums gradients in one all_reduce; 1 and 2 scatter them and gather the new parameters; 3
gathers parameters before each forward and each backward pass and scatters gradients after it.
Experts are summed over those who hold the same experts alone, everything else over all replicas
and context-parallel ranks.

Gradients go in buckets of ``max(40 000 000, 1 000 000 n)`` elements, in fp32 unless told
otherwise: Megatron-LM's defaults (``megatron/core/distributed/distributed_data_parallel.py``,
``megatron/training/arguments.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.workloads.ops import collective

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shares import Parameters

__all__ = ["TrainingMemory", "bucket_elements", "buckets", "data_parallel_ops", "update_bytes"]

_MASTER_AND_MOMENTS: Final = 12  # Adam in mixed precision: fp32 master copy, mean and variance
_LEAST_BUCKET: Final = 40_000_000
_BUCKET_PER_RANK: Final = 1_000_000


def bucket_elements(n_ranks: int) -> int:
    """Return the elements of a gradient bucket over ``n_ranks`` replicas.

    Examples
    --------
    >>> bucket_elements(8), bucket_elements(128)
    (40000000, 128000000)
    """
    return max(_LEAST_BUCKET, _BUCKET_PER_RANK * n_ranks)


def buckets(elements: Sequence[int], bucket: int) -> list[tuple[int, int]]:
    """Return the buckets that parameters fill in turn: elements, and the last part in each.

    Parts fill a bucket until it has at least ``bucket`` elements, as Megatron-LM does with whole
    parameters.

    Parameters
    ----------
    elements
        Parameters of each part, in the order in which their gradients become ready.
    bucket
        Elements of a bucket.

    Examples
    --------
    >>> buckets([30, 30, 30, 10], 50)
    [(60, 1), (40, 3)]
    """
    found, filled = [], 0
    for part, size in enumerate(elements):
        filled += size
        if filled >= bucket or (part == len(elements) - 1 and filled):
            found.append((filled, part))
            filled = 0
    return found


def data_parallel_ops(
    parameters: Parameters,
    plan: ParallelismPlan,
    *,
    stage: int,
    zero: int,
    gradient_bytes: int,
    element: int,
    micro_batches: int = 1,
) -> Iterator[TrafficOp]:
    """Yield the exchange of one step, every bucket together.

    Parameters
    ----------
    parameters
        What a rank of the stage holds before data parallelism divides it.
    plan, stage
        How the model is divided, and the stage.
    zero
        Stage of ZeRO, 0 to 3.
    gradient_bytes, element
        Bytes of a gradient and of a parameter.
    micro_batches
        With ZeRO-3 parameters are gathered, and gradients scattered, for each.
    """
    replicas, shared = plan.dp * plan.cp, plan.ep > 1
    rows = [("dp", parameters.dense if shared else parameters.total, replicas, "parameters")]
    if shared:
        rows.append(("edp", parameters.experts, replicas // plan.ep, "experts"))
    for axis, count, n, kind in rows:
        gradients, weights = count * gradient_bytes, count * element
        scatter: dict[str, Any] = {
            "stage": stage,
            "phase": "gradients",
            "what": f"gradients of {kind}",
        }
        gather: dict[str, Any] = {"stage": stage, "phase": "parameters", "what": kind}
        if zero == 0:
            yield from collective("all_reduce", axis, n, gradients, **scatter)
        elif zero < 3:
            yield from collective("reduce_scatter", axis, n, gradients, **scatter)
            yield from collective("all_gather", axis, n, weights, **gather)
        else:
            for phase in ("forward", "backward"):
                yield from collective(
                    "all_gather", axis, n, weights, count=micro_batches, stage=stage, phase=phase,
                    what=kind,
                )  # fmt: skip
            yield from collective(
                "reduce_scatter", axis, n, gradients, count=micro_batches, **scatter
            )


def update_bytes(
    parameters: Parameters, plan: ParallelismPlan, *, zero: int, gradient_bytes: int, element: int
) -> int:
    """Return the bytes of memory that the optimizer reads and writes on a rank.

    Adam reads the gradient and reads and writes the fp32 master copy, mean and variance, then
    writes the parameter: ``g + 24 + b`` bytes for each parameter that the rank updates.
    """
    each = gradient_bytes + 2 * _MASTER_AND_MOMENTS + element
    return _divided(parameters, plan, zero >= 1) * each


def _divided(parameters: Parameters, plan: ParallelismPlan, divided: bool) -> int:
    """Return how many parameters a rank has of what replicas may divide among them."""
    if not divided:
        return parameters.total
    replicas = plan.dp * plan.cp
    return -(-parameters.dense // replicas) + -(-parameters.experts // (replicas // plan.ep))


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes on the fullest rank of a stage while a step runs."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        plan: ParallelismPlan,
        *,
        zero: int,
        gradient_bytes: int,
        element: int,
        activations: int,
    ) -> TrainingMemory:
        """Count weights, gradients and 12 bytes of optimizer state for each parameter.

        Source: Rajbhandari et al., arXiv 1910.02054, section 3.1 (K = 12 with Adam).
        """
        return cls(
            weights=_divided(parameters, plan, zero >= 3) * element,
            gradients=_divided(parameters, plan, zero >= 2) * gradient_bytes,
            optimizer=_divided(parameters, plan, zero >= 1) * _MASTER_AND_MOMENTS,
            activations=activations,
        )
