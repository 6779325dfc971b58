# SPDX-License-Identifier: Apache-2.0
"""Judge the emulation: everything that it claims, measured in one go (at most ten minutes).

    python benchmarks/emulation.py [--write docs/emulation.md] [--gloo-python PYTHON]

Prints the table of docs/emulation.md and, with --write, puts it there. Exit code 1: a figure missed
its limit, or a run was not valid because the CPUs were busy with something else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import emulation_cases as cases
from emulation_gloo_run import gloo_rows

from railweave.scenario import FaultModel
from railweave.tools.emulate.choosing import PathChooser
from railweave.tools.emulate.circuits import Want
from railweave.tools.emulate.compare import compare, percentile
from railweave.tools.emulate.headroom import CpuTimes, Headroom
from railweave.tools.emulate.kernel_routing import KernelRouting
from railweave.tools.emulate.lab import Lab
from railweave.tools.emulate.layout import Options, lay_out, load_for_emulation
from railweave.tools.emulate.session import emulate, predict

if TYPE_CHECKING:
    from railweave.scenario import Scenario
    from railweave.tools.emulate.circuits import Circuit
    from railweave.tools.emulate.session import Emulation

TRIES: Final = 3
SCALE: Final = 4000
"""100 Mbit/s for 400 Gbps: two CPUs carry the full load of 16 GPUs with room to spare."""
QUIET: Final = 0.15
LIMITS: Final = {  # of |error|: median, p90, p90 of Poisson flows, makespan
    "fair": (0.01, 0.03, 0.08, 0.02),
    "fifo": (0.03, 0.15, 0.15, None),
}
BEGIN, END = "<!-- judged: begin -->", "<!-- judged: end -->"
CONNECTIONS: Final = 48


@dataclass(frozen=True)
class Line:
    """One line of a table: cells, and whether it kept its limit (None: it has none)."""

    cells: tuple[str, ...]
    kept: bool | None


def percent(share: float, *, sign: bool = False) -> str:
    """Write a share."""
    return f"{100 * share:{'+' if sign else ''}.2f} %"


def scenario(topology: dict[str, Any], flows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a scenario of flows."""
    return {"schema": 1, "topology": topology, "workload": {"kind": "flows", "flows": flows}}


REPEATED: list[str] = []
"""Runs that were refused, as the CPUs had no room, and why."""


class Patience:
    """Waits for a quiet machine, all in all no longer than a given time in s."""

    left_s: float = 60.0

    @classmethod
    def wait(cls) -> None:
        """Return when the CPUs were nearly idle for half a second, or patience has run out."""
        began = time.monotonic()
        while time.monotonic() - began < cls.left_s:
            before = CpuTimes.now()
            time.sleep(0.5)
            if Headroom.between(before, CpuTimes.now()).busy < QUIET:
                break
        cls.left_s = max(0.0, cls.left_s - (time.monotonic() - began))


def valid(what: str, source: Scenario, options: Options) -> Emulation | None:
    """Emulate until a run is valid; None where none of a few was."""
    for _ in range(TRIES):
        Patience.wait()
        emulation = emulate(source, options)
        emulation.measured.raise_for_status()
        why_not = None if emulation.headroom is None else emulation.headroom.why_not
        if why_not is None:
            return emulation
        REPEATED.append(f"{what}: {why_not}")
    return None


def traffic(mode: str) -> tuple[list[Line], dict[str, list[float]]]:
    """Run every case in a mode: its lines, and the errors of its flows by kind."""
    lines = []
    errors: dict[str, list[float]] = {"flows": [], "poisson": [], "makespan": [], "links": []}
    for fabric, topology, listed in (
        ("16 GPUs", cases.rails(), cases.rail_cases()),
        ("8 hosts", cases.leaves(), cases.leaf_cases()),
    ):
        for name, flows in listed.items():
            source = load_for_emulation(scenario(topology, flows))
            what = f"{fabric}, {name}, {mode}"
            emulation = valid(what, source, Options(mode=mode, scale=SCALE))  # type: ignore[arg-type]
            if emulation is None:
                lines.append(Line((fabric, name, mode, "not valid"), False))
                continue
            compared = compare(emulation)
            found = [abs(row.error) for row in compared.flows]
            errors["poisson" if name == "Poisson" else "flows"] += found
            errors["makespan"].append(abs(compared.makespan.error))
            errors["links"] += [abs(row.error) for row in compared.links]
            lines.append(
                Line(
                    (
                        *(fabric, name, mode, str(len(found))),
                        *(percent(percentile(found, p)) for p in (50, 90, 100)),
                        percent(compared.makespan.error, sign=True),
                        percent(max(abs(row.error) for row in compared.links)),
                        *cpus(emulation.headroom),
                    ),
                    None,
                )
            )
            print(" | ".join(lines[-1].cells), file=sys.stderr, flush=True)
    return lines, errors


