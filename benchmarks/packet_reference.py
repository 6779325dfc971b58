# SPDX-License-Identifier: Apache-2.0
"""The packet engine against recorded runs of a published simulator, in one table.

The runs are those of the public code of Li et al., "HPCC: high precision congestion control",
SIGCOMM 2019 (https://github.com/alibaba-edu/High-Precision-Congestion-Control, ns-3): a star, a
leaf-spine and a dumbbell of 100 Gb/s, with pauses, marks and DCQCN. A folder holds
``inputs/*.topo`` and ``inputs/*.flow`` in that simulator's formats, ``paths/``, and ``summary.csv``
of its results. Its ways are set through ordinary keys of a scenario.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

from railweave.runner import run_scenario

# Times are whole nanoseconds there, rounded down: 1048 B take 83 ns at 100 Gb/s.
RATE = f"{8 * 1048 / 83:.9f}Gbps"
SEEDS = (1, 2, 3, 4, 5)
RUNS = {
    "W1a_perm32_star_dcqcn": ("star32", "perm32", "dcqcn", 32),
    "W1b_perm32_leafspine_nocc": ("leafspine32", "perm32", "nocc", 32),
    "W1b_perm32_leafspine_paper": ("leafspine32", "perm32", "paper", 32),
    "W1b_perm32_leafspine_dcqcn": ("leafspine32", "perm32", "dcqcn", 32),
    "W2_incast16_nocc_32MB": ("star17", "incast16", "nocc", 32),
    "W2_incast16_nocc_4MB": ("star17", "incast16", "nocc", 4),
    "W2_incast16_paper_32MB": ("star17", "incast16", "paper", 32),
    "W2_incast16_paper_4MB": ("star17", "incast16", "paper", 4),
    "W2_incast16_dcqcn_32MB": ("star17", "incast16", "dcqcn", 32),
    "W2_incast16_dcqcn_4MB": ("star17", "incast16", "dcqcn", 4),
    "W3_dumbbell_nocc_32MB": ("dumbbell8", "dumbbell", "nocc", 32),
    "W3_dumbbell_paper_32MB": ("dumbbell8", "dumbbell", "paper", 32),
    "W3_dumbbell_dcqcn_32MB": ("dumbbell8", "dumbbell", "dcqcn", 32),
}


def network(profile: str, buffer_mib: int) -> dict[str, Any]:
    """Return the network block that makes the engine do as that simulator does."""
    cc: dict[str, Any] = {"kind": "none"}
    if profile != "nocc":
        cc = {"kind": "dcqcn", "profile": "scaled", "notify": "ack-echo"}
    if profile == "paper":
        cc |= {"alpha_period": "50us", "decrease_period": "50us", "rate_timer": "55us"}
    return {
        "mtu": "1000B",
        "frame_overhead": "48B",
        "switch_latency": "0ns",
        "host_latency": "0ns",
        "ack": {"every": 1, "size": "60B", "class": "data", "nic_first": True},
        "fct_at": "sender-ack",
        "rto": "none",
        "buffer": {
            "total": f"{buffer_mib}MiB", "reserve": "4KiB", "headroom": "37500B",
            "alpha": 0.125, "hysteresis": "3KiB",
        },
        "pfc": {"expiry": False, "response": "0ns"},
        "ecn": {"enabled": profile != "nocc", "kmin": "400kB", "kmax": "1600kB", "pmax": 0.2},
        "cc": cc,
    }  # fmt: skip


def topology(file: Path) -> tuple[dict[str, Any], set[int]]:
    """Read nodes and links; return a custom topology, and which nodes are switches."""
    lines = file.read_text().split("\n")
    n_nodes, _, n_links = map(int, lines[0].split())
    switches = set(map(int, lines[1].split()))
    links = [line.split()[:2] for line in lines[2 : 2 + n_links]]
    return {
        "kind": "custom",
        "nodes": {f"n{i}": "switch" if i in switches else "host" for i in range(n_nodes)},
        "links": [{"ends": [f"n{a}", f"n{b}"], "rate": RATE, "delay": "1us"} for a, b in links],
    }, switches


def pinned(file: Path) -> dict[tuple[str, str], list[str]]:
    """Read ``src dst : node node ...`` lines."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        ends, nodes = line.split(":")
        src, dst = ends.split()
        found[src, dst] = [f"n{node}" for node in nodes.split()]
    return found


