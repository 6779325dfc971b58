# SPDX-License-Identifier: Apache-2.0
"""``railweave report``: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from railweave.tools.output import note, write_output

__all__ = ["report"]


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The file.  [default: RUN/report.html]", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output file if it exists.")
    ] = False,
) -> None:
    """Write the report of a run: one HTML file that needs no network."""
    from railweave.tools.report.page import report_page
    from railweave.tools.report.run_data import read_run

    path = output or run / "report.html"
    write_output(path, report_page(read_run(run)), force=force)
    note(f"wrote {path}")
