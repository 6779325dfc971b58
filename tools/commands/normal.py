# SPDX-License-Identifier: Apache-2.0
"""``railweave normal``: is a measured number normal, and if not, why."""

from pathlib import Path
from typing import Annotated

import typer

from railweave.tools.output import emit, emit_json, paint

__all__ = ["normal"]


def normal(
    measured: Annotated[
        list[Path],
        typer.Argument(help="Probe JSON, nccl-tests text or JSON, ib_write_bw text, or CSV."),
    ],
    topology: Annotated[
        str | None, typer.Option("--topology", "-T", help="Where it was measured.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A device profile, or a file of `calibrate`.")
    ] = None,
    op: Annotated[str | None, typer.Option(help="Operation, where a log does not name it.")] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Hosts, where the file does not say.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of a host, where the file does not say.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say for each band of sizes whether it is normal, how slow, and the likeliest reasons.

    Every reason has its evidence: what the file says of the machine, and how well the prediction
    for a machine that lacks just that meets what was measured.
    """
    from railweave.tools.measured.normal import verdicts
    from railweave.tools.measured.opening import Given, open_measured

    given = Given(
        topology=topology, profile=profile, nodes=nodes, gpus_per_node=gpus_per_node, op=op
    )
    judged = open_measured(measured, given)
    told = [(one, verdicts(one)) for one in judged]
    if json:
        emit_json(
            {
                "datasets": [
                    {
                        "name": one.data.name,
                        "profile": one.profile,
                        "bands": {
                            found.band: {
                                "verdict": found.verdict,
                                "factor": found.factor,
                                "rows": found.rows,
                                "sentence": found.sentence,
                                "reasons": [
                                    {"reason": r.name, "evidence": r.evidence, "error": r.error}
                                    for r in found.reasons
                                ],
                            }
                            for found in bands
                        },
                        "findings": [finding.what for finding in one.findings],
                        "skipped": [{"line": s.line, "why": s.why} for s in one.skipped],
                    }
                    for one, bands in told
                ]
            }
        )
        return
    for one, bands in told:
        data = one.data
        emit(paint(f"{data.name}  {data.nodes} x {data.gpus_per_node}", "bold"))
        for found in bands:
            emit(f"  {found.sentence}")
        for finding in one.findings:
            emit(f"  {finding.kind}: {finding.what}")
        if not bands:
            why = "; ".join(skip.why for skip in one.skipped[:3]) or "it has no row"
            emit(f"  nothing can be said: {why}")
