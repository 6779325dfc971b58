# SPDX-License-Identifier: Apache-2.0
"""``railweave calibrate``: fit the constants of a profile to measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.fabric.errors import InputError
from railweave.tools.output import aligned, check_free, emit, emit_json, note, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.measured.calibrating import Calibrated
    from railweave.tools.measured.data import DataSet, Row
    from railweave.tools.measured.fitting import Constant
    from railweave.tools.measured.judging import Judged

__all__ = ["calibrate"]

_LIGHT: Final = 0.35  # the weight below which a row was all but ignored


def calibrate(
    measured: Annotated[
        list[Path],
        typer.Argument(help="Probe JSON, nccl-tests text or JSON, or CSV; of one kind of machine."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The profile that is written.")],
    profile: Annotated[
        str | None, typer.Option(help="Where to begin.  [default: by the hardware]")
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", "-T", help="Where it was measured.")
    ] = None,
    op: Annotated[str | None, typer.Option(help="Operation, where a log does not name it.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Hosts, where not said.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of a host, where not said.")
    ] = None,
    hold_out: Annotated[
        bool, typer.Option("--hold-out", help="Fit to every second row and judge by the others.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit launch, step and efficiency constants; say how well they fit and what stays unknown.

    Use the profile as --profile FILE. A constant that the rows do not fix keeps the value it began
    with and is named.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"'{output}' is no YAML file", field="-o", expected="such as profile.yaml")
    check_free(output, force=force)
    from railweave.fabric.host_profiles import HostProfile, host_profile_text
    from railweave.fabric.profiles import profile_text
    from railweave.tools.measured.calibrating import calibrate_device, calibrate_host
    from railweave.tools.measured.judging import judge
    from railweave.tools.measured.opening import Given, any_profile, open_sets

    given = Given(
        topology=topology, profile=profile, nodes=nodes, gpus_per_node=gpus_per_node, op=op
    )
    base = any_profile(profile)
    sets, machines = open_sets(measured, given, base)
    kept, others = _halves(sets) if hold_out else (sets, [])
    backends = {data.backend for data in kept if data.rows}
    if backends == {"gloo"}:
        found = calibrate_host(kept, name=output.stem)
    elif backends == {"nccl"}:
        if isinstance(base, HostProfile):
            raise InputError(f"'{profile}' is a profile of a CPU host", field="--profile")
        found = calibrate_device(kept, base=base, machines=machines, name=output.stem)
    else:
        raise InputError(
            f"rows of {' and '.join(sorted(backends)) or 'nothing'} cannot be fitted together",
            expected="a file of NCCL's rows, or of gloo's",
        )
    made = found.profile
    text = host_profile_text(made) if isinstance(made, HostProfile) else profile_text(made)
    write_output(output, text, force=force)
    note(f"wrote {output}")
    held = []
    for data in others:
        here = machines.get(data.name)
        if here is not None and not isinstance(made, HostProfile):
            from dataclasses import replace

            here = replace(here, profile=made)
        held.append(judge(data, profile=made, machines=here, required=True))
    _print(found, held, json=json)


def _halves(sets: "Sequence[DataSet]") -> "tuple[list[DataSet], list[DataSet]]":
    """Return the first, third, ... row of every curve over size, and the others."""
    from dataclasses import replace

    kept, others = [], []
    for data in sets:
        turn: dict[tuple[str, str, str], int] = {}
        even: list[Row] = []
        odd: list[Row] = []
        for row in sorted(data.rows, key=lambda row: row.size_bytes):
            key = (row.op, row.algorithm, row.launch)
            turn[key] = turn.get(key, -1) + 1
            (odd if turn[key] % 2 else even).append(row)
        kept.append(replace(data, rows=tuple(even)))
        others.append(replace(data, rows=tuple(odd), skipped=(), findings=()))
    return kept, others


def _print(found: "Calibrated", held: "Sequence[Judged]", *, json: bool) -> None:
    import math

    errors = sorted(math.expm1(abs(value)) for value in found.fit.residuals.tolist())
    ignored = [
        (data, row, math.exp(residual))
        for (data, row), residual, weight in zip(
            found.rows, found.fit.residuals.tolist(), found.fit.weights.tolist(), strict=True
        )
        if weight < _LIGHT
    ]
    others = sorted(abs(one.ratio - 1) for judged in held for one in judged.rows)
    result: dict[str, Any] = {
        "profile": found.profile.name,
        "rows": len(found.rows),
        "median_error": _middle(errors),
        "geomean_error": math.expm1(float(abs(found.fit.residuals).mean())),
        "constants": [
            {
                "name": constant.name,
                "start": constant.start,
                "value": constant.value,
                "relative_error": constant.error
                if constant.error is not None and math.isfinite(constant.error)
                else None,
                "identified": constant.known,
            }
            for constant in found.fit.constants
        ],
        "ignored": [
            {
                "dataset": data.name,
                "op": row.op,
                "size_bytes": row.size_bytes,
                "line": row.line,
                "ratio": ratio,
            }
            for data, row, ratio in ignored
        ],
        "held_out": {"rows": len(others), "median_error": _middle(others)} if held else None,
        "notes": list(found.notes),
    }
    if json:
        emit_json(result)
        return
    emit(
        f"{result['rows']} rows: median error {result['median_error']:.1%}, "
        f"geometric mean {result['geomean_error']:.1%}"
    )
    if held:
        emit(f"{len(others)} rows held out: median error {_middle(others):.1%}")
    table = [
        (c.name, _shown(c.name, c.start), _shown(c.name, c.value), _sure(c))
        for c in found.fit.constants
    ]
    emit("")
    emit(aligned(table, header=("constant", "began at", "fitted", "known to"), right=(1, 2, 3)))
    vague = [c.name for c in found.fit.constants if not c.known]
    emit("")
    emit(f"not identified by these rows: {', '.join(vague) or 'nothing'}")
    for words in found.notes:
        emit(f"note: {words}")
    for data, row, ratio in ignored:
        where = f", line {row.line}" if row.line else ""
        emit(f"hardly counted: {data.name}{where}: {row.op} of {row.size_bytes} B ({ratio:.2f})")


def _middle(values: "Sequence[float]") -> float:
    from statistics import median

    return median(values) if values else 0.0


def _sure(constant: "Constant") -> str:
    if constant.error is None:
        return "no row asks"
    return f"{constant.error:.1%}" if constant.known else "not fixed"


def _shown(name: str, value: float) -> str:
    """Return a constant with its unit."""
    if name == "step":
        return f"{value * 1e6:.4g} us"
    if name == "rate":
        return f"{value / 1e9:.4g} GB/s"
    if "efficiency" in name or "factor" in name:
        return f"{value:.4f}"
    if "ramp" in name:
        return f"{value / 1e3:.4g} kB"
    return f"{value / 8e9:.4g} GB/s" if name == "copy" else f"{value / 1e6:.4g} us"
