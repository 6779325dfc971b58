# SPDX-License-Identifier: Apache-2.0
"""``railweave perf``: nccl-tests' table of a collective, emulated."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.fabric.errors import InputError
from railweave.tools.output import check_free, emit, emit_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from railweave.tools.bench import Bench, BenchRow

__all__ = ["nccl_size_bytes", "perf", "size_ladder"]

# nccl-tests (src/common.cu, parsesize): K, M and G are powers of 1024; a bare number is bytes.
_NCCL_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.IGNORECASE)
_NCCL_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_FLOAT_BYTES: Final = 4  # nccl-tests' default data type
_MOST_SIZES: Final = 100_000


def perf(
    op: Annotated[str, typer.Argument(help="all_reduce, all_gather, alltoall, broadcast, ...")],
    topology: Annotated[
        str, typer.Option("--topology", "-T", help="A topology file or a shipped design.")
    ],
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-g", "--ngpus", help="GPUs, the first ones (default: all)."),
    ] = None,
    begin: Annotated[
        str, typer.Option("-b", "--minbytes", help="First size; here alone 1M means 1MiB.")
    ] = "1M",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Last size.")] = "1G",
    factor: Annotated[
        int | None, typer.Option("-f", "--stepfactor", help="Next size over size (default: 2).")
    ] = None,
    step: Annotated[
        str | None, typer.Option("-i", "--stepbytes", help="Next size minus size, in place of -f.")
    ] = None,
    iterations: Annotated[
        int, typer.Option("-n", "--iters", min=1, max=1_000_000, help="Runs of each size.")
    ] = 1,
    warmup: Annotated[
        int, typer.Option("-w", "--warmup_iters", min=0, max=1_000_000, help="Runs before those.")
    ] = 0,
    algorithm: Annotated[
        str,
        typer.Option(
            help="auto: what NCCL would take; Ring, Tree, NVLS, NVLSTree, PAT; hierarchical, ..."
        ),
    ] = "auto",
    protocol: Annotated[str, typer.Option(help="auto, LL, LL128 or Simple.")] = "auto",
    profile: Annotated[
        str,
        typer.Option(
            help="Device profile, a name or a file; auto: by the GPUs; none: the network alone."
        ),
    ] = "auto",
    launch: Annotated[
        str, typer.Option(help="Launch mode: nccl-tests, torch-eager, cuda-graph, custom.")
    ] = "nccl-tests",
    channels: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Rings, chains or trees side by side (default: 1; NCCL: up to 64)."
        ),
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(help="Size of pieces that follow each other (NCCL: 512K; default: the best)."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Pieces under way on a connection (default: 8, as NCCL)."),
    ] = None,
    root: Annotated[
        int | None,
        typer.Option("-r", "--root", min=0, help="Root of a broadcast, reduce, gather, scatter."),
    ] = None,
    engine: Annotated[str, typer.Option(help="analytic, fluid or packet.")] = "fluid",
    routing: Annotated[str, typer.Option(help="ecmp, ecmp-polarised, rail or spray.")] = "ecmp",
    qps: Annotated[int, typer.Option(min=1, max=4096, help="Queue pairs per connection.")] = 1,
    qp_mode: Annotated[
        str,
        typer.Option(help="split: each message over all; round-robin: one message each in turn."),
    ] = "split",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the routing hash.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    report: Annotated[
        Path | None,
        typer.Option("-J", "--report", help="Write nccl-tests' JSON to a new file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of -J.")] = False,
) -> None:
    """Time a collective over a range of sizes, in nccl-tests' columns.

    Under a device profile the times are those of NCCL: launch, protocol, efficiency of the links,
    and the algorithm that NCCL would choose. Runs of an emulation do not differ, so that -n and -w
    matter only to the table's form.

    Busbw is algbw times the operation's factor (nccl-tests, doc/PERFORMANCE.md) and may exceed a
    link's rate where part of the traffic stays inside hosts; wire is what the busiest link
    really carried, headers included, and never does.
    """
    sizes = list(size_ladder(begin, end, factor, step))
    check_free(report, force=force)
    from railweave.tools.bench import Bench

    bench = Bench(
        op,
        topology=topology,
        ranks=ranks,
        algorithm=algorithm,
        channels=channels,
        chunk_bytes=None if chunk is None else nccl_size_bytes(chunk, field="--chunk"),
        slots=slots,
        root=root,
        profile=profile,
        protocol=protocol,
        launch=launch,
        iterations=iterations,
        warmup=warmup,
        engine=engine,
        policy=routing,
        qps=qps,
        qp_mode=qp_mode,
        seed=seed,
    )
    rows: Iterator[BenchRow] = (bench.run(size_bytes) for size_bytes in sizes)
    kept: list[BenchRow] = []
    rows = _keeping(rows, kept)
    if json:
        emit_json(
            {
                "op": bench.op,
                "topology": bench.fabric.name,
                "ranks": bench.ranks,
                "engine": engine,
                "profile": bench.profile_name,
                "network": bench.network_name,
                "launch": launch,
                "seed": seed,
                "rows": [_json_row(row) for row in rows],
            }
        )
    else:
        _print_table(bench, rows, engine=engine, root=root or 0)
    if report is not None:
        from railweave.tools.nccl_json import nccl_tests_json

        text = nccl_tests_json(
            bench, kept, root=root or 0, step_factor=None if step else factor or 2,
            step_bytes=nccl_size_bytes(step, field="-i") if step else None,
        )  # fmt: skip
        try:
            report.write_text(text, "utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"'{report}' cannot be written ({reason})", field="-J") from None


def _keeping(rows: "Iterable[BenchRow]", kept: "list[BenchRow]") -> "Iterator[BenchRow]":
    for row in rows:
        kept.append(row)
        yield row


def nccl_size_bytes(text: str, *, field: str = "") -> int:
    """Read a size as nccl-tests does (``1M`` is 1 MiB), or with its unit (``1MiB``, ``64kB``).

    Examples
    --------
    >>> nccl_size_bytes("1M"), nccl_size_bytes("8"), nccl_size_bytes("64kB")
    (1048576, 8, 64000)

    Raises
    ------
    InputError
        It is neither.
    """
    from railweave.fabric.units import parse_size_bytes

    match = _NCCL_SIZE.fullmatch(text.strip())
    if match is not None:
        number, unit = match.groups()
        return int(float(number) * 2 ** _NCCL_UNITS[unit.upper()])
    try:
        return parse_size_bytes(text)
    except InputError as error:
        raise error.located(field=field) from None


def size_ladder(
    begin: str, end: str, factor: int | None = None, step: str | None = None
) -> "Iterator[int]":
    """Yield the sizes in bytes from ``begin`` to ``end``.

    Each is ``factor`` times (default: twice) the one before, or ``step`` bytes more.
    """
    first = nccl_size_bytes(begin, field="-b")
    last = nccl_size_bytes(end, field="-e")
    if first < 1:
        raise InputError(f"'{begin}' is no size to start from", field="-b", expected="at least 1")
    if last < first:
        raise InputError(f"'{end}' is below -b {begin}", field="-e", expected=f"{begin} or more")
    if factor is not None and step is not None:
        raise InputError("both are given", field="-f", expected="either -f or -i")
    if factor is not None and factor < 2:
        raise InputError(f"{factor} never reaches -e {end}", field="-f", expected="2 or more")
    more = 0 if step is None else nccl_size_bytes(step, field="-i")
    if step is not None and more < 1:
        raise InputError(f"'{step}' never reaches -e {end}", field="-i", expected="at least 1")
    if more and (last - first) // more >= _MOST_SIZES:
        raise InputError(
            f"'{step}' makes {(last - first) // more + 1} sizes",
            field="-i",
            expected=f"at most {_MOST_SIZES}",
        )
    while first <= last:
        yield first
        first = first + more if more else first * (factor or 2)


def _json_row(row: "BenchRow") -> dict[str, Any]:
    return {
        "size_bytes": row.size_bytes,
        "time_us": row.time_ps / 1e6,
        "algbw_GBps": row.algorithm_Bps / 1e9,
        "busbw_GBps": row.bus_Bps / 1e9,
        "wire_GBps": row.wire_Bps / 1e9,
        "bound_us": row.bound_ps / 1e6,
        "algorithm": row.algorithm,
        "protocol": row.protocol or None,
    }


def _print_table(bench: "Bench", rows: "Iterator[BenchRow]", *, engine: str, root: int) -> None:
    """Print rows as they come: nccl-tests' out-of-place columns, then railweave's own."""
    from railweave.tools.nccl_json import REDUCING, ROOTED, shards

    op = bench.op
    redop = "sum" if op in REDUCING else "none"
    shown_root = str(root) if op in ROOTED else "-1"
    emit(f"# railweave perf {op}: {bench.ranks} ranks on {bench.fabric.name}, {engine} engine")
    profile = bench.profile_name
    network = f", network {bench.network_name}" if bench.network_name else ""
    emit(f"# profile {profile}{network}" + (": no launch, no protocol" * (profile == "none")))
    emit("#")
    layout = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>10}  {:>7}  {:>7}  {:>7}  {:>10}  {:>12}  {}"
    names = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "wire", "bound")
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "(GB/s)", "(us)")
    emit("#" + layout.format(*names, "algorithm", "protocol")[1:])
    emit("#" + layout.format(*units, "", "")[1:].rstrip())
    total, number, last = 0.0, 0, None
    for row in rows:
        count = row.size_bytes // _FLOAT_BYTES // shards(op, bench.ranks)
        rates = (row.algorithm_Bps, row.bus_Bps, row.wire_Bps)
        emit(
            layout.format(
                row.size_bytes,
                count,
                "float",
                redop,
                shown_root,
                _significant(row.time_ps / 1e6),
                *(f"{rate / 1e9:.2f}" for rate in rates),
                _significant(row.bound_ps / 1e6),
                row.algorithm,
                row.protocol or "-",
            )
        )
        total, number, last = total + row.bus_Bps, number + 1, row
    emit(f"# Avg bus bandwidth    : {total / number / 1e9:.4g}")
    if last is not None:
        rate = last.busiest_bps / 8e9
        emit(f"# wire: the busiest link, last {last.busiest} of {rate:g} GB/s, headers included")


def _significant(value: float) -> str:
    """Return a time with four significant digits, all of them where it is large."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
