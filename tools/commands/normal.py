# SPDX-License-Identifier: Apache-2.0
"""``railweave normal``: is a measured number normal, and if not, why."""

from typing import Annotated

import typer

from railweave.tools.commands.measured_options import (
    GpusPerNode,
    Measured,
    MeasuredOn,
    Nodes,
    Op,
    UsedProfile,
)
from railweave.tools.output import emit, emit_json, paint

__all__ = ["normal"]


def normal(
    measured: Measured,
    topology: MeasuredOn = None,
    profile: UsedProfile = None,
    op: Op = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
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