def cpus(room: Headroom | None) -> tuple[str, str]:
    """Write how busy the CPUs were, and the most that moving bytes needed of one."""
    if room is None:
        return "-", "-"
    return f"{100 * room.busy:.0f} %", "-" if room.moving is None else f"{100 * room.moving:.0f} %"


def verdicts(mode: str, errors: dict[str, list[float]]) -> list[Line]:
    """Hold the errors of a mode against their limits."""
    median, p90, poisson, makespan = LIMITS[mode]
    lines = []

    def judge(what: str, values: list[float], p: int, limit: float | None) -> None:
        if limit is not None:
            found = percentile(values, p) if values else float("inf")
            kept = found <= limit
            lines.append(Line((f"{mode}: {what}", percent(found), percent(limit)), kept))

    everything = errors["flows"] + errors["poisson"]
    judge("median of all flows", everything, 50, median)
    judge("p90 of flows, Poisson apart", errors["flows"], 90, p90)
    judge("p90 of Poisson flows", errors["poisson"], 90, poisson)
    judge("makespan, worst case", errors["makespan"], 100, makespan)
    judge("bytes of a link, worst", errors["links"], 100, 0.01)
    return lines


def paths() -> list[Line]:
    """Send over connections one by one and see whether the foretold links count the bytes."""
    lines = []
    for name, topology in (("16 GPUs", cases.rails()), ("8 hosts", cases.leaves())):
        source = load_for_emulation(scenario(topology, [cases.flow("h0/nic0", "h1/nic0", 1)]))
        plan, *_ = lay_out(source, Options())
        fabric = plan.fabric
        pairs = [
            pair
            for pair in itertools.permutations(fabric.nics.tolist(), 2)
            if fabric.host[pair[0]] != fabric.host[pair[1]]
        ]
        chosen = (pairs * CONNECTIONS)[:: max(1, len(pairs) // CONNECTIONS)][:CONNECTIONS]
        wants = [Want(key=k, source=a, target=b) for k, (a, b) in enumerate(chosen)]
        right = 0
        with Lab(plan, mode="fair", limit_s=60) as lab:
            lab.circuits.find(wants)
            lab.open()
            lab.begin()
            before = lab.carried().data
            for want in wants:
                circuit = lab.circuits[want.key]
                graph = {
                    "job": circuit.number,
                    "repeat": 1,
                    "nodes": [(circuit.number, 14_480, 0, 0, -1)],
                    "n_deps": [0],
                    "succ_ptr": [0, 0],
                    "succ": [],
                }
                lab.sandbox.call("start", graphs=[graph], not_before_ns=0)
                lab.sandbox.event(time.monotonic_ns() + 10**10)
                after = lab.carried().data
                moved = {k for k in after if after[k] != before[k]}
                right += moved == set(circuit.links)
                before = after
        kept = right == CONNECTIONS
        lines.append(Line((f"paths foretold, {name}", f"{right} of {CONNECTIONS}", "all"), kept))
    return lines


def on_two_spines(source: Scenario) -> tuple[Scenario, Circuit]:
    """Return the scenario with a seed by which its flow's data and ACKs take two spines."""
    for seed in range(1, 60):
        tried = replace(source, model=source.model.model_copy(update={"seed": seed}))
        plan, routing, _ = lay_out(tried, Options())
        with Lab(plan, mode="fair", limit_s=60) as lab:
            kernel = KernelRouting(
                plan.fabric,
                policy=routing.policy,
                seed=routing.seed,
                circuits=lab.circuits,
                chooser=PathChooser(routing, "kernel"),
            )
            predict(tried, lab, kernel)
            (circuit,) = lab.circuits.all()
        spines = {int(plan.fabric.link_dst[way[1]]) for way in (circuit.links, circuit.back)}
        if len(spines) == 2:
            return tried, circuit
    raise RuntimeError("no seed gives such paths")


def failures() -> list[Line]:
    """Cut a cable under a transfer, near its sender and far from it, and mend it."""
    flows = [cases.flow("h0", "h4", 12_000_000, id="f")]
    base = load_for_emulation(scenario(cases.leaves(), flows))
    source, circuit = on_two_spines(base)
    near, far = circuit.links[1:3]
    plan, *_ = lay_out(source, Options())
    fabric = plan.fabric
    lines = []
    for name, link, duration, limit_ms in (
        ("cable down, sender's leaf reroutes", near, None, 20.0),
        ("cable down beyond the spine, control plane reroutes", far, None, 300.0),
        ("the same, mended after 0.2 s", far, "100us", 300.0),
    ):
        fault = {"at": "60us", "link": fabric.cable_name(link), "do": "down"}
        if duration:
            fault["for"] = duration
        model = source.model.model_copy(update={"faults": (FaultModel(**fault),)})  # type: ignore[arg-type]
        emulation = valid(name, replace(source, model=model), Options())
        if emulation is None:
            lines.append(Line((name, "not valid", ""), False))
            continue
        stall_ms = emulation.stalls["f"].length_ns / 1e6
        error = compare(emulation).flows[0].error
        lines.append(
            Line(
                (f"{name}: longest stall", f"{stall_ms:.1f} ms", f"{limit_ms:g} ms"),
                stall_ms <= limit_ms,
            )
        )
        lines.append(
            Line((f"{name}: completion", percent(error, sign=True), "5.00 %"), abs(error) <= 0.05)
        )
    return lines  # fmt: skip


def table(header: tuple[str, ...], lines: list[Line]) -> str:
    """Write a table in Markdown."""
    judged = any(line.kept is not None for line in lines)
    rows = [(*header, "") if judged else header]
    rows.append(tuple("---" for _ in rows[0]))
    for line in lines:
        cells = line.cells + ("",) * (len(header) - len(line.cells))
        verdict = {True: "kept", False: "**MISSED**", None: ""}[line.kept]
        rows.append((*cells, verdict) if judged else cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def machine() -> str:
    """Say where this was measured."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return (
        f"{os.cpu_count()} CPUs ({cpu[1] if cpu else platform.machine()}), "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"load average before {os.getloadavg()[0]:.2f}"
    )


def main() -> int:
    """Measure, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the document whose table is replaced")
    parser.add_argument("--gloo-python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument(
        "--patience",
        type=float,
        default=Patience.left_s,
        metavar="SECONDS",
        help="how long in all to wait for other programs to leave the CPUs alone",
    )
    parser.add_argument("--only", choices=("traffic", "paths", "failures", "gloo"), default=None)
    asked = parser.parse_args()
    Patience.left_s = asked.patience
    began, where = time.monotonic(), machine()
    detail: list[Line] = []
    verdict: list[Line] = []
    gloo: list[Line] = []
    if asked.only in (None, "traffic"):
        for mode in ("fair", "fifo"):
            lines, errors = traffic(mode)
            detail += lines
            verdict += verdicts(mode, errors)
            verdict += [line for line in lines if line.kept is False]
    if asked.only in (None, "paths"):
        verdict += paths()
    if asked.only in (None, "failures"):
        verdict += failures()
    if asked.only in (None, "gloo"):
        gloo = gloo_rows(asked.gloo_python)
        if not gloo:
            print(f"{asked.gloo_python} has no PyTorch: gloo is left out", file=sys.stderr)
    took = time.monotonic() - began
    text = "\n\n".join(
        [
            f"Measured in {took:.0f} s on {where}. Runs refused for want of CPU and repeated: "
            f"{'; '.join(REPEATED) or 'none'}.",
            f"Settings were chosen on: {cases.CHOSEN_ON}. They were judged on:",
            table(("claim", "measured", "limit"), verdict),
            table(
                ("fabric", "traffic", "mode", "flows", "median", "p90", "max", "makespan",
                 "links", "CPUs", "moving"),
                detail,
            ) if detail else "",
            table(("gloo all_reduce", "ranks", "size", "predicted", "measured", "error", "limit"),
                  gloo) if gloo else "gloo was not measured.",
        ]
    )  # fmt: skip
    print(text)
    if asked.write is not None:
        document = asked.write.read_text(encoding="utf-8")
        head, _, rest = document.partition(BEGIN)
        tail = rest.partition(END)[2]
        asked.write.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
    missed = [line for line in (*verdict, *gloo) if line.kept is False]
    print(json.dumps({"missed": [line.cells for line in missed]}), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
