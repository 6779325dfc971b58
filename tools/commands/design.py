# SPDX-License-Identifier: Apache-2.0
"""``railweave design``: the fabrics that given parts can build, and the best of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.output import aligned, emit, emit_json, note, paint, write_output

if TYPE_CHECKING:
    from railweave.tools.designing import Candidate

__all__ = ["design"]


def design(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs wanted.", show_default=False)],
    host: Annotated[
        list[str],
        typer.Option(
            help="Host of the catalogue, or a rack such as gb200-nvl72; may be repeated.",
            show_default=False,
        ),
    ],
    switch: Annotated[str, typer.Option(help="Switch of the catalogue.", show_default=False)],
    workload: Annotated[
        Path | None,
        typer.Option(help="A scenario to run on each, its topology replaced.", show_default=False),
    ] = None,
    max_oversubscription: Annotated[str, typer.Option(help="Of the leaf, such as 2:1.")] = "7:1",
    transport: Annotated[
        list[str] | None,
        typer.Option(
            help="lossless, loss-tolerant or trimming; may be repeated.  [default: lossless]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Most that the fabric may cost: 3000000 USD.", show_default=False),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A file of prices that replace the catalogue's.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the topology files.")
    ] = Path("designs"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Enumerate rail-optimized, ToR-local, rail-only, tapered, dual-plane and NVL72 fabrics.

    Each is checked, priced and emulated; those that no other beats in cost, power and job time are
    marked. On the fluid engine transports differ in what they need of buffers alone: `review
    --transports` runs them packet by packet.
    """
    import yaml

    from railweave.fabric.errors import InputError
    from railweave.fabric.fields import parse_ratio
    from railweave.tools.designing import candidates, evaluate, pareto, unpriced
    from railweave.tools.prices import load_prices, parse_price

    most = parse_ratio(max_oversubscription)
    limit = parse_price(budget) if budget is not None else None
    table = load_prices(prices) if prices is not None else None
    found = list(candidates(gpus, host, switch, most=most, transports=transport or ["lossless"]))
    if all(one.refused for one in found):
        raise InputError(
            f"no fabric for {gpus} GPUs can be built of {', '.join(host)} and {switch}: "
            f"{found[0].name}: {found[0].refused}",
            field="--gpus",
            expected="fewer GPUs, or a switch with more ports",
        )
    for one in found:
        if not one.refused and not force and (output / f"{one.name}.yaml").exists():
            raise InputError(
                "exists already",
                file=str(output / f"{one.name}.yaml"),
                expected="another folder, or --force to replace it",
            )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(output)) from None
    workloads = {workload.stem: workload} if workload is not None else {}
    looked = []
    for one in found:
        path = output / f"{one.name}.yaml"
        if not one.refused:
            text = yaml.safe_dump(dict(one.content), sort_keys=False)
            write_output(path, text, force=force)
            note(f"wrote {path}")
        looked.append(evaluate(one, path, workloads, table))
    name = workload.stem if workload is not None else None
    able = [one for one in looked if one.design is not None]
    if limit is not None:
        if able and able[0].design is not None and limit.currency != able[0].design.bill.currency:
            raise InputError(f"the bill is in {able[0].design.bill.currency}", field="--budget")
        able = [o for o in able if o.design is not None and o.design.bill.cost_cents <= limit.cents]
    best = pareto(able, name)
    if json:
        emit_json(
            {
                "candidates": [
                    {
                        "name": one.name,
                        "refused": one.refused or None,
                        "pareto": one in best,
                        "within_budget": one in able,
                        "without_price": unpriced(one),
                        **({"figures": one.design.to_dict()} if one.design else {}),
                    }
                    for one in looked
                ]
            }
        )
        return
    rows = [_row(one, name, best=one in best, able=one in able) for one in looked]
    header = ("", "design", "switches", "optics", "cost", "power", "time", "")
    emit(aligned(rows, header=header, right=(2, 3, 4, 5, 6)))
    emit(
        f"{paint('*', 'bold')} not beaten in cost, power and time at once, of those with all prices"
    )
    emit("Fibres are in no cost; `>` marks a cost that lacks parts without a known price.")


def _row(one: "Candidate", workload: str | None, *, best: bool, able: bool) -> tuple[str, ...]:
    from railweave.tools.commands.bom import shown_money, shown_power
    from railweave.tools.designing import unpriced
    from railweave.tools.words import shown_time

    if one.design is None:
        return ("", one.name, "-", "-", "-", "-", "-", one.refused)
    bill = one.design.bill
    job = one.design.jobs[workload].time if workload is not None else None
    words = [job.said] if job is not None and job.said else []
    words += [f"unpriced: {', '.join(missing)}"] if (missing := unpriced(one)) else []
    words += [] if able else ["over the budget"]
    return (
        "*" if best else "",
        one.name,
        f"{bill.number('switch'):,}",
        f"{bill.number('optic'):,}",
        ("> " if unpriced(one) else "") + shown_money(bill.cost_cents, bill.currency),
        shown_power(bill.power_mw),
        shown_time(job.time_ps) if job is not None else "-",
        "; ".join(words),
    )
