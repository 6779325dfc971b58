# SPDX-License-Identifier: Apache-2.0
"""What starting the command line costs, with kernels compiled before and without.

``python benchmarks/startup.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure import HEADER, Cpu, cpu_of, cpu_of_command, machine, reference, row

__all__ = ["main", "railweave_run"]

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def railweave_run(scenario: Path, output: Path) -> list[str]:
    """Return the command that runs a scenario into a folder, again and again."""
    command = [sys.executable, "-m", "railweave", "run", str(scenario)]
    return [*command, "--output", str(output), "--force", "--quiet"]


def main(*, repeats: int = 5, cold_repeats: int = 3) -> None:
    """Print the table.

    Parameters
    ----------
    repeats
        Runs of each warm row.
    cold_repeats
        Runs with an empty cache of compiled kernels.
    """
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    python = sys.executable
    print(row("python: nothing", cpu_of_command([python, "-c", ""], repeats=repeats)))
    numba = cpu_of_command([python, "-c", "import numba"], repeats=repeats)
    print(row("python: import numba", numba))
    helped = cpu_of_command([python, "-m", "railweave", "--help"], repeats=repeats)
    print(row("railweave --help", helped, limit=0.3))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        for scenario, limit in (("all-reduce", 1.5), ("lab-flows", 1.5), ("incast", 1.0)):
            command = railweave_run(EXAMPLES / f"{scenario}.yaml", output)
            cpu_of_command(command, repeats=1)  # compiles what is not in the cache
            warm = cpu_of_command(command, repeats=repeats)
            print(row(f"railweave run examples/{scenario}.yaml", warm, limit=limit))
        command = railweave_run(EXAMPLES / "all-reduce.yaml", output)
        warm = cpu_of_command(command, repeats=repeats)
        cold = _cold(command, Path(folder) / "run-cache", cold_repeats)
        print(row("the kernels of examples/all-reduce.yaml", cold.less(warm), limit=10.0))
        command = [python, "-m", "railweave", "warmup"]
        cold = _cold(command, Path(folder) / "cache", cold_repeats)
        print(row("railweave warmup: the kernels of all engines", cold, limit=15.0))


def _cold(command: list[str], cache: Path, repeats: int) -> Cpu:
    """Time a command with an empty cache of compiled kernels."""
    seconds: list[float] = []
    for number in range(repeats):
        empty = {"NUMBA_CACHE_DIR": str(cache / str(number))}
        seconds += cpu_of_command(command, repeats=1, environment=empty).seconds
    return Cpu(tuple(seconds))


if __name__ == "__main__":
    main()
