# SPDX-License-Identifier: Apache-2.0
"""``railweave design``: the fabrics that given parts can build, and the best of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.opening import in_option
from railweave.tools.output import aligned, emit, emit_json, note, paint, write_output

if TYPE_CHECKING:
    from railweave.tools.design_choices import Choice

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
        list[Path] | None,
        typer.Option(
            help="A scenario to run on each, its topology replaced; may be repeated.",
            show_default=False,
        ),
    ] = None,
    routing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY[:QPS]",
            help="How flows choose among equal paths: ecmp, ecmp:8 (with 8 queue pairs each), "
            "ecmp-polarised, rail or spray; may be repeated.  [default: the workload's]",
            show_default=False,
        ),
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
    --transports` runs them packet by packet. With --routing, each is run with each of them.
    """
    import yaml

    from railweave.fabric.errors import InputError
    from railweave.fabric.fields import parse_ratio
    from railweave.tools.design_choices import evaluate, pareto, parse_routing, unpriced
    from railweave.tools.designing import candidates
    from railweave.tools.job_time import load_on
    from railweave.tools.prices import load_prices, parse_price

    with in_option("--max-oversubscription"):
        most = parse_ratio(max_oversubscription)
    with in_option("--budget"):
        limit = parse_price(budget) if budget is not None else None
    table = load_prices(prices) if prices is not None else None
    workloads = {path.stem: path for path in workload or ()}
    if len(workloads) < len(workload or ()):
        raise InputError("two workloads have one name", field="--workload")
    ways = {text: parse_routing(text) for text in routing or ()} or {"": {}}
    if routing and not workloads:
        raise InputError("there is nothing to route", field="--routing", expected="--workload too")
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
    fits = next(one for one in found if not one.refused)
    for path in workloads.values():
        for keys in ways.values():  # what is wrong with them is said before anything is written
            load_on(path, dict(fits.content), overrides=keys)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(output)) from None
    looked = []
    for one in found:
        path = output / f"{one.name}.yaml"
        if not one.refused:
            text = yaml.safe_dump(dict(one.content), sort_keys=False)
            write_output(path, text, force=force)
            note(f"wrote {path}")
        looked += evaluate(one, path, workloads, table, ways)
    bills = {
        one.candidate.name: one.candidate.design.bill for one in looked if one.candidate.design
    }
    if limit is not None and (bill := next(iter(bills.values()), None)) is not None:
        if limit.currency != bill.currency:
            raise InputError(f"the bill is in {bill.currency}", field="--budget")
        bills = {name: bill for name, bill in bills.items() if bill.cost_cents <= limit.cents}
    able = [one for one in looked if one.candidate.name in bills]
    best = pareto(able)
    if json:
        emit_json(
            {
                "candidates": [
                    {
                        "name": one.candidate.name,
                        "routing": one.routing or None,
                        "refused": one.candidate.refused or None,
                        "pareto": one in best,
                        "within_budget": one in able,
                        "without_price": unpriced(one.candidate),
                        **(
                            {"figures": one.candidate.design.to_dict()}
                            if one.candidate.design
                            else {}
                        ),
                    }
                    for one in looked
                ]
            }
        )
        return
    rows = [
        _row(one, len(workloads), routed=bool(routing), best=one in best, able=one in able)
        for one in looked
    ]
    named = [f"{name}: time" for name in workloads] if len(workloads) > 1 else ["time"]
    way = ("routing",) if routing else ()
    header = ("", "design", *way, "switches", "optics", "cost", "power", *named, "")
    first = 3 if routing else 2
    emit(aligned(rows, header=header, right=tuple(range(first, len(header) - 1))))
    emit(
        f"{paint('*', 'bold')} not beaten in cost, power and time at once, of those with all prices"
    )
    emit("Fibres are in no cost; `>` marks a cost that lacks parts without a known price.")


def _row(one: "Choice", workloads: int, *, routed: bool, best: bool, able: bool) -> tuple[str, ...]:
    from railweave.tools.commands.bom import shown_money, shown_power
    from railweave.tools.design_choices import unpriced
    from railweave.tools.words import shown_time

    candidate = one.candidate
    way = (one.routing or "-",) if routed else ()
    if candidate.design is None:
        blank = ("-",) * (4 + max(1, workloads))
        return ("", candidate.name, *way, *blank, candidate.refused)
    bill = candidate.design.bill
    words = list(dict.fromkeys(job.time.said for job in one.jobs.values() if job.time.said))
    words += [f"unpriced: {', '.join(missing)}"] if (missing := unpriced(candidate)) else []
    words += [] if able else ["over the budget"]
    return (
        "*" if best else "",
        candidate.name,
        *way,
        f"{bill.number('switch'):,}",
        f"{bill.number('optic'):,}",
        ("> " if unpriced(candidate) else "") + shown_money(bill.cost_cents, bill.currency),
        shown_power(bill.power_mw),
        *([shown_time(time) for time in one.times_ps] or ["-"]),
        "; ".join(words),
    )
