# SPDX-License-Identifier: Apache-2.0
"""The workload ``collective``: one operation at one or several sizes, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from railweave.collectives import (
    algorithm_bandwidth_Bps,
    algorithms,
    bus_bandwidth_Bps,
    canonical_op,
    plan,
)
from railweave.fabric.fields import Size  # noqa: TC001 - pydantic reads it
from railweave.workloads.workload import WorkloadContext, WorkloadModel, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.engine import CollectiveRecord
    from railweave.fabric.schedule import Schedule

__all__ = ["CollectiveModel", "collective_row"]


class CollectiveModel(WorkloadModel):
    """One collective operation, repeated over sizes."""

    kind: Literal["collective"]
    op: str = Field(
        description="As torch.distributed or nccl-tests call it", examples=["all_reduce"]
    )
    size: Size | None = Field(None, description="The full logical buffer")
    sizes: tuple[Size, ...] | None = Field(None, description="Several, one after another")
    ranks: Literal["all"] | Annotated[int, Field(ge=1)] = Field(
        "all", description="How many GPUs take part"
    )
    algorithm: str = Field("auto", description="One of the operation's, or auto")
    repeat: int = Field(1, ge=1, le=1_000_000, description="Times in a row, of each size")


def collective_row(record: CollectiveRecord, schedule: Schedule, size_bytes: int) -> dict[str, Any]:
    """Return the row of ``result.json`` for one size.

    ``time_ps`` and ``bound_ps`` are those of one repetition (mean, rounded down); bandwidths are
    nccl-tests' in GB/s of 10^9 bytes.

    Parameters
    ----------
    record
        What the engine measured, over all repetitions.
    schedule
        What was executed: it names operation and algorithm.
    size_bytes
        The full logical buffer.
    """
    time_ps = (record.end_ps - record.start_ps) // record.repeat
    rate = algorithm_bandwidth_Bps(size_bytes, time_ps)
    bus = bus_bandwidth_Bps(schedule.op, ranks=record.ranks, size_bytes=size_bytes, time_ps=time_ps)
    return {
        "op": schedule.op,
        "size_bytes": size_bytes,
        "algorithm": schedule.algorithm,
        "ranks": record.ranks,
        "repeat": record.repeat,
        "start_ps": record.start_ps,
        "time_ps": time_ps,
        "bound_ps": record.bound_ps // record.repeat,
        "algbw_GBps": round(rate / 1e9, 6),
        "busbw_GBps": round(bus / 1e9, 6),
    }


@workload_kind(CollectiveModel)
def start(workload: CollectiveModel, context: WorkloadContext) -> simpy.Event:
    """Plan every size, then start the process that executes them."""
    with context.at("op"):
        canonical_op(workload.op)
    if workload.algorithm != "auto" and workload.algorithm not in algorithms(workload.op):
        known = algorithms(workload.op)
        raise context.error(
            f"'{workload.algorithm}' is not an algorithm of {workload.op}",
            at=("algorithm",),
            expected=" | ".join(("auto", *known)),
        )
    sizes = _sizes(workload, context)
    with context.at():
        ranks = context.place(None if workload.ranks == "all" else workload.ranks)
    if not ranks:
        raise context.error("there are no ranks", at=("ranks",), expected="at least one GPU")
    context.occupy(ranks)
    hosts = [int(context.fabric.host[rank]) for rank in ranks]
    with context.at():
        schedules = [
            plan(
                workload.op,
                ranks=len(ranks),
                size_bytes=size,
                algorithm=workload.algorithm,
                hosts=hosts,
            )
            for size in sizes
        ]
    return context.env.process(_run(workload, context, ranks, sizes, schedules))


def _sizes(workload: CollectiveModel, context: WorkloadContext) -> tuple[int, ...]:
    if (workload.size is None) == (workload.sizes is None):
        raise context.error("it names no size once", at=("size",), expected="either size or sizes")
    sizes = workload.sizes if workload.size is None else (workload.size,)
    if not sizes:
        raise context.error("there are no sizes", at=("sizes",), expected="at least one size")
    return sizes


def _run(
    workload: CollectiveModel,
    context: WorkloadContext,
    ranks: list[int],
    sizes: tuple[int, ...],
    schedules: list[Schedule],
) -> Generator[simpy.Event, Any, None]:
    if workload.start:
        yield context.env.timeout(workload.start)
    for size, schedule in zip(sizes, schedules, strict=True):
        tag = f"{context.prefix}{schedule.op} {size}B"
        with context.at():  # where a broken fabric leaves two ranks without a route
            record = yield context.engine.execute(schedule, ranks, tag=tag, repeat=workload.repeat)
        row = {"workload": context.name, **collective_row(record, schedule, size)}
        context.findings.collectives.append(row)
