# SPDX-License-Identifier: Apache-2.0
"""How fast the fluid engine is at scale: many flows, large collectives, growth, and peers.

``python benchmarks/scale.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import scale_cases
import scale_peers
from building import exponent
from measure import HEADER, Cpu, cpu_of, machine, peak_mib, reference, row
from scale_cases import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES", "Line", "in_a_process", "main", "measure_once", "table"]

GROWTH = 1.15
CASES: dict[str, Callable[..., scale_cases.Found]] = {
    "poisson": scale_cases.poisson,
    "tolerance": scale_cases.tolerance_error,
    "exchange": scale_cases.exchange,
    "ring": scale_cases.ring,
    "hierarchical": scale_cases.hierarchical,
    "simgrid": scale_peers.simgrid,
    "nspy": scale_peers.nspy,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A case and what is shown of it: for each piece that is timed its words and its limit.

    ``limit_mib`` is what the process may hold at most; a case with ``peer`` is timed against it.
    """

    case: str
    options: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, tuple[str, float | None]]
    limit_mib: int | None = None
    peer: str | None = None


def table(sizes: Sizes) -> list[Line]:
    """Return the lines of the table."""
    hosts, ranks = f"{sizes.tree_hosts:,}", max(sizes.rings)
    gpus = f"{8 * sizes.hosts:,}"
    many = f"{sizes.flows:,} Poisson flows on {hosts} hosts, load"
    lines = [
        Line(
            case="poisson", options={"load": 0.3}, shown={"run": (f"{many} 0.3, exact", 1.5)}
        ),
        Line(
            case="poisson", options={"load": 0.6, "tolerance": 0.01},
            shown={"run": (f"{many} 0.6, tolerance 1 %", 12.0)},
        ),
        Line(
            case="tolerance", options={"load": 0.6, "tolerance": 0.01},
            shown={
                "exact": (f"the first {sizes.first:,} of them, exact", None),
                "tolerant": (f"the first {sizes.first:,} of them, tolerance 1 %", None),
            },
        ),
    ]  # fmt: skip
    for policy, words, limit in (("rail", "balanced paths", 1.0), ("ecmp", "hash ECMP", 5.0)):
        lines.append(
            Line(
                case="exchange", options={"policy": policy},
                shown={
                    "route": (f"route an all_to_all of {hosts} hosts, {words}", None),
                    "run": (f"execute it, {words}, exact", limit),
                },
            )
        )  # fmt: skip
    for size in sorted(sizes.rings):
        largest = size == ranks
        shown = {"run": (f"ring all_reduce, {size:,} of {sizes.ring_k**3 // 4:,} hosts",
                         15.0 if largest else None)}  # fmt: skip
        if largest:
            shown["plan"] = ("... planning it", None)
        lines.append(
            Line(
                case="ring", options={"ranks": size}, shown=shown,
                limit_mib=2048 if largest else None,
            )
        )  # fmt: skip
    for policy, words, limit in (("ecmp", "hash ECMP", 30.0), ("rail", "static, folded", 10.0)):
        lines.append(
            Line(
                case="hierarchical", options={"policy": policy}, limit_mib=6144,
                shown={
                    "run": (f"hierarchical all_reduce of 1 GiB, {gpus} GPUs, {words}", limit),
                    "plan": ("... planning it", None),
                    "build": ("... building the fabric", None),
                },
            )
        )  # fmt: skip
    star = f"on a star of {sizes.star:,}"
    for case, peer, flows in (("simgrid", "SimGrid", sizes.first),
                              ("nspy", "ns.py", sizes.packet_flows)):  # fmt: skip
        lines.append(
            Line(
                case=case, peer=peer,
                shown={
                    "peer": (f"{flows:,} Poisson flows {star}, load 0.6: {peer}", None),
                    "ours": ("... the fluid engine", None),
                },
            )
        )  # fmt: skip
    return lines


# ---------------------------------------------------------------------- processes
def measure_once(case: str, options: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Run a case in this process.

    Returns
    -------
    dict
        ``seconds`` by piece of work, ``said``, ``mib`` (peak memory of the process) and ``loop``:
        seconds of the reference loop, the median of runs before and after.
    """
    scale_cases.warm_up()
    before = cpu_of(reference, repeats=3)
    found = CASES[case](sizes, **options)
    loops = before.seconds + cpu_of(reference, repeats=3).seconds
    return {**asdict(found), "mib": peak_mib(), "loop": median(loops)}


def in_a_process(case: str, options: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Measure in a process of its own, whose peak of memory is no other's."""
    what = json.dumps({"case": case, "options": options, "sizes": asdict(sizes)})
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", what]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---------------------------------------------------------------------- the table
def _show(line: Line, runs: list[dict[str, Any]]) -> None:
    """Print the rows of a line of the table."""
    if not runs[0]["seconds"]:
        words, _ = next(iter(line.shown.values()))
        print(f"{words}: {runs[0]['said']}")
        return
    cpus = {part: Cpu(tuple(run["seconds"][part] for run in runs)) for part in line.shown}
    for part, (words, limit) in line.shown.items():
        against = cpus["peer"] if line.peer and part == "ours" else None
        print(row(words, cpus[part], limit=limit, against=against))
    peak = max(run["mib"] for run in runs)
    loops = [
        f"{part} {median(run['seconds'][part] / run['loop'] for run in runs):,.0f}"
        for part in line.shown
    ]
    memory = f"  in reference loops: {', '.join(loops)}; process at most {peak:,.0f} MiB"
    if line.limit_mib is not None:
        verdict = "ok" if peak <= line.limit_mib else "MISSED"
        memory += f" of {line.limit_mib:,}: {verdict}"
    print(memory)
    print(f"  {runs[0]['said']}")


def _show_growth(sizes: Sizes, medians: dict[int, float]) -> None:
    """Print how the time of a ring grows with its transfers, 2 N (N - 1) of N hosts."""
    ranks = sorted(medians)
    found = exponent([2 * n * (n - 1) for n in ranks], [medians[n] for n in ranks])
    verdict = "ok" if found <= GROWTH else "MISSED"
    print(
        f"ring: growth exponent {found:.2f} in the number of transfers over {len(ranks)} sizes, "
        f"at most {GROWTH:g}: {verdict}"
    )


def main(
    *,
    sizes: Sizes | None = None,
    repeats: int = 3,
    only: tuple[str, ...] = (),
    measure: Callable[[str, dict[str, Any], Sizes], dict[str, Any]] = in_a_process,
) -> None:
    """Print the table.

    Parameters
    ----------
    sizes
        How large everything is.
    repeats
        Runs of each case.
    only
        Names of `CASES` to run; none: all.
    measure
        Runs a case: `measure_once` in this process, by default in one of its own.
    """
    sizes = sizes or Sizes()
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    rings: dict[int, float] = {}
    for line in table(sizes):
        if only and line.case not in only:
            continue
        runs = [measure(line.case, line.options, sizes) for _ in range(repeats)]
        _show(line, runs)
        if line.case == "ring":
            rings[line.options["ranks"]] = median(run["seconds"]["run"] for run in runs)
            if len(rings) == len(sizes.rings) > 1:
                _show_growth(sizes, rings)
    print(machine())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="CPU seconds of the fluid engine at scale")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case")
    parser.add_argument("--only", action="append", default=[], choices=[*CASES], help="cases")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what = json.loads(given.measure)
        print(json.dumps(measure_once(what["case"], what["options"], Sizes(**what["sizes"]))))
    else:
        main(repeats=given.repeats, only=tuple(given.only))
