# SPDX-License-Identifier: Apache-2.0
"""What a replica does in one step: compute blocks and collectives, as schedules per stage.

Per stage: gather what the stage before sent; the all_reduce of the embedding (first stage); per
layer attention, all_reduce, feed-forward, all_reduce (one in all where both work side by side, and
none for a block that a layer does not have); output head and all_gather of the logits
(last stage); sends to the next stage. Sizes are those of `railweave.workloads.inference`.

A stage whose links nobody else uses, as NVLink within a host, does all of its collectives in a row
and then computes: the step takes the same to the picosecond, and an engine that remembers spans has
only one to know for each batch size, for many steps in a row. Elsewhere compute and collectives
alternate as they do in the model, because then it matters when the links are busy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from railweave.collectives import plan as plan_collective
from railweave.fabric.chain import chain, parallel, work
from railweave.workloads.compute import StageTimer
from railweave.workloads.compute_runs import decode_times, later, step_flops
from railweave.workloads.inference import step_ops
from railweave.workloads.shapes_model import DTYPE_BYTES
from railweave.workloads.works import Work, repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import GpuModel
    from railweave.fabric.schedule import Schedule
    from railweave.workloads.compute import BlockCost, StepLoad
    from railweave.workloads.inference import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import LayerShape, ModelShape

__all__ = ["Stage"]


def _send(op: TrafficOp, tp: int) -> Schedule:
    """Return the messages from each rank of a stage to its peer; ranks of both stages in a row."""
    pairs = tuple((r, tp + r) for r in range(tp)) * op.count
    return parallel(2 * tp, pairs, (op.size_bytes,) * len(pairs))


class Stage:
    """One pipeline stage of a replica: makes the parts of each of its steps.

    Parameters
    ----------
    shape, plan
        The model and how it is divided.
    stage
        Which stage.
    gpu
        What its ranks run on.
    devices
        Device index of the GPU of every rank of the replica.
    hosts
        Host of every rank of the replica.
    alternate
        Let compute and collectives alternate layer by layer.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    """

    def __init__(
        self,
        shape: ModelShape,
        plan: ParallelismPlan,
        stage: int,
        *,
        gpu: GpuModel,
        devices: Sequence[int],
        hosts: Sequence[int],
        alternate: bool = True,
        dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        self._shape, self._plan, self._stage = shape, plan, stage
        self._activations = dtype if dtype in DTYPE_BYTES and dtype != "fp8" else None
        self._timer = StageTimer(shape, plan, gpu, stage=stage, dtype=dtype, kv_dtype=kv_dtype)
        self._runs = repeats(self._timer.order)
        self._alternate = alternate
        self._devices = tuple(devices)
        self._own = tuple(devices[r] for r in plan.tp_group(stage))
        self._hosts = tuple(hosts[r] for r in plan.tp_group(stage))
        self._ops: dict[tuple[str, int, int], _Ops] = {}
        self._counts = Counter(self._timer.order)

    def works(self, load: StepLoad) -> list[Work]:
        """Return the parts of the step that computes ``load``."""
        blocks, head_ps = self._timer.times(load)
        ops = self._of(load)
        works = [*ops.gathers]
        if ops.reduce is None or not self._alternate:
            if ops.reduce is not None:
                works.append(Work(self._own, ops.reduce, ops.reduces))
            works += [Work(self._own, schedule) for schedule in ops.logits]
            compute_ps = sum(blocks[kind].total_ps * n for kind, n in self._counts.items())
            works.append(Work(wait_ps=compute_ps + head_ps))
            return works + ops.sends
        kinds = self._timer.kinds
        layers = sum(kinds[kind].reductions for kind in self._timer.order)
        if ops.reduces > layers:  # that of the embedding
            works.append(Work(self._own, ops.reduce, ops.reduces - layers))
        for pattern, times in self._runs:
            parts = [
                part
                for kind in pattern
                for part in self._layer(kinds[kind], blocks[kind], ops.reduce)
            ]
            works.append(Work(self._own, chain(parts, op="layer"), times))
        if head_ps:
            parts = [work(self._plan.tp, head_ps), *ops.logits]
            works.append(Work(self._own, chain(parts, op="head")))
        return works + ops.sends

    def _layer(self, layer: LayerShape, cost: BlockCost, reduce: Schedule) -> list[Schedule]:
        """Return a layer's blocks, each before the sums of its outputs."""
        after_mixing, after_feeding = layer.reductions_after
        parts = [work(self._plan.tp, cost.attention_ps)] if cost.attention_ps else []
        parts += [reduce] * after_mixing
        if cost.feed_forward_ps:
            parts.append(work(self._plan.tp, cost.feed_forward_ps))
        return parts + [reduce] * after_feeding

    @property
    def steady(self) -> bool:
        """Whether iterations may be done many at a time: all of the model, on links of its own."""
        return self._plan.pp == 1 and not self._alternate

    def iteration(self, load: StepLoad) -> list[tuple[Schedule, int]]:
        """Return the schedules of an iteration, and how often each runs in a row."""
        ops = self._of(load)
        parts = [] if ops.reduce is None else [(ops.reduce, ops.reduces)]
        return parts + [(schedule, 1) for schedule in ops.logits]

    def times(self, load: StepLoad, iterations: int) -> list[int]:
        """Return the compute time in ps of each of some decode iterations in a row."""
        return decode_times(self._timer, load, iterations)

    def flops(self, load: StepLoad, iterations: int = 1) -> int:
        """Return the floating-point operations of a rank in so many iterations.

        Those of many are taken to grow evenly from the first to the last.
        """
        first = step_flops(self._timer, load)
        if iterations == 1:
            return first
        return (first + step_flops(self._timer, later(load, iterations - 1))) * iterations // 2

    def _of(self, load: StepLoad) -> _Ops:
        """Return the operations of a step of this size; they recur, so they are kept."""
        single = all(new == 1 for new, _ in load.sequences)
        key = ("decode" if single else "prefill", load.tokens, load.logits_rows)
        known = self._ops.get(key)
        if known is None:
            known = self._ops[key] = self._make_ops(*key)
        return known

    def _make_ops(self, phase: str, tokens: int, rows: int) -> _Ops:
        ops = _Ops()
        found = step_ops(
            self._shape,
            self._plan,
            phase=phase,
            tokens=tokens,
            rows=rows,
            dtype=self._activations,
        )
        for op in found:
            if op.stage != self._stage:
                continue
            if op.to_stage is not None:
                there = [self._devices[r] for r in self._plan.tp_group(op.to_stage)]
                ops.sends.append(Work((*self._own, *there), _send(op, self._plan.tp)))
                continue
            schedule = plan_collective(
                op.op, ranks=self._plan.tp, size_bytes=op.size_bytes, hosts=self._hosts
            )
            if op.op == "all_reduce":  # of hidden states, all of one size
                ops.reduce, ops.reduces = schedule, ops.reduces + op.count
            elif op.what == "logits":
                ops.logits.append(schedule)
            else:
                ops.gathers.append(Work(self._own, schedule, op.count))
        return ops


@dataclass
class _Ops:
    """The operations of a stage's step, sized: before its layers, within and after them."""

    gathers: list[Work] = field(default_factory=list)
    reduce: Schedule | None = None
    reduces: int = 0
    logits: list[Schedule] = field(default_factory=list)
    sends: list[Work] = field(default_factory=list)
