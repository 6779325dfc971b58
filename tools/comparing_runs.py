# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: their figures as rows, and in words what makes one slower than the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import format_size
from railweave.tools.words import shown_bytes, shown_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from railweave.tools.run_figures import RunFigures

__all__ = ["causes", "figure_rows", "run_rows", "run_words"]

_SERVING: Final = (
    ("ttft_ps", "TTFT"),
    ("tpot_ps", "TPOT"),
    ("kv_transfer_ps", "KV transfer"),
    ("queue_ps", "queueing"),
)
_PARTS: Final = (
    ("compute_ps", "computing"),
    ("bubble_ps", "waiting for other stages"),
    ("exposed_ps", "communication that nothing hides"),
)
_COUNTERS: Final = (
    ("pause_frames", "pause frames"),
    ("paused_ps_total", "paused, all links"),
    ("ecn_marked", "ECN marks"),
    ("timeouts", "timeouts"),
    ("retransmitted_bytes", "sent again"),
    ("victim_count", "victims of pauses"),
)
_ALIKE: Final = 0.01
"""Ratios within this of 1 are the same in words."""


def _name(tag: str) -> str:
    return f"class {tag}" if tag else "flows without a class"


def _steps(one: RunFigures, key: str) -> int | None:
    """Return a duration of all steps together, None without steps."""
    return sum(int(step.get(key, 0)) for step in one.steps) if one.steps else None


def _axes(one: RunFigures, key: str) -> dict[str, int]:
    """Return time or bytes of each axis of parallelism, all steps together."""
    total: dict[str, int] = {}
    for step in one.steps:
        found = step.get("by_axis_ps", {}) if key == "time" else step["wire_bytes"]["by_axis"]
        for axis, value in found.items():
            total[axis] = total.get(axis, 0) + int(value)
    return total


