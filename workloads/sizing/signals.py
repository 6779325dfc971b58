# SPDX-License-Identifier: Apache-2.0
"""Which of the servers' signals a router needs for a trace, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from railweave.workloads.sizing.case import Case

__all__ = ["RouterSignal", "plural", "router_signals"]

_GAIN: Final = 0.05  # of the prompt tokens, that choosing by prefix must spare
_FULL: Final = 0.5  # of the room taken in the mean
_LARGE: Final = 0.1  # of a replica's room taken by one request
_SLOWER: Final = 1.5  # decode step of a full batch against that of one sequence
_SCRAPE_S: Final = 0.1
_FLEET: Final = 4  # replicas to compare prefix hits over, where the trace keeps fewer busy


@dataclass(frozen=True, kw_only=True)
class RouterSignal:
    """A signal, whether the trace calls for it, and the figures that say so."""

    name: str
    needed: bool
    reason: str
    figures: dict[str, Any]


def plural(count: int, what: str) -> str:
    """Write a count and its noun.

    Examples
    --------
    >>> plural(1, "host"), plural(1200, "host")
    ('1 host', '1,200 hosts')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def router_signals(case: Case) -> list[RouterSignal]:
    """Return all signals that a router may see, those that the trace does not call for too."""
    return [_prefix(case), _kv_usage(case), _queue(case), _active(case), _session(case),
            _age(case)]  # fmt: skip


def _prefix(case: Case) -> RouterSignal:
    reuse = case.profile.reuse
    if reuse is None:
        return RouterSignal(name="cached prefix", needed=False, figures={"gain": None},
                            reason="the trace has no block ids to say so")  # fmt: skip
    fleet = max(case.replicas, _FLEET)
    together, apart = case.hits_together(fleet), case.hits_apart(fleet)
    gain = (together - apart) / reuse.prompt_tokens
    return RouterSignal(
        name="cached prefix",
        needed=gain >= _GAIN,
        figures={"gain": gain, "replicas": fleet},
        reason=f"{fleet} replicas find {apart / reuse.prompt_tokens:.0%} of the prompt tokens when "
        f"they take requests in turn, {together / reuse.prompt_tokens:.0%} if each goes where its "
        "prefix is",
    )


def _kv_usage(case: Case) -> RouterSignal:
    rate = case.profile.rate_per_s
    room = case.fit.kv_capacity_tokens
    largest = case.longest / room if room else 1.0
    running = 0.0
    if rate is not None:  # Little's law
        stays_s = case.profile.output.mean * case.step_ps / PS_PER_S
        running = rate * stays_s / case.replicas
    full = running * float(case.users(paged=True).held_tokens) / room if room else 1.0
    return RouterSignal(
        name="KV-cache usage",
        needed=full >= _FULL or largest >= _LARGE,
        figures={"mean_share": full, "largest_request_share": largest},
        reason=f"running sequences take {full:.0%} of the room at the trace's rate on "
        f"{plural(case.replicas, 'replica')}, the largest request "
        f"{largest:.0%} of one's",
    )


def _queue(case: Case) -> RouterSignal:
    prefill = case.profile.prompt
    return RouterSignal(
        name="queued prompt tokens",
        needed=prefill.cv >= 0.5,
        figures={
            "prompt_cv": prefill.cv,
            "p99_prefill_ps": case.times.busy_prefill_ps(prefill.p99),
        },
        reason=f"the p99 prompt computes for "
        f"{case.times.busy_prefill_ps(prefill.p99) / 1e9:,.0f} ms, the median one for "
        f"{case.times.busy_prefill_ps(prefill.p50) / 1e9:,.0f} ms: a count of requests hides it",
    )


def _active(case: Case) -> RouterSignal:
    alone = case.times.decode_ps(1, case.context)
    slower = case.step_ps / alone
    return RouterSignal(
        name="active sequences",
        needed=slower >= _SLOWER,
        figures={"step_full_over_one": slower},
        reason=f"a decode step of {plural(case.batch, 'sequence')} takes {slower:.1f} times that "
        "of one",
    )


def _session(case: Case) -> RouterSignal:
    sessions, turns = case.profile.sessions
    return RouterSignal(
        name="session",
        needed=turns * 2 >= case.profile.requests and sessions > 0,
        figures={"conversations": sessions, "turns": turns},
        reason=f"{turns:,} of {case.profile.requests:,} requests are turns of "
        f"{plural(sessions, 'conversation')}"
        if sessions
        else "the trace names none",
    )


def _age(case: Case) -> RouterSignal:
    rate = case.profile.rate_per_s
    missed = 0.0 if rate is None else rate * _SCRAPE_S
    return RouterSignal(
        name="its own count of what it just sent",
        needed=missed >= 1,
        figures={"arrivals_per_scrape": missed, "scrape_s": _SCRAPE_S},
        reason=f"{missed:.1f} requests arrive between two scrapes {_SCRAPE_S * 1e3:.0f} ms apart",
    )
