# SPDX-License-Identifier: Apache-2.0
"""A step of attention replicas that share experts: DP attention with wide expert parallelism.

Each attention replica (`tp` ranks) computes its own tokens; at every layer of experts all meet, so
that each step takes what the slowest of them takes, and one without work computes a token for
nobody. What experts exchange is sized by `railweave.workloads.experts`, from the tokens that each
replica has in the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.compute import BLOCK_OVERHEAD_PS, StageTimer
from railweave.workloads.compute_runs import step_flops
from railweave.workloads.expert_compute import expert_block_ps
from railweave.workloads.inference import StepOps, StepStyle, padded_tokens
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes_model import DTYPE_BYTES, MoeFeedForward, dtype_bytes
from railweave.workloads.step_layers import Busy, Item, Lane, layer_items, together
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.workloads.shapes_model import LayerShape, ModelShape
    from railweave.workloads.works import Work

__all__ = ["WideStage"]


class WideStage:
    """All of a model over the ranks of attention replicas that share its experts.

    Parameters
    ----------
    shape, plan, style
        The model, how it is divided (``pp`` 1), and how experts are reached.
    gpu
        What the ranks run on.
    devices, hosts
        Device index and host of the GPU of every rank, attention replica by attention replica.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    """

    def __init__(
        self,
        shape: ModelShape,
        plan: ParallelismPlan,
        style: StepStyle,
        *,
        gpu: GpuModel,
        devices: Sequence[int],
        hosts: Sequence[int],
        dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        self._shape, self._plan, self._style, self._gpu = shape, plan, style, gpu
        self._dtype = dtype
        self._timer = StageTimer(
            shape, ParallelismPlan(tp=plan.tp), gpu, dtype=dtype, kv_dtype=kv_dtype
        )
        activations = dtype if dtype in DTYPE_BYTES and dtype != "fp8" else None
        self._element = dtype_bytes(activations or shape.dtype)
        self.devices, self._hosts = tuple(devices), tuple(hosts)
        self._kinds = list(dict.fromkeys(shape.layers))
        self._order = [self._kinds.index(layer) for layer in shape.layers]

    @property
    def members(self) -> int:
        """Attention replicas."""
        return self._plan.dp

    def works(self, loads: Sequence[StepLoad]) -> list[Work]:
        """Return the parts of a step that computes ``loads``, one for each attention replica."""
        padded = padded_tokens([load.tokens for load in loads], self._plan, self._style)
        parts = StepOps(self._shape, self._plan, self._style, self._element, padded)
        mixing, feed, head_ps = self._times(loads, padded)
        items = [
            layer_items(parts, 0, kind, (mixing[number], feed[number]))
            for number, kind in enumerate(self._kinds)
        ]
        rows = [load.logits_rows if load.tokens else 0 for load in loads]
        after: list[Item] = [Busy(head_ps), *together(parts.head(0, rows))]
        lane = Lane(self._plan, tuple(range(self.members)), self.devices, self._hosts)
        return [
            *lane.works(together(parts.summed(0, what="embedding")), 0),
            *lane.layer_works(items, self._order, 0),
            *lane.works(after, 0),
        ]

    def least_ps(self, load: StepLoad) -> int:
        """Return a lower bound of a step that computes ``load`` on one attention replica, in ps.

        The arithmetic alone, the others computing a token each: what experts exchange depends on
        the draw of all tokens, and may be less with more of them.
        """
        loads = [load] + [StepLoad(())] * (self.members - 1)
        padded = padded_tokens([load.tokens for load in loads], self._plan, self._style)
        mixing, feed, head_ps = self._times(loads, padded)
        return head_ps + sum(mixing[number] + feed[number] for number in self._order)

    def flops(self, load: StepLoad) -> int:
        """Return the floating-point operations of a rank for the tokens of its replica."""
        return step_flops(self._timer, load) if load.tokens else 0

    def _times(
        self, loads: Sequence[StepLoad], padded: Sequence[int]
    ) -> tuple[list[int], list[int], int]:
        """Return the block times of each kind of layer and of the head, of the slowest, in ps."""
        mixing, feed, head = [0] * len(self._kinds), [0] * len(self._kinds), 0
        for load, most in zip(loads, padded, strict=True):
            dummies = max(most - load.tokens, 0)
            own = StepLoad((*load.sequences, *((1, 0),) * dummies), rows=load.logits_rows)
            costs, head_ps = self._timer.times(own)
            head = max(head, head_ps)
            for number, (kind, cost) in enumerate(zip(self._timer.kinds, costs, strict=True)):
                mixing[number] = max(mixing[number], cost.attention_ps)
                own_ps = self._feed_ps(kind, cost.feed_forward_ps, most, padded)
                feed[number] = max(feed[number], own_ps)
        return mixing, feed, head

    def _feed_ps(self, kind: LayerShape, plain_ps: int, tokens: int, padded: Sequence[int]) -> int:
        block = kind.feed_forward
        if self._plan.ep == 1 or not isinstance(block, MoeFeedForward):
            return plain_ps
        return expert_block_ps(
            self._shape, block, self._plan, self._gpu, tokens=tokens, group_tokens=sum(padded),
            dtype=self._dtype, overhead_ps=BLOCK_OVERHEAD_PS,
        )  # fmt: skip