def _ops(one: RunFigures) -> dict[str, int]:
    """Return the time of each collective: the mean, where one ran several times.

    None of a run of one collective alone: its time is the run's.
    """
    times: dict[str, list[int]] = {}
    for row in one.collectives:
        what = f"{row['op']} of {format_size(int(row['size_bytes']))}"
        times.setdefault(what, []).append(int(row["time_ps"]))
    if len(times) < 2:
        return {}
    return {what: sum(found) // len(found) for what, found in times.items()}


class _Table:
    """Rows of a title and a cell for each run; none where no run has the figure."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def row(self, title: str, values: Sequence[Any], shown: Callable[[Any], str] = str) -> None:
        if any(value is not None for value in values):
            cells = ("-" if value is None else shown(value) for value in values)
            self.rows.append((title, *cells))


def run_rows(runs: Sequence[RunFigures]) -> list[tuple[str, ...]]:
    """Return the table of runs: a title and a cell for each run."""
    table = _Table()
    table.row("status", [one.status for one in runs])
    table.row("engine", [one.engine for one in runs])
    table.row("time", [one.time_ps for one in runs], shown_time)
    table.row("bound", [one.bound_ps for one in runs], shown_time)
    table.rows += figure_rows(runs)
    for tier in dict.fromkeys(tier for one in runs for tier in one.tiers):
        ends = [one.tiers.get(tier) for one in runs]
        table.row(f"bytes on {tier}", [end and end["wire_bytes"] for end in ends], shown_bytes)
        hottest = [end and end["max_utilisation"] for end in ends]
        table.row(f"hottest {tier}", hottest, "{:.1%}".format)
    table.row("busiest network link", [one.busiest and one.busiest[0] for one in runs])
    return table.rows


def figure_rows(runs: Sequence[RunFigures | None]) -> list[tuple[str, ...]]:
    """Return what is told of flows, collectives, steps, classes, requests and the network.

    Parameters
    ----------
    runs
        None for a run that there was not: its cells are dashes.
    """
    table = _Table()
    row = table.row
    there = [one for one in runs if one is not None]
    row("p99 of flows", [one and one.p99_ps for one in runs], shown_time)
    for what in dict.fromkeys(what for one in there for what in _ops(one)):
        row(what, [one and _ops(one).get(what) for one in runs], shown_time)
    row("steps", [one and _steps(one, "step_ps") for one in runs], shown_time)
    for key, title in _PARTS:
        row(f"steps: {title}", [one and _steps(one, key) for one in runs], shown_time)
    for what, shown in (("time", shown_time), ("bytes", shown_bytes)):
        for axis in dict.fromkeys(axis for one in there for axis in _axes(one, what)):
            values = [one and _axes(one, what).get(axis) for one in runs]
            row(f"steps: {what} of {axis}", values, shown)
    for tag in dict.fromkeys(tag for one in there for tag in one.classes):
        found = [one and one.classes.get(tag) for one in runs]
        row(f"{_name(tag)}: bytes", [c and c.wire_bytes for c in found], shown_bytes)
        row(f"{_name(tag)}: p99", [c and c.p99_ps for c in found], shown_time)
    for name in dict.fromkeys(name for one in there for name in one.on_links):
        carried = [one and one.on_links.get(name) for one in runs]
        row(f"bytes of {name} on links", carried, shown_bytes)
    for key, title in _SERVING:
        stats = [one.serving.get(key, {}) if one else {} for one in runs]
        for q in ("p50", "p99"):
            row(f"{title} {q}", [stat.get(q) for stat in stats], shown_time)
    for key, title in _COUNTERS:
        if any(one.network.get(key) for one in there):
            row(title, [one and one.network.get(key) for one in runs], _shown(key))
    if any(_drops(one) for one in there):
        row("drops", [one and _drops(one) for one in runs])
    return table.rows


def _shown(counter: str) -> Callable[[Any], str]:
    if counter.endswith("_ps_total"):
        return shown_time
    return shown_bytes if counter.endswith("_bytes") else "{:,}".format


def _drops(one: RunFigures) -> int | None:
    found = one.network.get("drops")
    return None if found is None else sum(found.values())


def run_words(runs: Sequence[RunFigures]) -> list[str]:
    """Say of each run what differs from the first, and what in it does: links, classes, parts."""
    first, *others = runs
    said = []
    for number, other in enumerate(others, start=2):
        name, base = other.name, first.name
        if name == base:
            name, base = f"{name} (run {number})", f"{base} (run 1)"
        if other.status != first.status:
            said.append(f"{name} is {other.status}, {base} {first.status}")
        if first.time_ps and other.time_ps:
            said.append(_time_words(name, base, other.time_ps / first.time_ps))
            said += [f"{name}: {text}" for text in (*_links(first, other), *causes(first, other))]
    return said


def _time_words(name: str, base: str, ratio: float) -> str:
    if abs(ratio - 1) < _ALIKE:
        return f"{name} takes as long as {base}"
    factor, verb = (ratio, "slower") if ratio > 1 else (1 / ratio, "faster")
    return f"{name} is {factor:.4g} times {verb} than {base}"


def _differ(a: float | None, b: float | None) -> bool:
    """Return whether two figures differ in words; one that is missing says nothing."""
    if a is None or b is None or a == b:
        return False
    return not a or abs(b / a - 1) >= _ALIKE


def causes(first: RunFigures, other: RunFigures) -> Iterator[str]:
    """Yield what differs between two runs but links: classes, steps, requests, counters."""
    for what, time in _ops(other).items():
        if _differ(before := _ops(first).get(what), time):
            yield f"{what} takes {shown_time(time)} for {shown_time(before)}"
    for key, title in _PARTS:
        a, b = _steps(first, key), _steps(other, key)
        if _differ(a, b):
            yield f"{title} takes {shown_time(b)} for {shown_time(a)} in its steps"
    axes, had = _axes(other, "time"), _axes(first, "time")
    for axis, time in axes.items():
        if _differ(before := had.get(axis), time):
            carried = _axes(other, "bytes").get(axis), _axes(first, "bytes").get(axis)
            yield (
                f"traffic of {axis} takes {shown_time(time)} for {shown_time(before)}"
                f"{_carried(*carried)}"
            )
    for tag, now in other.classes.items():
        then = first.classes.get(tag)
        if then is None:
            yield f"{_name(tag)}: {shown_bytes(now.wire_bytes)}, which the other has not"
        elif now.ended < now.flows and now.ended != then.ended:
            yield f"{_name(tag)}: {now.ended} of {now.flows} flows ended, {then.ended} there"
        elif _differ(then.p99_ps, now.p99_ps):
            yield (
                f"{_name(tag)} has a p99 of {shown_time(now.p99_ps)} for "
                f"{shown_time(then.p99_ps)} ({_over(now.p99_ps, now.bound_p99_ps)} times its "
                f"bound, {_over(then.p99_ps, then.bound_p99_ps)} there)"
                f"{_carried(now.wire_bytes, then.wire_bytes)}"
            )
    for name, total in other.on_links.items():
        if _differ(first.on_links.get(name), total):
            was = shown_bytes(first.on_links[name])
            yield f"links carry {shown_bytes(total)} of {name} for {was}"
    for key, title in _SERVING:
        a, b = first.serving.get(key, {}).get("p99"), other.serving.get(key, {}).get("p99")
        if _differ(a, b):
            yield f"{title} p99 {shown_time(b)} for {shown_time(a)}"
    for key, title in _COUNTERS:
        a, b = first.network.get(key), other.network.get(key)
        if a is not None and b is not None and _differ(a, b):
            yield f"{title}: {_shown(key)(b)} for {_shown(key)(a)}"


def _over(time_ps: int | None, bound_ps: int | None) -> str:
    return f"{time_ps / bound_ps:.3g}" if time_ps is not None and bound_ps else "-"


def _carried(now: int | None, then: int | None) -> str:
    if now is None or then is None:
        return ""
    if not _differ(then, now):
        return f", with the same {shown_bytes(now)}"
    return f", with {shown_bytes(now)} for {shown_bytes(then)}"


def _links(first: RunFigures, other: RunFigures) -> Iterator[str]:
    """Yield the tier of the network whose busiest link gained or lost most time."""
    busy: dict[str, tuple[float, float]] = {}
    for each in first.tiers.keys() & other.tiers.keys() - {"nvlink", "pcie"}:
        before = float(first.tiers[each]["max_utilisation"]) * first.time_ps
        busy[each] = float(other.tiers[each]["max_utilisation"]) * other.time_ps, before
    tier = max(busy, key=lambda t: (abs(busy[t][0] - busy[t][1]), t), default=None)
    if tier is None or not _differ(busy[tier][1], busy[tier][0]):
        return
    now, then = busy[tier]
    row, had = other.tiers[tier], first.tiers[tier]
    hot = float(row["max_utilisation"])
    named = ""
    if other.busiest is not None and abs(other.busiest[1] - hot) < 1e-8:
        most = f" (most of it {other.busiest_class})" if other.busiest_class else ""
        named = f", {other.busiest[0]}{most},"
    yield (
        f"the busiest {tier} link{named} is busy for {shown_time(round(now))} ({100 * hot:.3g} %), "
        f"{shown_time(round(then))} there ({100 * float(had['max_utilisation']):.3g} %)"
        f"{_carried(row['wire_bytes'], had['wire_bytes'])} on all of them"
    )
