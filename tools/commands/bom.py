# SPDX-License-Identifier: Apache-2.0
"""``railweave bom``: what to buy for a topology, and how to cable it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.opening import in_option, open_topology
from railweave.tools.output import (
    aligned,
    check_free,
    emit,
    emit_json,
    note,
    paint,
    write_output,
)

if TYPE_CHECKING:
    from railweave.tools.bom import Bill, Line

__all__ = ["bom", "shown_money", "shown_power"]


def shown_money(cents: "int | None", currency: str) -> str:
    """Write an amount in whole units of its currency.

    Examples
    --------
    >>> shown_money(285404400, "USD"), shown_money(None, "USD")
    ('2,854,044 USD', 'unpriced')
    """
    return "unpriced" if cents is None else f"{round(cents / 100):,} {currency}"


def shown_power(power_mw: "int | None") -> str:
    """Write a power in watts or kilowatts.

    Examples
    --------
    >>> shown_power(25_616_000), shown_power(14_000), shown_power(None)
    ('25.62 kW', '14 W', '-')
    """
    if power_mw is None:
        return "-"
    watts = power_mw / 1000
    return f"{watts / 1000:.4g} kW" if watts >= 1000 else f"{watts:.4g} W"


def bom(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A topology file, or the name of a shipped design.",
            show_default=False,
        ),
    ],
    prices: Annotated[
        Path | None,
        typer.Option(help="A file of prices and powers that replace the catalogue's."),
    ] = None,
    cabling: Annotated[
        Path | None,
        typer.Option(help="Write the cabling plan and port map there, as CSV: a row per cable."),
    ] = None,
    ptm: Annotated[
        Path | None,
        typer.Option(help="Write it as topology.dot of the Prescriptive Topology Manager."),
    ] = None,
    rack_power: Annotated[
        str | None, typer.Option(help="What a rack feeds.  [default: 44kW]", show_default=False)
    ] = None,
    rack_units: Annotated[
        int | None,
        typer.Option(min=5, max=100, help="Height of a rack.  [default: 48]", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Count switches, NICs, optics, cables and racks; add up cost and power.

    Prices of the catalogue are those of one shop on one day: assumptions. What has no known price
    is named, and not in the sum.
    """
    from dataclasses import replace

    from railweave.fabric.errors import InputError
    from railweave.fabric.network_model import phy_latency_ps
    from railweave.fabric.units import parse_power_mw
    from railweave.tools.bom import make_bill
    from railweave.tools.prices import PriceList, load_prices
    from railweave.topologies.cabling import plan_cables, to_csv, to_ptm
    from railweave.topologies.racks import Hall, place

    if cabling is not None and ptm is not None and cabling.resolve() == ptm.resolve():
        raise InputError(
            f"'{ptm}' is the file of --cabling", field="--ptm", expected="a file of its own"
        )
    for path in (cabling, ptm):
        check_free(path, force=force)
    hall = Hall()
    if rack_power is not None:
        with in_option("--rack-power"):
            power_mw = parse_power_mw(rack_power)
        hall = replace(hall, power_mw=power_mw)
    if rack_units is not None:
        hall = replace(hall, units=rack_units)
    table = load_prices(prices) if prices is not None else PriceList()
    spec, fabric = open_topology(source)
    racks = place(fabric, spec, hall=hall)
    bill = make_bill(fabric, spec, prices=table, racks=racks)
    if cabling is not None or ptm is not None:
        plan = plan_cables(fabric, racks, phy_ps=phy_latency_ps(spec.network))
        for path, write in ((cabling, to_csv), (ptm, to_ptm)):
            if path is not None:
                write_output(path, write(plan), force=force)
                note(f"wrote {path}")
    if json:
        emit_json(bill.to_dict())
    else:
        _show(bill)


def _show(bill: "Bill") -> None:
    emit(paint(bill.name, "bold"))
    rows = [_row(line, bill.currency) for line in bill.lines]
    header = ("", "item", "for", "length", "count", "each", "sum", "power each", "power")
    emit(aligned(rows, header=header, right=(3, 4, 5, 6, 7, 8), indent="  "))
    cables = ", ".join(f"{tier} {count:,}" for tier, count in bill.cables.items())
    emit(f"cables  {cables}; racks  {bill.racks[0]} with hosts, {bill.racks[1]} with switches")
    for what, said in fabric_totals(bill).items():
        emit(f"{what} of the fabric  {said}")
    emit(
        "Prices are assumptions (one shop, one day) unless they come from a price file; hosts are "
        "not in the sums, and NICs not in the power, which their hosts' has."
    )


def fabric_totals(bill: "Bill") -> dict[str, str]:
    """Return cost and power of the fabric in words, and what each is without."""
    said = {
        "cost": (shown_money(bill.cost_cents, bill.currency), bill.missing("cents"), "unpriced"),
        "power": (shown_power(bill.power_mw), bill.missing("power_mw"), "of unknown power"),
    }
    return {
        what: shown + (f", without {', '.join(missing)}: {word}" if missing else "")
        for what, (shown, missing, word) in said.items()
    }


def shown_length(length_mm: int | None) -> str:
    """Write the length of a cable; nothing for what has none."""
    return "" if length_mm is None else f"{length_mm / 1000:g} m"


def _row(line: "Line", currency: str) -> tuple[str, ...]:
    total = None if line.cents is None else line.cents * line.count
    power = None if line.power_mw is None else line.power_mw * line.count
    return (
        line.group,
        line.item,
        line.used_for,
        shown_length(line.length_mm),
        f"{line.count:,}",
        shown_money(line.cents, currency),
        shown_money(total, currency),
        shown_power(line.power_mw),
        shown_power(power),
    )
