# SPDX-License-Identifier: Apache-2.0
"""``railweave plot``: charts of runs as SVG files."""

from pathlib import Path
from typing import Annotated, Final

import typer

from railweave.fabric.errors import InputError, nearest_name
from railweave.tools.output import note, write_output

__all__ = ["plot"]

KINDS: Final = ("busbw", "cdf", "heatmap", "gantt")
_LACKING: Final = {
    "busbw": "has no collectives",
    "cdf": "has no flows that ended",
    "heatmap": "recorded no timeline: run it with --timeline 96",
    "gantt": "has no requests, collectives or flows",
}


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            help="busbw: bus bandwidth over size; cdf: distribution of flow times; heatmap: link "
            "load over time; gantt: what ran when.",
            show_default=False,
        ),
    ],
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs; busbw and cdf take several and lay them over each other.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The SVG file.  [default: RUN/KIND.svg]", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output file if it exists.")
    ] = False,
) -> None:
    """Draw a chart of a run, or of several, as SVG."""
    from railweave.tools.charts.of_run import busbw_of, cdf_of, gantt_of, heat_of
    from railweave.tools.report.run_data import read_run

    if kind not in KINDS:
        raise InputError(
            f"'{kind}' is not a chart",
            expected=" | ".join(KINDS),
            nearest=nearest_name(kind, KINDS),
        )
    several = kind in ("busbw", "cdf")
    if len(runs) > 1 and not several:
        raise InputError(f"a {kind} chart is of one run, {len(runs)} were given")
    read = [read_run(run) for run in runs]
    if several:
        chart = busbw_of(read) if kind == "busbw" else cdf_of(read)
    else:
        chart = heat_of(read[0]) if kind == "heatmap" else gantt_of(read[0])
    if chart is None:
        raise InputError(_LACKING[kind], file=", ".join(map(str, runs)))
    path = output or runs[0] / f"{kind}.svg"
    write_output(path, chart.document(), force=force)
    note(f"wrote {path}")
