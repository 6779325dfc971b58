# SPDX-License-Identifier: Apache-2.0
"""The workload ``collective``: one operation at one or several sizes, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from railweave.collectives import (
    algorithm_bandwidth_Bps,
    algorithms,
    bus_bandwidth_Bps,
    canonical_op,
    plan,
)
from railweave.collectives.algorithm import Links
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.fields import Size  # noqa: TC001 - pydantic reads it
from railweave.fabric.units import PS_PER_S
from railweave.workloads.workload import WorkloadContext, WorkloadModel, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import simpy

    from railweave.fabric.engine import CollectiveRecord, Engine
    from railweave.fabric.schedule import Schedule

__all__ = ["CollectiveModel", "collective_row", "links_between", "renamed"]

_LONG_BYTES: Final = 2**26  # a message whose time is its size over the rate


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


def links_between(engine: Engine, ranks: Sequence[int], hosts: Sequence[int]) -> Links | None:
    """Return what a message between two ranks costs on an idle network, or None if none gets there.

    Parameters
    ----------
    engine
        Over the fabric and with the settings that count.
    ranks, hosts
        Device index of each rank's GPU, and its host. Between hosts the first ranks of the first
        and of the last host are looked at, within one its first and last rank.
    """
    first, last = hosts.index(hosts[0]), hosts.index(hosts[-1])
    within = max(at for at, host in enumerate(hosts) if host == hosts[0])
    try:
        local = _message(engine, ranks[first], ranks[within]) if within != first else None
        across = _message(engine, ranks[first], ranks[last]) if last != first else None
    except UnreachableError:
        return None  # whoever sends there says so
    between, inside = across or local, local or across
    if between is None or inside is None:
        return None
    return Links(
        alpha_ps=between[0],
        rate_bps=between[1],
        local_alpha_ps=inside[0],
        local_rate_bps=inside[1],
    )


def _message(engine: Engine, source: int, target: int) -> tuple[int, int]:
    """Return latency in ps and rate in bit/s of messages between two GPUs."""
    alpha_ps, long_ps = (
        engine.bound_ps(plan("send", ranks=2, size_bytes=size, algorithm="pair"), [source, target])
        for size in (0, _LONG_BYTES)
    )
    return alpha_ps, max(round(_LONG_BYTES * 8 * PS_PER_S / max(long_ps - alpha_ps, 1)), 1)


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
    links = links_between(context.engine, ranks, hosts)
    with context.at():
        schedules = [_planned(workload, size, len(ranks), hosts, links) for size in sizes]
    return context.env.process(_run(workload, context, ranks, sizes, schedules))


def _planned(
    workload: CollectiveModel, size: int, ranks: int, hosts: list[int], links: Links | None
) -> Schedule:
    """Plan one size; errors name the key of the scenario."""
    try:
        return plan(
            workload.op,
            ranks=ranks,
            size_bytes=size,
            algorithm=workload.algorithm,
            hosts=hosts,
            links=links,
            channels=workload.channels,
            chunk_bytes=workload.chunk,
            slots=workload.slots,
            root=workload.root,
        )
    except InputError as error:
        raise renamed(error, {"chunk_bytes": "chunk"}) from None


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """Return an error that speaks of options by the names that ``names`` gives them."""
    if error.field is None:
        return error
    message, expected = error.message, error.expected
    for name, shown in names.items():
        message = message.replace(f"'{name}'", f"'{shown}'")
        expected = expected.replace(name, shown) if expected else expected
    return InputError(
        message,
        file=error.file,
        line=error.line,
        field=names.get(error.field, error.field),
        expected=expected,
        nearest=error.nearest,
    )


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
