# SPDX-License-Identifier: Apache-2.0
"""What fails at random times under a fleet, for a while or for ever: who is lost, who waits."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from serving_base import Asked, fleet, rail, s, section, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.result import Result

REQUESTS = 40
GROUP = 4  # hosts under the same eight leaves; eight hosts in all
KINDS = (
    "host", "GPU", "NIC", "leaf", "spine", "cable to a host", "cable to a spine", "host and leaf",
)  # fmt: skip
FOR_EVER = 0.4


def faults(kind: str, random: np.random.Generator) -> list[dict[str, Any]]:
    """Draw what fails, when, and for how long, within the time that requests take."""
    host, rail = int(random.integers(2 * GROUP)), int(random.integers(8))
    found = []
    for part in kind.split(" and "):
        when = {"do": "down", "at": f"{int(random.integers(0, 6000))}ms"}
        if random.random() >= FOR_EVER:
            when["for"] = f"{int(random.integers(200, 3000))}ms"
        group, place = divmod(host, GROUP)
        leaf = f"leaf{group}.r{rail}"
        if part == "cable to a host":
            found.append({"link": f"h{host}/nic{rail}:0-{leaf}:{place}", **when})
        elif part == "cable to a spine":
            cable = int(random.integers(4))
            ends = f"{leaf}:{GROUP + cable}-spine0:{4 * (8 * group + rail) + cable}"
            found.append({"link": ends, **when})
        else:
            names = {
                "host": f"h{host}", "GPU": f"h{host}/gpu{rail}", "NIC": f"h{host}/nic{rail}",
                "leaf": leaf, "spine": "spine0",
            }  # fmt: skip
            found.append({"node": names[part], **when})
    return found


def deployment(random: np.random.Generator) -> dict[str, Any]:
    """Draw one: pools of tp 8, a host each, two of a pool in each group; or pairs of hosts."""

    def hosts(*numbers: int) -> dict[str, Any]:
        return {"policy": "list", "gpus": [f"h{number}" for number in numbers]}

    routers = ["round-robin", "least-connections", "topology-aware"]
    keys: dict[str, Any] = {"router": str(random.choice(routers)), "restart_delay": "500ms"}
    if random.random() < 0.3:
        place = hosts(*range(2 * GROUP))
        return {**keys, "colocated": {"replicas": 4, "tp": 8, "pp": 2, "placement": place}}
    return {
        **keys,
        "prefill": {"replicas": 4, "tp": 8, "placement": hosts(0, 1, 4, 5)},
        "decode": {"replicas": 4, "tp": 8, "placement": hosts(2, 3, 6, 7)},
        "kv_transfer": str(random.choice(["pull", "push", "stream"])),
    }


def run(seed: int, requests: int = REQUESTS) -> tuple[str, Result]:
    """Return what failed in the run of a seed, and the run."""
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    result = fleet(
        {
            **deployment(random),
            "arrivals": {
                "kind": "poisson", "rate_per_s": 10.0, "count": requests,
                "prompt": {"least": 200, "most": 6000}, "output": {"least": 1, "most": 400},
            },
        },
        topology={**rail(2 * GROUP), "group": GROUP},
        seed=seed,
        faults=faults(kind, random),
        routing={"detection_delay": "10ms"},
    )  # fmt: skip
    return kind, result


def check(result: Result) -> tuple[int, int]:
    """Return requests without an end, and tokens too many or too few."""
    rows = result.requests
    lost = sum(row["status"] != "completed" for row in rows)
    pools = [name for name in ("prefill", "decode", "colocated") if name in result.serving]
    made = sum(result.serving[pool]["tokens"] for pool in pools)
    return lost, abs(made - sum(row["output_tokens"] for row in rows))


def seen(seed: int) -> dict[str, Any]:
    """Return what is counted of the run of a seed."""
    kind, result = run(seed)
    lost, wrong = check(result)
    return {
        "kind": kind,
        "for_ever": sum("for" not in fault for fault in result.scenario["faults"]) > 0,
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
                *(sum(one[key] for one in these) for key in ("for_ever", "ended", "lost", "wrong")),
                len(outages),
                len(back),
                sum(one["again"] for one in these),
                s(median(again)) if again else "-",
                s(max(again)) if again else "-",
                s(median(back)) if back else "-",
                s(max(one["ttft_ps"] for one in these)),
            )
        )
    header = (
        "what fails", "runs", "for ever", "ended", "requests lost", "tokens lost or doubled",
        "replicas down", "of them back", "sent again", "answered after p50 s", "max s",
        "back after p50 s", "TTFT max s",
    )  # fmt: skip
    return table(header, rows)


@section("failures")
def failures(asked: Asked) -> list[str]:
    """Return what became of the seeded runs."""
    return summed([seen(seed) for seed in range(asked.seeds)])
