# SPDX-License-Identifier: Apache-2.0
"""A training step with sharded parameters: ZeRO-3, as FSDP runs it.

Each layer is gathered before its forward and before its backward pass, one layer ahead of the
compute (``forward_prefetch`` and ``BACKWARD_PRE`` of torch's FSDP), and its gradients are scattered
after the backward pass, all under cover of other layers. Tables and head are a unit of their own,
gathered before the first layer and again before the backward pass. Every micro-batch does so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from railweave.workloads.optimizer import data_parallel_ops
from railweave.workloads.replay.step_graph import StepGraph, Task
from railweave.workloads.shares import layer_parameters, outer_parameters
from railweave.workloads.step_layers import Busy

if TYPE_CHECKING:
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.replay.training_graph import TrainingStep
    from railweave.workloads.shares import Parameters

__all__ = ["sharded_graph"]

_AHEAD = 2  # the gather of a layer may begin when the compute of the second one before has ended


def _ops(step: TrainingStep, held: Parameters) -> dict[str, list[TrafficOp]]:
    """Return a unit's operations of one micro-batch by phase."""
    found: dict[str, list[TrafficOp]] = {"forward": [], "backward": [], "gradients": []}
    for op in data_parallel_ops(
        held, step.plan, stage=0, zero=3, gradient_bytes=step.style.gradient_bytes,
        element=step.style.element,
    ):  # fmt: skip
        found[op.phase].append(replace(op, count=1))
    return found


class _Units:
    """Adds the tasks of all micro-batches."""

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.graph = StepGraph()
        shape, plan = step.shape, step.plan
        self.outer = _ops(step, outer_parameters(shape, plan, 0))
        self.layers = [
            _ops(step, layer_parameters(layer, shape.hidden_size, plan)) for layer in shape.layers
        ]
        self.lanes = range(len(step.lanes))
        self.compute: list[int | None] = [None] * len(step.lanes)  # last compute task of each
        self.moved: int | None = None  # last task of data parallelism: they take turns

    def collective(self, ops: list[TrafficOp], name: str, after: list[int | None]) -> None:
        for op in ops:
            task = self.step.collective(op, name, "dp")
            self.moved = self.graph.add(task, (self.moved, *after))

    def passes(self, micro_batch: int, phase: str) -> None:
        """Add one pass of a micro-batch, with its gathers and scatters."""
        step = self.step
        order = range(step.shape.n_layers)
        units = list(order) if phase == "forward" else list(reversed(order))
        pieces = [step.pieces(lane, 0, 0, phase) for lane in self.lanes]
        ended: list[list[int | None]] = [list(self.compute)] * _AHEAD
        self.collective(self.outer[phase], "tables", ended[0])
        for place, layer in enumerate(units):
            self.collective(self.layers[layer][phase], f"layer {layer}", ended[-_AHEAD])
            gathered = self.moved
            now: list[int | None] = []
            for lane in self.lanes:
                works, compute_ps = pieces[lane][place]
                name = f"{phase} {micro_batch} layer {layer}"
                task = Task(name, 0, "compute", works, compute_ps, lane)
                self.compute[lane] = self.graph.add(task, (self.compute[lane], gathered))
                now.append(self.compute[lane])
            ended.append(now)
            if phase == "backward":
                self.collective(self.layers[layer]["gradients"], f"layer {layer}", now)
        if phase == "backward":
            self.collective(self.outer["gradients"], "tables", list(self.compute))


def sharded_graph(step: TrainingStep) -> StepGraph:
    """Return the step of a job with ZeRO-3.

    Parameters
    ----------
    step
        The job; one stage.
    """
    units = _Units(step)
    for micro_batch in range(step.style.micro_batches):
        units.passes(micro_batch, "forward")
        units.passes(micro_batch, "backward")
    update_ps = step.update_ps(0)
    works = step.everyone().works([Busy(update_ps)], 0)
    task = Task("optimizer", 0, "compute", works, update_ps)
    units.graph.add(task, (*units.compute, units.moved))
    return units.graph
