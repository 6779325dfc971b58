# SPDX-License-Identifier: Apache-2.0
"""Lossless against loss-tolerant Ethernet, on one fabric, buffer and traffic, in one table.

Four leaves of eight hosts, four spines, 400 Gb/s everywhere (2:1 oversubscribed), 16 MB of buffer
in each switch. Traffic: an incast of the 16 hosts of two leaves on one of a third, beside seven
flows from the fourth leaf to its neighbours; an all-to-all of all 32; a shuffle from the 16 hosts
of two leaves to the 16 of the others, which crosses the spines. Every mode is a few keys of
``network:`` and ``routing:``.
"""

from __future__ import annotations

import argparse
from typing import Any

from railweave.runner import run_scenario

LEAF, LEAVES, SPINES = 8, 4, 4
LOSSY = {"pfc": {"enabled": False}, "retries": 1000}
NO_CC = {"cc": {"kind": "none"}, "ecn": {"enabled": False}}
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PFC, DCQCN": ({"cc": {"kind": "dcqcn"}}, {}),
    "PFC only": (NO_CC, {}),
    "go-back-N, DCQCN": ({**LOSSY, "cc": {"kind": "dcqcn"}, "recovery": "go-back-n"}, {}),
    "selective repeat, DCQCN": (
        {**LOSSY, "cc": {"kind": "dcqcn"}, "recovery": "selective-repeat"},
        {},
    ),
    "selective repeat": ({**LOSSY, **NO_CC, "recovery": "selective-repeat"}, {}),
    "trimming, spray, credit": ({**LOSSY, "recovery": "trim"}, {"policy": "spray"}),
}
SIZES = {"incast": 4_000_000, "all-to-all": 1_000_000, "shuffle": 1_000_000}


def topology() -> dict[str, Any]:
    """Return the fabric, inline."""
    hosts = LEAF * LEAVES
    nodes: dict[str, Any] = {f"h{i}": "host" for i in range(hosts)}
    nodes |= {f"l{i}": {"type": "switch", "tier": "leaf"} for i in range(LEAVES)}
    nodes |= {f"s{i}": {"type": "switch", "tier": "spine"} for i in range(SPINES)}
    ends = [[f"h{i}", f"l{i // LEAF}"] for i in range(hosts)]
    ends += [[f"l{i}", f"s{j}"] for i in range(LEAVES) for j in range(SPINES)]
    links = [{"ends": pair, "rate": "400Gbps", "length": "20m"} for pair in ends]
    return {"kind": "custom", "nodes": nodes, "links": links}


def pairs(traffic: str) -> list[tuple[int, int]]:
    """Return who sends to whom."""
    hosts = range(LEAF * LEAVES)
    if traffic == "incast":
        return [(i, 0) for i in hosts[8:24]] + [(i, i - 23) for i in hosts[24:31]]
    if traffic == "all-to-all":
        return [(i, j) for i in hosts for j in hosts if i != j]
    return [(i, j) for i in hosts[:16] for j in hosts[16:]]


def scenario(traffic: str, mode: str, *, size: int | None = None, seed: int = 1) -> dict[str, Any]:
    """Return the scenario of one cell of the table."""
    network, routing = MODES[mode]
    flows = [
        {"id": f"{i}-{j}", "src": f"h{i}", "dst": f"h{j}", "size": f"{size or SIZES[traffic]}B"}
        for i, j in pairs(traffic)
    ]
    return {
        "schema": 1, "seed": seed, "engine": "packet", "topology": topology(),
        "network": {"buffer": {"total": "16MB"}, **network}, "routing": routing,
        "workload": {"kind": "flows", "flows": flows},
    }  # fmt: skip


def row(traffic: str, mode: str, **options: Any) -> list[str]:
    """Run one cell and return its row."""
    result = run_scenario(scenario(traffic, mode, **options))
    result.raise_for_status()
    net, flows = result.network, result.flows
    drops = net["drops"]
    if drops["lossless_violation"]:
        raise SystemExit(f"{traffic}, {mode}: a lossless priority dropped packets")
    return [
        traffic, mode,
        f"{flows.fct_max_ps / 1e6:.1f}", f"{flows.fct_p99_ps / 1e6:.1f}",
        str(net["pause_frames"]), f"{net['paused_ps_total'] / 1e6:.0f}",
        str(net["victim_count"]), str(drops["buffer"]), str(net["trims"]), str(net["timeouts"]),
        f"{net['retransmitted_bytes'] / 1e6:.2f}", f"{net['headroom_bytes'] / 1e6:.1f}",
    ]  # fmt: skip


HEAD = (
    *("traffic", "mode", "time us", "p99 us", "pauses", "paused us", "victims"),
    *("drops", "trims", "timeouts", "resent MB", "headroom MB"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SIZES), help="one traffic only")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for traffic in SIZES if given.only is None else [given.only]:
        for mode in MODES:
            print("| " + " | ".join(row(traffic, mode, seed=given.seed)) + " |", flush=True)


if __name__ == "__main__":
    main()
