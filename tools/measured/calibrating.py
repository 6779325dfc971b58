# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of a profile to measured rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from railweave.collectives.gloo import gloo_counts, predict_gloo
from railweave.fabric.errors import InputError
from railweave.fabric.host_profiles import HostProfile
from railweave.fabric.units import PS_PER_S
from railweave.tools.measured.fitting import Fit, fit
from railweave.tools.measured.hardware import machines_of
from railweave.tools.measured.judging import predictor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from railweave.fabric.profiles import DeviceProfile
    from railweave.tools.measured.data import DataSet, Row
    from railweave.tools.measured.hardware import Machines
    from railweave.tools.measured.judging import Comparison

__all__ = ["Calibrated", "calibrate_device", "calibrate_host"]

_MOST: Final = 1.2  # of an efficiency, as profiles allow
_FACTOR_SPREAD: Final = 0.7  # ln; an operation takes half to twice what steps and bytes say


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A fitted profile, the fit, and the rows that it was fitted to, in the order of the fit."""

    profile: DeviceProfile | HostProfile
    fit: Fit
    rows: tuple[tuple[DataSet, Row], ...]
    notes: tuple[str, ...] = ()


def _rows(sets: Sequence[DataSet]) -> list[tuple[DataSet, Row]]:
    return [(data, row) for data in sets for row in data.rows if row.op != "rdma_write"]


def _whole(value: float) -> int:
    return max(1, round(value))


def _tidy(values: Mapping[str, float]) -> dict[str, float]:
    """Return constants with four significant digits, as a profile shows them."""
    return {key: float(f"{value:.4g}") for key, value in values.items()}


def calibrate_host(sets: Sequence[DataSet], *, name: str) -> Calibrated:
    """Fit a host profile to gloo's rows.

    Raises
    ------
    InputError
        There are fewer rows than constants, or ranks on several hosts.
    """
    rows = _rows(sets)
    for data, _ in rows:
        if data.nodes != 1:
            raise InputError(f"{data.name} has {data.nodes} hosts; a host profile is of one")
    if len(rows) < 4:
        raise InputError(f"{len(rows)} rows are too few to fit to", expected="4 or more")
    counts = [gloo_counts(r.op, size_bytes=r.size_bytes, ranks=d.ranks) for d, r in rows]
    per_step = [r.time_us / 1e6 / n for (_, r), (n, _) in zip(rows, counts, strict=True)]
    largest = sorted(range(len(rows)), key=lambda k: counts[k][1])[-3:]
    rates = [counts[k][1] / (rows[k][1].time_us / 1e6) for k in largest]
    ops = list(dict.fromkeys(row.op for _, row in rows))
    start = {"step": median(per_step), "rate": median(rates) * 2}
    start |= {f"factor.{op}": 1.0 for op in ops}

    def profile(constants: Mapping[str, float]) -> HostProfile:
        return HostProfile(
            name=name,
            step_ps=_whole(constants["step"] * PS_PER_S),
            rate_bps=_whole(constants["rate"] * 8),
            factor=MappingProxyType({op: constants[f"factor.{op}"] for op in ops}),
        )

    def predicted(constants: Mapping[str, float]) -> list[float]:
        made = profile(constants)
        return [
            predict_gloo(made, row.op, size_bytes=row.size_bytes, ranks=data.ranks).time_s
            for data, row in rows
        ]

    found = fit(
        start,
        predicted,
        [row.time_us / 1e6 for _, row in rows],
        loose={f"factor.{op}": _FACTOR_SPREAD for op in ops},
    )
    source = ", ".join(dict.fromkeys(data.name for data, _ in rows))
    made = profile(_tidy(found.values))
    notes = []
    if len({data.ranks for data, _ in rows}) == 1:
        ranks = rows[0][0].ranks
        notes.append(f"all rows have {ranks} ranks: how times grow with ranks is not in them")
    made = replace(made, source=f"fitted to {source}")
    return Calibrated(profile=made, fit=found, rows=tuple(rows), notes=tuple(notes))


def _constants(base: DeviceProfile, modes: Sequence[str]) -> tuple[dict[str, float], set[str]]:
    """Return the constants of a device profile that can be fitted, and which are shares."""
    found: dict[str, float] = {f"launch.{mode}": float(base.launch_ps[mode]) for mode in modes}
    found |= {f"step.{key}": float(value) for key, value in base.step_ps.items()}
    found |= {f"efficiency.{key}": value for key, value in base.efficiency.items()}
    found |= {f"ramp.{key}": float(value) for key, value in base.ramp_bytes.items()}
    found |= {f"p2p.{key}": float(value) for key, value in base.p2p_ps.items()}
    found["copy"] = float(base.copy_bps)
    if base.nvls is not None:
        found["nvls.latency"] = float(base.nvls.latency_ps)
        found["nvls.efficiency"] = base.nvls.efficiency
        found["nvls.ramp"] = float(base.nvls.ramp_bytes)
    shares = {key for key in found if "efficiency" in key}
    return {key: max(value, 1e-6) for key, value in found.items()}, shares


def _with(base: DeviceProfile, values: Mapping[str, float]) -> DeviceProfile:
    """Return a profile with other constants."""

    def part(section: str, old: Mapping[str, Any], whole: bool = True) -> Mapping[str, Any]:
        new = dict(old)
        for key in old:
            value = values.get(f"{section}.{key}")
            if value is not None:
                new[key] = _whole(value) if whole else value
        return MappingProxyType(new)

    nvls = base.nvls
    if nvls is not None:
        nvls = replace(
            nvls,
            latency_ps=_whole(values["nvls.latency"]),
            efficiency=values["nvls.efficiency"],
            ramp_bytes=_whole(values["nvls.ramp"]),
        )
    return replace(
        base,
        launch_ps=part("launch", base.launch_ps),
        step_ps=part("step", base.step_ps),
        efficiency=part("efficiency", base.efficiency, whole=False),
        ramp_bytes=part("ramp", base.ramp_bytes),
        p2p_ps=part("p2p", base.p2p_ps),
        copy_bps=_whole(values["copy"]),
        nvls=nvls,
    )


def calibrate_device(
    sets: Sequence[DataSet],
    *,
    base: DeviceProfile | None,
    machines: Mapping[str, Machines],
    name: str,
) -> Calibrated:
    """Fit a device profile to rows of one kind of hardware.

    Parameters
    ----------
    sets
        Their rows; those of several nodes are used only where a network is known, which is kept.
    base
        The profile to begin with; None: that of the hardware.
    machines
        Machines of a topology by name of the data set, where one was given.

    Raises
    ------
    InputError
        The sets are of unlike hardware, or there are too few rows.
    """
    known: dict[int, Machines] = {}
    notes: list[str] = []
    used: list[DataSet] = []
    for data in sets:
        if not data.rows:
            continue
        place = machines.get(data.name) or machines_of(data, base)
        known[id(data)] = place
        used.append(data)
        if place.network is not None:
            notes.append(
                f"{data.name} crosses a network: {place.network.name} is taken as it is, and what "
                "is wrong in it goes into the constants of the box"
            )
    names = {place.profile.name for place in known.values()}
    if len(names) > 1:
        raise InputError(
            f"the file holds unlike hardware: {', '.join(sorted(names))}",
            expected="one kind of hardware, or --profile of the one to begin with",
        )
    rows = _rows(used)
    if len(rows) < 4:
        raise InputError(f"{len(rows)} rows are too few to fit to", expected="4 or more")
    device = known[id(used[0])].profile
    modes = [m for m in dict.fromkeys(row.launch for _, row in rows) if m in device.launch_ps]
    start, shares = _constants(device, modes or list(device.launch_ps)[:1])

    def predicted(constants: Mapping[str, float]) -> list[float]:
        made = _with(device, constants)
        one: dict[int, Callable[[Row], Comparison]] = {}
        for data in used:
            one[id(data)] = predictor(data, None, replace(known[id(data)], profile=made))[0]
        return [one[id(data)](row).predicted_us for data, row in rows]

    found = fit(
        start,
        predicted,
        [row.time_us for _, row in rows],
        most=dict.fromkeys(shares, _MOST),
        loose=dict.fromkeys(start, 3.0),
    )
    made = _with(device, _tidy(found.values))
    made = replace(
        made,
        name=name,
        title=f"{device.title}, calibrated",
        source=f"fitted from {device.name}",
        fitted_to=tuple(dict.fromkeys(data.name for data in used)),
    )
    return Calibrated(profile=made, fit=found, rows=tuple(rows), notes=tuple(dict.fromkeys(notes)))
