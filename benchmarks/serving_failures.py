# SPDX-License-Identifier: Apache-2.0
"""Hosts, leaves and cables that fail at random times under a fleet: who is lost, who waits."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from serving_base import Asked, fleet, s, section, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.result import Result

REQUESTS = 40
KINDS = ("host", "leaf", "cable to a host", "cable to a spine", "host and leaf")


def faults(kind: str, random: np.random.Generator) -> list[dict[str, Any]]:
    """Draw what fails, when, and for how long, within the time that requests take."""
    host, rail = int(random.integers(8)), int(random.integers(8))
    found = []
    for part in kind.split(" and "):
        at, lasts = int(random.integers(0, 4000)), int(random.integers(200, 3000))
        when = {"do": "down", "at": f"{at}ms", "for": f"{lasts}ms"}
        if part == "host":
            found.append({"node": f"h{host}", **when})
        elif part == "leaf":
            found.append({"node": f"leaf0.r{rail}", **when})
        elif part == "cable to a host":
            found.append({"link": f"h{host}/nic{rail}:0-leaf0.r{rail}:{host}", **when})
        else:
            spine, cable = int(random.integers(2)), int(random.integers(4))
            ends = f"leaf0.r{rail}:{8 + 2 * cable + spine}-spine{spine}:{4 * rail + cable}"
            found.append({"link": ends, **when})
    return found


def run(seed: int) -> tuple[str, Result]:
    """Return what failed in the run of a seed, and the run."""
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    result = fleet(
        {
            "prefill": {"replicas": 4, "tp": 8},
            "decode": {"replicas": 4, "tp": 8},
            "router": "least-connections",
            "restart_delay": "500ms",
            "arrivals": {
                "kind": "poisson", "rate_per_s": 10.0, "count": REQUESTS,
                "prompt": {"least": 200, "most": 6000}, "output": {"least": 1, "most": 200},
            },
        },
        topology="h100-rail-8",
        seed=seed,
        faults=faults(kind, random),
        routing={"detection_delay": "10ms"},
    )  # fmt: skip
    return kind, result


def check(result: Result) -> tuple[int, int]:
    """Return requests without an end, and tokens too many or too few."""
    rows = result.requests
    lost = sum(row["status"] != "completed" for row in rows)
    made = sum(result.serving[pool]["tokens"] for pool in ("prefill", "decode"))
    return lost, abs(made - sum(row["output_tokens"] for row in rows))


def seen(seed: int) -> dict[str, Any]:
    """Return what is counted of the run of a seed."""
    kind, result = run(seed)
    lost, wrong = check(result)
    return {
        "kind": kind,
        "ended": result.status == "completed",
        "lost": lost,
        "wrong": wrong,
        "outages": result.serving.get("outages", []),
        "again": result.serving.get("sent_again", 0),
        "ttft_ps": result.serving["ttft_ps"]["max"],
    }


def summed(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row for each kind of failure."""
    rows = []
    for kind in KINDS:
        these = [one for one in runs if one["kind"] == kind]
        if not these:
            continue
        outages = [outage for one in these for outage in one["outages"]]
        again = [one["served_ps"] - one["down_ps"] for one in outages
                 if one["requests"] and one["served_ps"] is not None]  # fmt: skip
        back = [one["up_ps"] - one["down_ps"] for one in outages if one["up_ps"] is not None]
        rows.append(
            (
                kind,
                len(these),
                *(sum(one[key] for one in these) for key in ("ended", "lost", "wrong")),
                len(outages),
                sum(one["again"] for one in these),
                s(median(again)) if again else "-",
                s(max(again)) if again else "-",
                s(median(back)) if back else "-",
                s(max(one["ttft_ps"] for one in these)),
            )
        )
    header = (
        "what fails", "runs", "ended", "requests lost", "tokens lost or doubled", "replicas down",
        "sent again", "answered after p50 s", "max s", "back after p50 s", "TTFT max s",
    )  # fmt: skip
    return table(header, rows)


@section("failures")
def failures(asked: Asked) -> list[str]:
    """Return what became of the seeded runs."""
    return summed([seen(seed) for seed in range(asked.seeds)])
