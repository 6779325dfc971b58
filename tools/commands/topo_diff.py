# SPDX-License-Identifier: Apache-2.0
"""``railweave topo diff``: what differs between two topologies."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.tools.opening import open_topology
from railweave.tools.output import aligned, emit, emit_json, paint

if TYPE_CHECKING:
    from railweave.topologies.diff import Difference

__all__ = ["diff_topologies"]

_EACH: Final = 3  # alike differences up to so many are shown one by one
_SIGNS: Final = {"removed": "-", "added": "+"}
_COLOURS: Final = {"-": "red", "+": "green", "~": "yellow"}


def diff_topologies(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A topology file, or the name of a shipped design.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare it with.")],
    every: Annotated[
        bool, typer.Option("--all", help="Show alike differences one by one, not as a count.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare devices, cables, rates and rails; 1 if anything differs.

    What only A has is marked -, what only B has +, what both have but not alike ~.
    """
    from railweave.fabric.network_model import network_settings
    from railweave.topologies.diff import diff, diff_settings
    from railweave.topologies.summary import summarise

    (spec_a, a), (spec_b, b) = open_topology(before), open_topology(after)
    found = diff(a, b)
    found += diff_settings(network_settings(spec_a.network), network_settings(spec_b.network))
    figures = list(_figures(summarise(a), summarise(b))) if found else []
    if json:
        emit_json(
            {
                "before": a.name,
                "after": b.name,
                "same": not found,
                "figures": {key: {"before": one, "after": two} for key, one, two in figures},
                "differences": [_as_dict(one) for one in found],
            }
        )
    else:
        _show(a.name, b.name, figures, found, every=every)
    if found:
        raise typer.Exit(1)


def _figures(
    before: dict[str, Any], after: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the figures of the summaries that are not the same, nested ones by dotted name."""
    for key in dict.fromkeys((*before, *after)):
        one, two = before.get(key), after.get(key)
        if isinstance(one, dict) or isinstance(two, dict):
            yield from _figures(one or {}, two or {}, f"{prefix}{key}.")
        elif one != two and key != "name":
            yield f"{prefix}{key}", one, two


def _as_dict(one: "Difference") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(one)


def _show(
    before: str,
    after: str,
    figures: Sequence[tuple[str, Any, Any]],
    found: "Sequence[Difference]",
    *,
    every: bool,
) -> None:
    from railweave.fabric.words import plural

    if not found:
        emit(f"{before} and {after}: no difference")
        return
    emit(paint(f"{before} -> {after}: {plural(len(found), 'difference')}", "bold"))
    if figures:
        rows = [(key, _shown(key, one), "->", _shown(key, two)) for key, one, two in figures]
        emit(aligned(rows, indent="  "))
    for what, title in (("device", "devices"), ("cable", "cables"), ("setting", "network")):
        alike: dict[object, list[Difference]] = {}
        for one in found:
            if one.what == what:
                alike.setdefault(_mark(one), []).append(one)
        if alike:
            emit(title)
        for group in alike.values():
            shown = [[one] for one in group] if every or len(group) <= _EACH else [group]
            for part in shown:
                sign = _SIGNS.get(part[0].change, "~")
                emit(f"  {paint(sign, _COLOURS[sign])} {_line(part)}")


def _mark(one: "Difference") -> object:
    """Return what differences share that are counted together."""
    values = (one.field, one.before, one.after) if one.change == "changed" else ()
    return (one.change, one.sort, *values)


def _line(group: "Sequence[Difference]") -> str:
    first, count = group[0], len(group)
    if count == 1:
        head = first.name if first.what == "setting" else f"{first.sort} {first.name}"
    else:
        head = f"{count:,} {_plural(first.sort)}"
    said = f"{first.before} -> {first.after}"
    if first.change == "changed":
        field = first.field or ""
        said = f"{_shown(field, first.before)} -> {_shown(field, first.after)}"
        head += f": {said}" if first.what == "setting" else f": {_FIELDS.get(field, field)} {said}"
    elif first.change in ("renamed", "moved"):
        head += f" {first.change}" + (f": {said}" if count == 1 else "")
    if count == 1:
        return head
    last = f": {said}" if first.change in ("renamed", "moved") else ""
    return f"{head} ({first.name}{last} first)"


_FIELDS: Final = {
    "rate_bps": "rate",
    "rate_back_bps": "rate of the other direction",
    "delay_ps": "delay",
}


def _plural(sort: str) -> str:
    """Make ``host of 8 x h100`` or ``leaf switch`` many."""
    from railweave.fabric.words import plural

    noun, of, rest = sort.partition(" of ")
    return plural(2, noun).removeprefix("2 ") + of + rest


def _shown(field: str, value: object) -> str:
    """Write a value with its unit, which is the end of the field's name."""
    from railweave.fabric.units import format_rate, format_size, format_time

    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not field.startswith("oversubscription"):
            return f"{value:.4g}"
        return f"1:{1 / value:.4g}" if 0 < value < 1 else f"{value:.4g}:1"
    if isinstance(value, int):
        for ending, write in (("bps", format_rate), ("ps", format_time), ("bytes", format_size)):
            if field.endswith(f"_{ending}"):
                return write(value)
        return f"{value:,}"
    return str(value)
