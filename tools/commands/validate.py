# SPDX-License-Identifier: Apache-2.0
"""``railweave validate``: predicted against measured."""

import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

import typer

from railweave.fabric.errors import CheckError, InputError
from railweave.tools.commands.measured_options import (
    GpusPerNode,
    Measured,
    MeasuredOn,
    Nodes,
    Op,
    UsedProfile,
)
from railweave.tools.output import aligned, check_free, emit, emit_json, note, paint, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.measured.judging import Judged

__all__ = ["validate"]

_TITLES: Final = {"small": "<= 64 KiB", "mid": "to 8 MiB", "large": "above"}


def validate(
    measured: Measured,
    topology: MeasuredOn = None,
    profile: UsedProfile = None,
    op: Op = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    fail_above: Annotated[
        str | None, typer.Option(help="Exit with 1 if a band's error is above, such as 15%.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw busbw over size as SVG into this file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the plot if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hold predictions against measurements, row by row and by bands of sizes.

    The error of a band is exp(mean |ln(predicted/measured)|) - 1. Without --topology and --profile
    both come from what the file says of its hardware.
    """
    limit = None if fail_above is None else percentage(fail_above, field="--fail-above")
    check_free(plot, force=force)
    from railweave.tools.measured.opening import Given, open_measured

    given = Given(
        topology=topology, profile=profile, nodes=nodes, gpus_per_node=gpus_per_node, op=op
    )
    judged = open_measured(measured, given)
    if plot is not None:
        from railweave.tools.measured.plot import plot_svg

        write_output(plot, plot_svg(judged), force=force)
        note(f"wrote {plot}")
    if json:
        emit_json(
            {
                "datasets": [one.as_json() for one in judged],
                "findings": [
                    {"dataset": f.dataset, "kind": f.kind, "line": f.line, "what": f.what}
                    for one in judged
                    for f in one.findings
                ],
            }
        )
    else:
        for one in judged:
            _show(one)
        _show_bands(judged)
    if limit is not None:
        _check(judged, limit)


def percentage(text: str, *, field: str) -> float:
    """Read a share such as ``15%`` or ``0.15``.

    Examples
    --------
    >>> percentage("15%", field=""), percentage("0.2", field="")
    (0.15, 0.2)

    Raises
    ------
    InputError
        It is neither.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if not match:
        raise InputError(f"'{text}' is not a share", field=field, expected="such as 15% or 0.15")
    return float(match[1]) / (100 if match[2] else 1)


def _check(judged: "Sequence[Judged]", limit: float) -> None:
    from railweave.tools.measured.judging import BANDS, geomean_error

    over = [
        f"{one.data.name} {_TITLES[name]} {error:.1%}"
        for one in judged
        for name in BANDS
        if (rows := one.band(name)) and (error := geomean_error(rows)) > limit
    ]
    if not any(one.rows for one in judged):
        raise CheckError("nothing could be predicted, so nothing holds --fail-above")
    if over:
        more = f" and {len(over) - 5} more" if len(over) > 5 else ""
        raise CheckError(f"above {limit:.4g}: {'; '.join(over[:5])}{more}")


def _show(one: "Judged") -> None:
    data = one.data
    place = f"{data.nodes} x {data.gpus_per_node}" if data.ranks else "size not known"
    title = "  ".join(part for part in (data.name, data.hardware, place, data.link) if part)
    emit(paint(title, "bold") + f"  profile {one.profile or 'none'}")
    rows = [
        (
            found.row.op,
            found.row.size_bytes,
            f"{found.row.time_us:.4g}",
            f"{found.predicted_us:.4g}",
            f"{found.ratio:.3f}",
            found.algorithm,
        )
        for found in one.rows
    ]
    if rows:
        header = ("op", "size B", "measured us", "predicted us", "ratio", "algorithm")
        emit(aligned(rows, header=header, right=(1, 2, 3, 4), indent="  "))
    for finding in one.findings:
        where = f"line {finding.line}: " if finding.line else ""
        emit(f"  {finding.kind}: {where}{finding.what}")
    for skip in one.skipped:
        emit(f"  left out: {f'line {skip.line}: ' if skip.line else ''}{skip.why}")
    emit("")


def _show_bands(judged: "Sequence[Judged]") -> None:
    from railweave.tools.measured.judging import BANDS, geomean_error

    errors: dict[str, list[float]] = {name: [] for name in BANDS}
    table = []
    for one in judged:
        cells = []
        for name in BANDS:
            rows = one.band(name)
            if rows:
                errors[name].append(geomean_error(rows))
            cells.append(f"{geomean_error(rows):.1%} of {len(rows)}" if rows else "-")
        if one.rows:
            place = f"{one.data.nodes}x{one.data.gpus_per_node}"
            table.append((one.data.name, place, one.profile or "none", *cells))
    if len(table) > 1:
        middle = [f"{median(found):.1%}" if found else "-" for found in errors.values()]
        table.append(("median", "", "", *middle))
    header = ("error by band", "ranks", "profile", *_TITLES.values())
    emit(aligned(table, header=header, right=(3, 4, 5)))
