# SPDX-License-Identifier: Apache-2.0
"""``railweave goodput``: the highest rate at which requests meet their limits."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from railweave.tools.output import aligned, emit, emit_json
from railweave.tools.words import shown_time

__all__ = ["goodput"]


def goodput(
    scenario: Annotated[
        Path,
        typer.Argument(
            help="A scenario with one serving workload that has an slo.", show_default=False
        ),
    ],
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of requests that must meet the SLO.")
    ] = 0.9,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="How close the answer must be, relatively.")
    ] = 0.05,
    seed: Annotated[
        int | None, typer.Option(help="Instead of the scenario's seed.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Find the highest rate of requests at which enough of them meet both limits of the SLO.

    The workload's rate_scale is varied. Exit code 1: no rate was found that meets it.
    """
    from railweave.tools.serving_goodput import find_goodput

    found = find_goodput(scenario, share=share, tolerance=tolerance, seed=seed)
    if as_json:
        emit_json({"schema": 1, "share": share, **asdict(found)})
        return int(found.best is None)
    rows = [
        (
            f"{load.rate_scale:.4g}",
            f"{load.rate_per_s:.4g}",
            f"{100 * load.share:.1f} %",
            shown_time(load.ttft_p99_ps),
            shown_time(load.tpot_p99_ps),
        )
        for load in found.loads
    ]
    header = ("rate_scale", "requests/s", "met", "TTFT p99", "TPOT p99")
    emit(aligned(rows, header=header, right=(0, 1, 2, 3, 4)))
    if found.best is None:
        emit(f"\ngoodput  no rate was found at which {100 * share:g} % of requests meet the SLO")
        return 1
    more = "" if found.bracketed else " or more: no rate that was tried misses it"
    emit(
        f"\ngoodput  {found.best.rate_per_s:.4g} requests/s (rate_scale "
        f"{found.best.rate_scale:.4g}) at which {100 * share:g} % meet the SLO{more}"
    )
    return 0
