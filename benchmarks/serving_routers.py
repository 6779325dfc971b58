# SPDX-License-Identifier: Apache-2.0
"""Every router on two traces at three loads; stale metrics; pools against colocated replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving_base import Asked, fleet, gb, ms, s, section, table

from railweave.workloads.serving.routers import ROUTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.result import Result

# Times the trace's own rate: light, near what the prefill pool can compute, and nearest to it.
LOADS = {"mooncake": (1.0, 2.0, 2.4), "azure": (10.0, 20.0, 25.0)}
SLO = {
    "mooncake": {"ttft": "10s", "tpot": "50ms"},
    "azure": {"ttft": "1s", "tpot": "50ms"},
}
WEIGHTS = {"scorers": {"prefix": 2, "queue": 1}}  # llm-d's sample profile
POOLS = {"prefill": {"replicas": 4, "tp": 8}, "decode": {"replicas": 4, "tp": 8}}
HEADER = (
    "load", "router", "TTFT p50 s", "p99 s", "TPOT p99 ms", "goodput", "hits", "KV moved GB",
)  # fmt: skip


def served(asked: Asked, trace: str, load: float, router: Any, **keys: Any) -> Result:
    """Return the run of a trace at a load."""
    workload = {
        **asked.trace(trace), "rate_scale": load, "slo": SLO[trace], "router": router,
        "prefix_cache": "lru", **POOLS, **keys,
    }  # fmt: skip
    return fleet({key: value for key, value in workload.items() if value is not None})


def row(result: Result, *head: object) -> tuple[object, ...]:
    """Return the figures of a run after what it is called."""
    serving = result.serving
    ttft, tpot = serving["ttft_ps"], serving["tpot_ps"]
    return (
        *head,
        s(ttft["p50"]),
        s(ttft["p99"]),
        ms(tpot["p99"]),
        f"{serving['slo']['share']:.1%}",
        f"{serving['prefix']['share']:.1%}",
        gb(serving["kv_bytes"]),
    )


def router_rows(asked: Asked, trace: str, loads: Sequence[float]) -> list[tuple[object, ...]]:
    """Return a row for each router at each load."""
    rows = []
    for load in loads:
        for name in ROUTERS.names():
            router = {"policy": name, **WEIGHTS} if name == "weighted" else name
            rows.append(row(served(asked, trace, load, router), f"{load:g} x", name))
    return rows


@section("routers-mooncake")
def routers_mooncake(asked: Asked) -> list[str]:
    """Return the table of routers over Mooncake's trace."""
    return table(HEADER, router_rows(asked, "mooncake", LOADS["mooncake"]))


@section("routers-azure")
def routers_azure(asked: Asked) -> list[str]:
    """Return the table of routers over Azure's trace."""
    return table(HEADER, router_rows(asked, "azure", LOADS["azure"]))


@section("stale")
def stale(asked: Asked) -> list[str]:
    """Return what old metrics make of routers that trust them."""
    rows = []
    load = LOADS["azure"][1]
    for name in ("round-robin", "least-connections", "power-of-two", "weighted"):
        for age in ("0s", "100ms", "1s", "5s"):
            router = {"policy": name, "scrape_interval": age}
            if name == "weighted":
                router |= WEIGHTS
            if name == "round-robin" and age != "0s":
                continue  # it looks at nothing
            rows.append(row(served(asked, "azure", load, router), age, name))
    return table(("metrics every", *HEADER[1:]), rows)


def pool_rows(asked: Asked, trace: str, loads: Sequence[float]) -> list[tuple[object, ...]]:
    """Return colocated replicas beside pools of several ratios, on the same 64 GPUs."""
    rows = []
    for load in loads:
        for budget in (2048, 8192):
            found = served(
                asked, trace, load, "least-connections", prefill=None, decode=None,
                colocated={"replicas": 8, "tp": 8}, max_num_batched_tokens=budget,
            )  # fmt: skip
            rows.append(row(found, f"{load:g} x", f"8 colocated, {budget:,} tokens a step"))
        for first in (2, 4, 5, 6):
            found = served(
                asked, trace, load, "least-connections",
                prefill={"replicas": first, "tp": 8}, decode={"replicas": 8 - first, "tp": 8},
            )  # fmt: skip
            rows.append(row(found, f"{load:g} x", f"{first} prefill, {8 - first} decode"))
    return rows


POOL_HEADER = ("load", "replicas of tp 8", *HEADER[2:])


@section("pools-mooncake")
def pools_mooncake(asked: Asked) -> list[str]:
    """Return the table of pools over Mooncake's trace."""
    return table(POOL_HEADER, pool_rows(asked, "mooncake", LOADS["mooncake"][:2]))


@section("pools-azure")
def pools_azure(asked: Asked) -> list[str]:
    """Return the table of pools over Azure's trace."""
    return table(POOL_HEADER, pool_rows(asked, "azure", LOADS["azure"][:2]))
