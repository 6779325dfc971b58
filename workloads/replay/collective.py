# SPDX-License-Identifier: Apache-2.0
"""The workload ``collective``: one operation at one or several sizes, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from railweave.collectives import (
    algorithm_bandwidth_Bps,
    algorithms,
    bus_bandwidth_Bps,
    canonical_op,
)
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.fields import Size  # noqa: TC001 - pydantic reads it
from railweave.fabric.nodes import Machines
from railweave.workloads.replay.links import links_between, renamed
from railweave.workloads.replay.placed import placed
from railweave.workloads.workload import WorkloadContext, WorkloadModel, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import simpy

    from railweave.fabric.schedule import Schedule

__all__ = ["CollectiveModel"]


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
    algorithm: str = Field(
        "auto",
        description="One of the operation's, or auto; under a profile NCCL's names too, and auto "
        "is what NCCL would take",
    )
    channels: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Rings, chains or trees side by side, each with a part of the buffer and "
        "connections of its own; default 1 (NCCL: up to 64, MAXCHANNELS)",
    )
    chunk: Size | None = Field(
        None,
        description="Size of the pieces that follow each other on a channel; default: a ring's "
        "share, else what takes least by the closed form (NCCL_BUFFSIZE / NCCL_STEPS: 512KiB)",
    )
    slots: int | None = Field(
        None,
        ge=1,
        description="Pieces under way on a connection at a time; default 8 (NCCL_STEPS)",
    )
    root: int | None = Field(
        None, ge=0, description="Rank that broadcasts, reduces, gathers or scatters; default 0"
    )
    repeat: int = Field(1, ge=1, le=1_000_000, description="Times in a row, of each size")
    profile: str = Field(
        "none",
        description="What NCCL makes of the GPUs: a device profile, its file, auto for the one "
        "that stands for them; none: the network alone, no launch and no protocol",
    )
    protocol: str = Field("auto", description="LL, LL128 or Simple, under a profile")
    launch: Literal["nccl-tests", "torch-eager", "cuda-graph", "custom"] = Field(
        "nccl-tests", description="How kernels are launched, under a profile"
    )


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """One size, ready to execute: what, on which devices, and what passes before each time."""

    schedule: Schedule
    devices: list[int]
    algorithm: str
    protocol: str | None = None
    before_ps: int = 0


def _row(
    planned: _Planned, size_bytes: int, *, start_ps: int, end_ps: int, bound_ps: int, repeat: int
) -> dict[str, Any]:
    """Return the row of ``result.json`` for one size.

    ``time_ps`` and ``bound_ps`` are those of one repetition (mean, rounded down); bandwidths are
    nccl-tests' in GB/s of 10^9 bytes.

    Parameters
    ----------
    planned
        What was executed.
    size_bytes
        The full logical buffer.
    start_ps, end_ps, bound_ps
        Over all ``repeat`` repetitions; the bound is of the schedules alone.
    """
    schedule = planned.schedule
    time_ps = (end_ps - start_ps) // repeat
    ranks = schedule.n_ranks - schedule.switches
    rate = algorithm_bandwidth_Bps(size_bytes, time_ps)
    bus = bus_bandwidth_Bps(schedule.op, ranks=ranks, size_bytes=size_bytes, time_ps=time_ps)
    return {
        "op": schedule.op,
        "size_bytes": size_bytes,
        "algorithm": planned.algorithm,
        **({} if planned.protocol is None else {"protocol": planned.protocol}),
        "ranks": ranks,
        "repeat": repeat,
        "start_ps": start_ps,
        "time_ps": time_ps,
        "bound_ps": bound_ps // repeat + planned.before_ps,
        "algbw_GBps": round(rate / 1e9, 6),
        "busbw_GBps": round(bus / 1e9, 6),
    }


@workload_kind(CollectiveModel)
def start(workload: CollectiveModel, context: WorkloadContext) -> simpy.Event:
    """Plan every size, then start the process that executes them."""
    with context.at("op"):
        canonical_op(workload.op)
    known = algorithms(workload.op)
    if workload.profile == "none" and workload.algorithm not in ("auto", *known):
        raise context.error(
            f"'{workload.algorithm}' is not an algorithm of {workload.op}",
            at=("algorithm",),
            expected=" | ".join(("auto", *known)),
            nearest=nearest_name(workload.algorithm, ("auto", *known)),
        )
    sizes = _sizes(workload, context)
    with context.at():
        ranks = context.place(None if workload.ranks == "all" else workload.ranks)
    if not ranks:
        raise context.error("there are no ranks", at=("ranks",), expected="at least one GPU")
    context.occupy(ranks)
    with context.at():
        planned = _planned(workload, context, ranks, sizes)
    return context.env.process(_run(workload, context, sizes, planned))


def _planned(
    workload: CollectiveModel, context: WorkloadContext, ranks: list[int], sizes: Sequence[int]
) -> list[_Planned]:
    """Plan every size; errors name the keys of the scenario."""
    hosts = [int(context.fabric.host[rank]) for rank in ranks]
    options = {
        "channels": workload.channels,
        "chunk_bytes": workload.chunk,
        "slots": workload.slots,
        "root": workload.root,
    }
    try:
        if workload.profile != "none":
            return _as_nccl(workload, context, ranks, sizes, options)
        if workload.protocol != "auto" or workload.launch != "nccl-tests":
            field = "launch" if workload.protocol == "auto" else "protocol"
            raise InputError(
                "without a device profile nothing is launched and there are no protocols",
                field=field,
                expected="'profile' beside it, auto or the name of one",
            )
        links = links_between(context.engine, ranks, hosts)
        machines = Machines(context.fabric, ranks)
        found = [
            placed(
                workload.op, machines, size_bytes=size, algorithm=workload.algorithm,
                hosts=hosts, links=links, options=options,
            )
            for size in sizes
        ]  # fmt: skip
    except InputError as error:
        raise renamed(error, {"chunk_bytes": "chunk"}) from None
    return [
        _Planned(schedule=schedule, devices=devices, algorithm=schedule.algorithm)
        for schedule, devices, _ in found
    ]


def _as_nccl(
    workload: CollectiveModel,
    context: WorkloadContext,
    ranks: list[int],
    sizes: Sequence[int],
    options: Mapping[str, int | None],
) -> list[_Planned]:
    """Plan every size as NCCL would run it on these GPUs."""
    from railweave.fabric.profiles import load_profile
    from railweave.workloads.replay.nccl import Nccl

    profile = None if workload.profile == "auto" else load_profile(workload.profile)
    nccl = Nccl(context.fabric, ranks, links=None, profile=profile, launch=workload.launch)
    nccl.links = links_between(context.engine, ranks, nccl.machines.node.tolist())
    runs = [
        nccl.run(
            workload.op, size_bytes=size, algorithm=workload.algorithm,
            protocol=workload.protocol, **options,
        )
        for size in sizes
    ]  # fmt: skip
    return [
        _Planned(
            schedule=run.schedule,
            devices=run.devices,
            algorithm=run.algorithm,
            protocol=run.protocol,
            before_ps=run.before_ps,
        )
        for run in runs
    ]


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
    sizes: tuple[int, ...],
    planned: list[_Planned],
) -> Generator[simpy.Event, Any, None]:
    if workload.start:
        yield context.env.timeout(workload.start)
    for size, one in zip(sizes, planned, strict=True):
        tag = f"{context.prefix}{one.schedule.op} {size}B"
        times = workload.repeat if one.before_ps else 1  # a launch comes before each
        start_ps = int(context.env.now)
        for _ in range(times):
            if one.before_ps:
                yield context.env.timeout(one.before_ps)
            with context.at():  # where a broken fabric leaves two ranks without a route
                record = yield context.engine.execute(
                    one.schedule, one.devices, tag=tag, repeat=workload.repeat // times
                )
        row = _row(
            one,
            size,
            start_ps=start_ps,
            end_ps=record.end_ps,
            bound_ps=record.bound_ps * times,
            repeat=workload.repeat,
        )
        context.findings.collectives.append({"workload": context.name, **row})
