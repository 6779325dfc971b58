# SPDX-License-Identifier: Apache-2.0
"""gloo's all_reduce on emulated networks: pinned paths, apart and collided, and hashed ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import emulation_cases as cases

from railweave.fabric.graph import DeviceKind
from railweave.tools.emulate.choosing import PathChooser, steered
from railweave.tools.emulate.headroom import CpuTimes, Headroom
from railweave.tools.emulate.kernel_routing import KernelRouting
from railweave.tools.emulate.lab import Lab
from railweave.tools.emulate.layout import ACKS_IN_QUEUE, Options, lay_out, load_for_emulation
from railweave.tools.emulate.ranks import run_ranks
from railweave.tools.emulate.session import predict

if TYPE_CHECKING:
    from emulation import Line

SIZES: Final = (2**20, 2**21, 2**22, 2**23, 2**24)
SMALL: Final = 2**22
ORDER: Final = [f"h{k}" for k in (0, 4, 1, 5, 2, 6, 3, 7)]  # every hop of the ring crosses
STORE_PORT: Final = 29500
CASES: Final = (
    ("pinned, apart", "spread"),
    ("pinned, collided", "collide"),
    ("hashed", "kernel"),
)


def has_torch(python: str) -> bool:
    """Tell whether a Python can import PyTorch."""
    done = subprocess.run([python, "-c", "import torch"], check=False, capture_output=True)
    return not done.returncode


def source_for(ranks: int) -> Any:
    """Return the scenario of a ring over the first ranks in `ORDER`."""
    return load_for_emulation(
        {
            "schema": 1,
            "topology": cases.leaves(),
            "placement": {"policy": "list", "gpus": ORDER[:ranks]},
            "workload": {
                "kind": "collective",
                "op": "all_reduce",
                "algorithm": "ring",
                "sizes": [f"{size}B" for size in SIZES],
            },
        },
        overrides=ACKS_IN_QUEUE,
    )


def measured(lab: Lab, ranks: int, python: str) -> list[dict[str, Any]]:
    """Run the ranks and return what each reports, in order of rank."""
    fabric = lab.plan.fabric
    gpus = [fabric.endpoint(host) for host in ORDER[:ranks]]
    script = Path(__file__).with_name("emulation_gloo.py")
    said: list[dict[str, Any]] = []

    def hear(rank: int, stream: str, line: str) -> None:
        if line.startswith("RESULT "):
            said.append(json.loads(line.removeprefix("RESULT ")))
        elif stream == "err" and "hostname" not in line:
            print(f"[{rank}] {line}", file=sys.stderr)

    ends = run_ranks(lab, gpus, [python, str(script), *map(str, SIZES)], said=hear)
    if any(end.code for end in ends):
        raise RuntimeError(f"a rank failed: {ends}")
    return sorted(said, key=lambda one: one["rank"])


def ends_of(lab: Lab, ranks: int) -> tuple[list[int], list[int]]:
    """Return the NIC and the GPU of each rank."""
    fabric, hosts = lab.plan.fabric, ORDER[:ranks]
    return (
        [fabric.endpoint(host) for host in hosts],
        [fabric.parts(host, DeviceKind.GPU)[0] for host in hosts],
    )


def headroom(report: dict[str, Any]) -> Headroom:
    """Return how busy the CPUs were while a rank measured."""
    before, after = (CpuTimes(total=total, idle=idle) for total, idle in report["cpus"])
    return Headroom.between(before, after)


def know_circuits(lab: Lab, ranks: int, reports: list[dict[str, Any]]) -> bool:
    """Take up the connections between neighbours of the ring; tell whether all were found."""
    plan = lab.plan
    nics, gpus = ends_of(lab, ranks)
    for rank in range(ranks):
        for other in ((rank + 1) % ranks, (rank - 1) % ranks):
            here, there = plan.address(nics[rank]), plan.address(nics[other])
            ports = [
                (own, far)
                for a, own, b, far in reports[rank]["connections"]
                if (a, b) == (here, there) and STORE_PORT not in (own, far)
            ]
            if len(ports) != 1:
                return False
            key = ("pair", gpus[rank], gpus[other], 0)
            if key not in lab.circuits:
                lab.circuits.know(key, nics[rank], nics[other], *ports[0])
    return True


def predicted_s(source: Any, lab: Lab, routing: Any, ranks: int, *, down: bool) -> list[float]:
    """Predict every size on the circuits that are known, in s of the wall clock.

    gloo's ring sends to the rank before (``down``) or after; a ring over the reversed list of ranks
    is the other one.
    """
    order = ORDER[:ranks]
    gpus = tuple([order[0], *order[:0:-1]] if down else order)
    placement = source.model.placement.model_copy(update={"gpus": gpus})
    turned = replace(source, model=source.model.model_copy(update={"placement": placement}))
    kernel = KernelRouting(
        lab.plan.fabric,
        policy=routing.policy,
        seed=routing.seed,
        circuits=lab.circuits,
        chooser=PathChooser(routing, "kernel"),
    )
    result = predict(turned, lab, kernel)
    result.raise_for_status()
    return [(one.end_ps - one.start_ps) * lab.plan.scale / 1e12 for one in result.executed]


def gloo_rows(python: str) -> list[Line]:
    """Return the lines of the gloo table; none where there is no PyTorch."""
    from emulation import REPEATED, SCALE, TRIES, Line, Patience, percent

    if not has_torch(python):
        return []
    lines = []
    for name, choice in CASES:
        for ranks in (4, 8):
            source = source_for(ranks)
            plan, routing, _ = lay_out(source, Options(scale=SCALE))
            plan = replace(plan, hops=steered(plan, choice))  # type: ignore[arg-type]
            for _ in range(TRIES):
                Patience.wait()
                with Lab(plan, mode="fifo", limit_s=120, acks_first=False) as lab:
                    reports = measured(lab, ranks, python)
                    refused = headroom(reports[0]).why_not
                    if refused is None and not know_circuits(lab, ranks, reports):
                        refused = "connections not found"
                    if refused is not None:
                        REPEATED.append(f"gloo {name}, {ranks} ranks: {refused}")
                        continue
                    down = sends_down(lab, ranks)
                    foretold = predicted_s(source, lab, routing, ranks, down=down)
                    break
            else:
                lines.append(Line((name, str(ranks), "not valid"), False))
                continue
            for size, expected in zip(SIZES, foretold, strict=True):
                took = median(reports[0]["times"][str(size)])
                error = took / expected - 1
                limit = 0.10 if choice == "kernel" else 0.03 if size >= SMALL else 0.07
                lines.append(
                    Line(
                        (
                            *(name, str(ranks), f"{size // 2**20} MiB"),
                            *(f"{1e3 * expected:.1f} ms", f"{1e3 * took:.1f} ms"),
                            *(percent(error, sign=True), percent(limit)),
                        ),
                        abs(error) <= limit,
                    )
                )
                print(" | ".join(lines[-1].cells), file=sys.stderr, flush=True)
    return lines


def sends_down(lab: Lab, ranks: int) -> bool:
    """Tell by the bytes of the links whether each rank sent to the rank before it."""
    _, gpus = ends_of(lab, ranks)
    carried = lab.carried().data
    strangeness = []
    for step in (-1, 1):
        expected = Counter[int]()
        for rank in range(ranks):
            key = ("pair", gpus[rank], gpus[(rank + step) % ranks], 0)
            expected.update(lab.circuits[key].links)
        each = sum(carried.values()) / sum(expected.values())
        strangeness.append(sum(abs(carried[k] - each * expected[k]) for k in carried))
    return strangeness[0] <= strangeness[1]