def scenario(folder: Path, run: str, seed: int) -> dict[str, Any]:
    """Return the scenario of one run."""
    topo, traffic, profile, buffer_mib = RUNS[run]
    built, _ = topology(folder / "inputs" / f"{topo}.topo")
    data = pinned(folder / "paths" / f"{topo}-{traffic}.paths")
    back = pinned(folder / "paths" / f"{topo}-{traffic}.ack-paths")
    flows = []
    for i, line in enumerate((folder / "inputs" / f"{traffic}.flow").read_text().splitlines()[1:]):
        if not line.strip():
            continue
        src, dst, _, _, size, _ = line.split()
        flow: dict[str, Any] = {
            "id": f"f{i}", "src": f"n{src}", "dst": f"n{dst}", "size": f"{size}B"
        }  # fmt: skip
        if (src, dst) in data:
            flow["path"] = data[src, dst]
        if (dst, src) in back:
            flow["ack_path"] = back[dst, src]
        flows.append(flow)
    return {
        "schema": 1, "engine": "packet", "seed": seed, "topology": built,
        "network": network(profile, buffer_mib), "workload": {"kind": "flows", "flows": flows},
    }  # fmt: skip


def figures(folder: Path, run: str, seed: int) -> dict[str, float]:
    """Run once; return mean, p99 and maximum in us, pauses and drops."""
    result = run_scenario(scenario(folder, run, seed)).raise_for_status()
    times = sorted(record.fct_ps / 1e6 for record in result.records)
    drops = sum(result.network["drops"].values())
    return {
        "mean": statistics.fmean(times),
        "p99": times[-1],
        "max": times[-1],
        "pauses": result.network["pause_frames"],
        "drops": drops,
    }


def reference(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Read that simulator's figures, a row per seed."""
    found: dict[str, list[dict[str, float]]] = {}
    with (folder / "summary.csv").open() as text:
        for row in csv.DictReader(text):
            found.setdefault(row["run"], []).append(
                {
                    "mean": float(row["fct_mean_us"]),
                    "p99": float(row["fct_p99_us"]),
                    "max": float(row["fct_max_us"]),
                    "pauses": float(row["pfc_pauses"]),
                }
            )
    return found


def verdict(mine: list[dict[str, float]], theirs: list[dict[str, float]], profile: str) -> str:
    """Say whether a run lies where it must."""
    wrong = []
    if any(one["drops"] for one in mine):
        wrong.append("drops")
    if profile == "nocc" or len(theirs) == 1:
        for name, allowed in (("mean", 0.01), ("max", 0.01), ("pauses", 0.1)):
            want, got = theirs[0][name], mine[0][name]
            if abs(got - want) > allowed * want + (0.5 if name == "pauses" else 0):
                wrong.append(name)
    else:
        for name in ("mean", "p99"):
            got = statistics.fmean(one[name] for one in mine)
            low = 0.9 * min(one[name] for one in theirs)
            high = 1.1 * max(one[name] for one in theirs)
            if not low <= got <= high:
                wrong.append(name)
    return "ok" if not wrong else "off: " + ", ".join(wrong)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the recorded runs")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args()
    theirs = reference(options.folder)
    print(
        "| run | mean us, theirs | ours | max or p99 us, theirs | ours | pauses, theirs | ours | |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for run, (_, _, profile, _) in RUNS.items():
        if options.only not in run:
            continue
        seeds = SEEDS[: len(theirs[run])]
        mine = [figures(options.folder, run, seed) for seed in seeds]

        def span(rows: list[dict[str, float]], name: str, digits: int = 1) -> str:
            low, high = min(row[name] for row in rows), max(row[name] for row in rows)
            text = f"{low:.{digits}f}"
            return text if f"{high:.{digits}f}" == text else f"{text} to {high:.{digits}f}"

        cells = [
            run, span(theirs[run], "mean"), span(mine, "mean"), span(theirs[run], "p99"),
            span(mine, "p99"), span(theirs[run], "pauses", 0), span(mine, "pauses", 0),
            verdict(mine, theirs[run], profile),
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
