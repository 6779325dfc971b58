# SPDX-License-Identifier: Apache-2.0
"""Goodput: the highest rate of requests at which enough of them meet both limits of the SLO.

Zhong et al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language
Model Serving", OSDI 2024. Requests that are rejected or unfinished are misses. The share that meets
the SLO is taken to fall as the rate grows: the rate is doubled or halved until one meets it and the
other does not, and the two are then brought together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S
from railweave.runner import run_scenario
from railweave.scenario import load_scenario

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.result import Result

__all__ = ["Goodput", "Load", "find_goodput"]

_MOST_DOUBLINGS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Load:
    """One run of the sweep.

    Parameters
    ----------
    rate_scale
        ``rate_scale`` of the workload.
    rate_per_s
        Requests per second that arrive.
    share
        Share of all requests that met the SLO.
    ttft_p99_ps, tpot_p99_ps
        Of completed requests.
    """

    rate_scale: float
    rate_per_s: float
    share: float
    ttft_p99_ps: int
    tpot_p99_ps: int | None


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What the sweep found.

    Parameters
    ----------
    loads
        Every run, by rate.
    best
        The highest rate that met the share; None if none did.
    bracketed
        Whether a higher rate was seen to miss it.
    """

    loads: tuple[Load, ...]
    best: Load | None
    bracketed: bool


def find_goodput(
    scenario: Path | str, *, share: float = 0.9, tolerance: float = 0.05, seed: int | None = None
) -> Goodput:
    """Find the goodput of a scenario with one serving workload.

    Parameters
    ----------
    scenario
        Its file.
    share
        Share of requests that must meet the SLO, 0 to 1.
    tolerance
        How close the rates that meet and miss it are brought, relative to each other.
    seed
        Instead of the scenario's.

    Raises
    ------
    InputError
        Not one serving workload, no SLO, or arrivals that follow the answers.
    """
    loaded = load_scenario(scenario)
    workload: Any = loaded.workloads[0].model
    if len(loaded.workloads) != 1 or loaded.workloads[0].kind.name != "serving":
        raise InputError(
            "goodput is of one serving workload", field="workload", expected="kind: serving"
        )
    slo = workload.slo
    if slo is None or (slo.ttft is None and slo.tpot is None):
        raise InputError(
            "there is no limit to meet",
            field="workload.slo",
            expected="slo: {ttft: ..., tpot: ...}",
        )
    if workload.arrivals is not None and workload.arrivals.kind == "closed-loop":
        raise InputError(
            "users who wait for answers have no rate of their own",
            field="workload.arrivals.kind",
            expected="an open loop",
        )
    loads: dict[float, Load] = {}

    def meets(factor: float) -> bool:
        if factor not in loads:
            overrides: dict[str, Any] = {"workload.rate_scale": workload.rate_scale * factor}
            if seed is not None:
                overrides["seed"] = seed
            result = run_scenario(load_scenario(scenario, overrides=overrides)).raise_for_status()
            loads[factor] = _load(result, workload.rate_scale * factor)
        return loads[factor].share >= share

    low, high = _bracket(meets)
    while low is not None and high is not None and high / low > 1 + tolerance:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return Goodput(
        loads=tuple(sorted(loads.values(), key=lambda load: load.rate_scale)),
        best=None if low is None else loads[low],
        bracketed=high is not None,
    )


def _bracket(meets: Any) -> tuple[float | None, float | None]:
    """Return a factor that meets the share and one, twice as high, that does not."""
    factor, up = 1.0, bool(meets(1.0))
    for _ in range(_MOST_DOUBLINGS):
        other = factor * 2 if up else factor / 2
        if meets(other) != up:
            return (factor, other) if up else (other, factor)
        factor = other
    return (factor, None) if up else (None, factor)


def _load(result: Result, rate_scale: float) -> Load:
    arrived = [row["arrival_ps"] for row in result.requests]
    span_ps = max(arrived) - min(arrived)
    serving = result.serving
    return Load(
        rate_scale=rate_scale,
        rate_per_s=(len(arrived) - 1) * PS_PER_S / span_ps if span_ps else float("inf"),
        share=serving["slo"]["share"],
        ttft_p99_ps=serving["ttft_ps"].get("p99", 0),
        tpot_p99_ps=serving["tpot_ps"].get("p99"),
    )
