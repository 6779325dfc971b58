# SPDX-License-Identifier: Apache-2.0
"""``railweave plan``: every way to divide a model on a fabric, ranked by its emulated step."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from railweave.fabric.errors import InputError
from railweave.tools.choices import check_choice
from railweave.tools.output import aligned, check_free, emit, emit_json, note, write_output

if TYPE_CHECKING:
    from railweave.tools.planning import Ranking

__all__ = ["plan"]

_TOKENS = {"prefill": 2048, "decode": 2048, "train": 4096}
_PER_GPU = {"prefill": 1, "decode": 4, "train": 2}


def plan(
    model: Annotated[
        str, typer.Argument(help="Shipped name, config.json, or the folder that holds one.")
    ],
    topology: Annotated[str, typer.Option(help="The fabric: a shipped name or a file.")],
    phase: Annotated[str, typer.Option(help="prefill, decode or train.")] = "decode",
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests or sequences of a step, over all GPUs. "
            "[default: per GPU 4 in decode, 1 in prefill, 2 in training]",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a prompt or sequence; in decode those that are cached of each "
            "request. [default: 2048, in training 4096]",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs to use. [default: all]")] = None,
    max_cp: Annotated[int, typer.Option(min=1, help="Most context-parallel ranks.")] = 4,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 10,
    dtype: Annotated[
        str | None,
        typer.Option(help="Format of weights. [default: the checkpoint's; bf16 in training]"),
    ] = None,
    over_memory: Annotated[
        bool, typer.Option("--over-memory", help="Rank plans that do not fit in memory, too.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of draws and hashes.")] = 1,
    write: Annotated[
        int | None, typer.Option(min=1, help="Write this row of the table as a scenario, to -o.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for --write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rank the ways to divide a model over a fabric by the time of an emulated step.

    Plans that do not divide or do not fit in memory are dropped, and said. The others are emulated,
    from the least bound on, until no other can be among the rows shown. Exit code 1: none fits.
    """
    check_choice(phase, "--phase", tuple(_TOKENS))
    if (write is None) != (output is None):
        raise InputError(
            "both or neither are needed", field="--write", expected="--write N -o FILE"
        )
    check_free(output, force=force)
    from railweave.tools.planning import rank_plans, site_of
    from railweave.topologies.load import build_topology, load_topology
    from railweave.workloads.planner import candidates
    from railweave.workloads.shapes import load_shape

    shape = load_shape(model)
    site = site_of(build_topology(load_topology(topology)), gpus)
    size = batch or _PER_GPU[phase] * site.gpus
    found, dropped = candidates(
        shape, model, site, phase=phase, batch=size, tokens=tokens or _TOKENS[phase],
        max_cp=max_cp, seed=seed, keys={} if dtype is None else {"dtype": dtype},
    )  # fmt: skip
    if not over_memory:
        found = [one for one in found if one.fits]
    ranking = rank_plans(found, dropped, topology, seed=seed, top=top)
    result = {
        "model": shape.name,
        "topology": topology,
        "gpus": site.gpus,
        "gpu": site.gpu.name,
        "phase": phase,
        "batch": size,
        "tokens": tokens or _TOKENS[phase],
        "seed": seed,
        "rows": ranking.rows,
        "dropped": [
            {**one.degrees, "reason": one.reason, "memory_bytes": one.memory_bytes}
            for one in ranking.dropped
        ],
        "behind": [{**one.workload, "at_least_ps": one.least_ps} for one in ranking.behind],
    }
    if as_json:
        emit_json(result)
    else:
        _show(result, ranking)
    if write is not None and output is not None:
        _write(ranking, write, output, force=force)
    if not ranking.rows:
        raise typer.Exit(1)


def _write(ranking: "Ranking", number: int, output: Path, *, force: bool) -> None:
    from railweave.yaml_text import yaml_text

    if number > len(ranking.rows):
        raise InputError(
            f"the table has {len(ranking.rows)} rows, not {number}", field="--write",
            expected=f"1 to {len(ranking.rows)}" if ranking.rows else "a plan that fits",
        )  # fmt: skip
    write_output(output, yaml_text(ranking.rows[number - 1]["scenario"]), force=force)
    note(f"row {number} is written to {output}")


def _show(result: dict[str, Any], ranking: "Ranking") -> None:
    unit = "sequences" if result["phase"] == "train" else "requests"
    emit(
        f"{result['model']} on {result['topology']}: {result['gpus']} {result['gpu']}, "
        f"{result['phase']} of {result['batch']:,} {unit} with {result['tokens']:,} tokens\n"
    )
    if ranking.rows:
        _table(result, ranking)
    else:
        emit("No plan fits.")
    reasons = Counter(_group(one.reason) for one in ranking.dropped)
    if reasons:
        said = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        emit(f"\ndropped  {said}")
    tight = [one for one in ranking.dropped if one.memory_bytes is not None]
    if tight:
        least = min(tight, key=lambda one: one.memory_bytes or 0)
        degrees = "  ".join(f"{k} {v}" for k, v in least.degrees.items())
        emit(f"         least memory of those too large: {_gb(least.memory_bytes)} ({degrees})")
    if ranking.behind:
        emit(
            f"behind   {len(ranking.behind)} more fit; none takes less than "
            f"{_ms(min(one.least_ps for one in ranking.behind))} ms"
        )


def _group(reason: str) -> str:
    field, _, rest = reason.partition(": ")
    whole = {"memory": "do not fit in memory", "tokens": "have too many tokens in a step",
             "micro_batches": "have too many micro-batches, or no whole rounds"}  # fmt: skip
    words = {"ep": "experts", "pp": "layers", "sequence": "sequence", "dp": "batch"}
    return whole.get(field, f"do not divide ({words.get(field, field if rest else 'plan')})")


def _table(result: dict[str, Any], ranking: "Ranking") -> None:
    rows = []
    for row in ranking.rows:
        own = row["plan"]
        notes = [name for name in (row["ep_backend"],) if name]
        notes += ["recompute"] if row["recompute"] == "full" else []
        notes += [] if row["fits"] else ["does not fit"]
        wire = row["wire_bytes"]
        rows.append(
            (
                row["row"], *(own[name] for name in ("tp", "pp", "cp", "dp", "ep")),
                _ms(row["step_ps"]), _ms(row["bound_ps"]), _ms(row["exposed_ps"]),
                _ms(row["overlapped_ps"]), _ms(row["bubble_ps"]), _gb(wire["nvlink"]),
                _gb(wire["network"]), _gb(row["memory_bytes"]), f"{row['tokens_per_s']:,.0f}",
                row["limit"], ", ".join(notes),
            )
        )  # fmt: skip
    header = (
        "row", "tp", "pp", "cp", "dp", "ep", "step ms", "bound ms", "exposed", "overlapped",
        "bubble", "NVLink", "network", "memory", "tokens/s", "limit", "",
    )  # fmt: skip
    emit(aligned(rows, header=header, right=tuple(range(15))))


def _ms(time_ps: int) -> str:
    return f"{time_ps / 1e9:,.3f}"


def _gb(size_bytes: int | None) -> str:
    return f"{(size_bytes or 0) / 1e9:,.2f} GB"
