# SPDX-License-Identifier: Apache-2.0
"""Hold the emulation's CPU rule against what loads really do to it (about four minutes).

    python benchmarks/emulation_load.py

Runs traffic that nothing is judged by at several scales and beside other programs, and prints what
the rule says of the runs and how far off they were. A rule that is right refuses what is far off.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import emulation_cases as cases

from railweave.tools.emulate.compare import compare, percentile
from railweave.tools.emulate.layout import Options, load_for_emulation
from railweave.tools.emulate.session import emulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.tools.emulate.session import Emulation

SCALES: Final = (8000, 4000, 3000, 2000, 1500)
LOADS: Final = ("none", "1 program", "2 programs", "4 programs", "2 programs, nice -20")
REPEATS: Final = 3
BUSY: Final = "while True: pass"


@contextmanager
def load(name: str) -> Iterator[None]:
    """Have programs that only compute run beside."""
    words = name.split(", nice ")
    command = [sys.executable, "-c", BUSY]
    if len(words) == 2:
        command = ["nice", "-n", words[1], *command]
    count = 0 if name == "none" else int(words[0].split()[0])
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen(command))
            stack.callback(program.kill)
        yield


def share(low: float, high: float) -> str:
    """Write a range of shares."""
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def row(name: str, scale: int, beside: str, runs: list[Emulation]) -> str:
    """Return a line of the table: ranges of shares, and the furthest that any run was off."""
    rooms = [run.headroom for run in runs]
    compared = [compare(run) for run in runs]
    medians = [percentile([abs(flow.error) for flow in one.flows], 50) for one in compared]
    shares = []
    for what in ("moving", "packets", "busy"):
        values = [getattr(room, what) for room in rooms]
        known = [value for value in values if value is not None]
        shares.append(share(min(known), max(known)) if known else "not known")
    refused = sum(room is not None and not room.valid for room in rooms)
    cells = (
        *(name, str(scale), beside, *shares, f"{refused} of {len(runs)}"),
        f"{100 * max(medians):.2f} %",
        f"{100 * max((one.makespan.error for one in compared), key=abs):+.2f} %",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print a table."""
    nics = [f"h{h}/nic{r}" for h in range(4) for r in range(4)]
    rails = [[f"h{h}/nic{r}" for h in range(4)] for r in range(4)]
    traffic = {
        "permutation": cases.permutation(nics, seed=901, size=5_000_000),
        "all_to_all": cases.everybody(rails, size=2_500_000),
    }
    header = ("16 GPUs", "scale", "beside it", "moving", "packets", "busy", "refused", "median",
              "makespan")  # fmt: skip
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for scale in SCALES:
        for beside in LOADS if scale in (4000, 2000) else LOADS[:1]:
            for name, flows in traffic.items():
                workload = {"kind": "flows", "flows": flows}
                source = load_for_emulation(
                    {"schema": 1, "topology": cases.rails(), "workload": workload}
                )
                runs = []
                for _ in range(REPEATS):
                    with load(beside):
                        runs.append(emulate(source, Options(scale=scale)))
                print(row(name, scale, beside, runs), flush=True)


if __name__ == "__main__":
    main()
