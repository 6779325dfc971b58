# SPDX-License-Identifier: Apache-2.0
"""How long a job takes on a design: a scenario on another topology, with parts that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import TooLargeError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from railweave.fabric.faults import Fault
    from railweave.result import Result
    from railweave.scenario import Scenario

__all__ = ["JobTime", "load_on", "result_on", "run_on"]

_ID: Final = 12


@dataclass(frozen=True, kw_only=True)
class JobTime:
    """How a workload ran.

    Parameters
    ----------
    time_ps, bound_ps
        Simulated time and its lower bound; None where it could not run to its end.
    said
        Why it could not.
    run
        Begins the digest of the resolved scenario, faults included.
    scenario
        That scenario, which repeats the run.
    restarted
        Where GPUs lost their NICs: the job started again, on the NICs that are left
        (``routing.failover: nic``).
    """

    time_ps: int | None
    bound_ps: int | None
    said: str = ""
    run: str = ""
    scenario: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    restarted: JobTime | None = None

    @property
    def after_all(self) -> JobTime:
        """What there is to measure: the run, or the one started again where it stopped."""
        return self.restarted if self.time_ps is None and self.restarted is not None else self

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        restarted = {} if self.restarted is None else {"restarted": self.restarted.to_dict()}
        return {
            "time_ps": self.time_ps,
            "bound_ps": self.bound_ps,
            "said": self.said,
            "run": self.run,
            **restarted,
        }


def run_on(
    scenario: Path,
    topology: str | None,
    faults: Iterable[Fault] = (),
    *,
    overrides: dict[str, Any] | None = None,
) -> JobTime:
    """Run a scenario, on another topology and with faults from the beginning.

    Parameters
    ----------
    scenario
        The scenario file.
    topology
        A shipped name or an absolute path in place of the scenario's topology, or None.
    faults
        Beside those of the file.
    overrides
        Other keys of the scenario, dotted.
    """
    found = result_on(scenario, topology, faults, overrides=overrides)
    return found[0]


def result_on(
    scenario: Path,
    topology: str | None,
    faults: Iterable[Fault] = (),
    *,
    overrides: dict[str, Any] | None = None,
) -> tuple[JobTime, Result | None]:
    """Run a scenario as `run_on` does, and return the result too, None where nothing ran.

    A job whose ranks the fabric does not join cannot run: that is a finding, not an error; and so
    is one that is too large for this machine.
    """
    from railweave.runner import run_scenario
    from railweave.scenario import scenario_sha256

    loaded = load_on(scenario, topology, faults, overrides=overrides)
    resolved = loaded.resolved()
    about: dict[str, Any] = {"run": scenario_sha256(resolved)[:_ID], "scenario": resolved}
    try:
        result = run_scenario(loaded)
    except (UnreachableError, TooLargeError) as error:
        return JobTime(time_ps=None, bound_ps=None, said=error.message, **about), None
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if result.status != "completed":
        return JobTime(time_ps=None, bound_ps=None, said=str(result.error), **about), result
    return JobTime(time_ps=result.sim_time_ps, bound_ps=result.bound_ps, **about), result


def load_on(
    scenario: Path,
    topology: str | dict[str, Any] | None,
    faults: Iterable[Fault] = (),
    *,
    overrides: dict[str, Any] | None = None,
) -> Scenario:
    """Load a scenario as `run_on` does; ``topology`` may be the content of a file too."""
    from railweave.scenario import load_scenario

    keys: dict[str, Any] = dict(overrides or {})
    if topology is not None:
        keys["topology"] = topology
    mine = [_as_mapping(fault) for fault in faults]
    loaded = load_scenario(scenario, overrides=keys)
    if mine:
        own = loaded.document.data.get("faults") or []
        loaded = load_scenario(scenario, overrides={**keys, "faults": [*own, *mine]})
    return loaded


def _as_mapping(fault: Fault) -> dict[str, str]:
    name = {"link": fault.link} if fault.link is not None else {"node": fault.node or ""}
    return {"at": "0s", "do": fault.do, **name}
