# SPDX-License-Identifier: Apache-2.0
"""What building a large fabric takes, with its routes: CPU time, memory, and how both grow.

``python benchmarks/building.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import HEADER, Cpu, cpu_of, machine, peak_mib, reference, row

import railweave

__all__ = ["build_with_routes", "exponent", "main", "measure_once", "three_tiers"]

LIMITS = {16_384: (5.0, 2048), 65_536: (30.0, 6144)}  # GPUs: CPU seconds, MiB
GROWTH = 1.15


def three_tiers(gpus: int) -> dict[str, Any]:
    """Return a rail-optimized topology of DGX H100 on switches of 128 x 400G.

    A group of 64 hosts is a pod: 8 leaves and 8 spines, 64 ports down and 64 up each. 65,536 GPUs
    are 128 pods under 512 cores, every port of which is taken.
    """
    cable = {"model": "roce-lossless", "rate": "400Gbps", "length": "30m"}
    return {
        "schema": 1,
        "kind": "rail-optimized",
        "hosts": {"count": gpus // 8, "model": "dgx-h100"},
        "group": 64,
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4", "oversubscription": "1:1"},
        "core": {"switch": "spectrum-4", "oversubscription": "1:1"},
        "links": {tier: cable for tier in ("host-leaf", "leaf-spine", "spine-core")},
    }


def build_with_routes(topology: dict[str, Any]) -> int:
    """Build a fabric and route from each GPU to the next and into the next pod; count the links.

    Every leaf is a destination, so that the distances to all of them are worked out.
    """
    fabric = railweave.build_topology(railweave.load_topology(topology))
    routing = railweave.Routing(fabric)
    pod = 8 * topology["group"]
    return sum(
        len(routing.routes(fabric.gpus, np.roll(fabric.gpus, -shift)).links) for shift in (1, pod)
    )


def measure_once(gpus: int) -> dict[str, float]:
    """Build once in this process; return CPU seconds, peak memory in MiB, and the links routed."""
    build_with_routes(three_tiers(1024))  # kernels and catalogue are read once
    started = time.process_time()
    links = build_with_routes(three_tiers(gpus))
    seconds = time.process_time() - started
    return {"seconds": seconds, "mib": peak_mib(), "links": links}


def _in_a_process(gpus: int) -> dict[str, float]:
    """Measure in a process of its own, whose peak of memory is no other's."""
    command = [sys.executable, str(Path(__file__).resolve()), str(gpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the growth exponent: the slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main(*, sizes: tuple[int, ...] = (1_024, 4_096, 16_384, 65_536), repeats: int = 5) -> None:
    """Print the table.

    Parameters
    ----------
    sizes
        GPUs of each fabric, in whole pods of 512.
    repeats
        Runs of each, every one in a process of its own.
    """
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    medians = []
    for gpus in sizes:
        runs = [_in_a_process(gpus) for _ in range(repeats)]
        cpu = Cpu(tuple(run["seconds"] for run in runs))
        medians.append(cpu.median)
        seconds, mib = LIMITS.get(gpus, (None, None))
        name = (
            f"rail-optimized, 3 tiers, {gpus:,} GPUs, routes over {int(runs[0]['links']):,} links"
        )
        print(row(name, cpu, limit=seconds))
        peak = max(run["mib"] for run in runs)
        said = "" if mib is None else f" of {mib:,}: {'ok' if peak <= mib else 'MISSED'}"
        print(f"  peak memory of its process {peak:,.0f} MiB{said}")
    found = exponent(list(sizes), medians)
    verdict = "ok" if found <= GROWTH else "MISSED"
    print(f"growth exponent {found:.2f} over {len(sizes)} sizes, at most {GROWTH:g}: {verdict}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_once(int(sys.argv[1]))))
    else:
        main()
