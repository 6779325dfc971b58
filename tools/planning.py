# SPDX-License-Identifier: Apache-2.0
"""Plans ranked by their emulated steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.workloads.planner import Candidate, Dropped, Site

__all__ = ["Ranking", "rank_plans", "scenario_of", "site_of"]


def site_of(fabric: Fabric, gpus: int | None) -> Site:
    """Return what plans need to know of a fabric.

    Parameters
    ----------
    fabric
        The fabric.
    gpus
        How many GPUs to use, hosts in order; None: all.

    Raises
    ------
    InputError
        There are fewer, or they are of several kinds.
    """
    from railweave.fabric.devices import gpu_model
    from railweave.fabric.graph import DeviceKind, LinkModel
    from railweave.workloads.planner import Site

    count = len(fabric.gpus) if gpus is None else gpus
    if not 1 <= count <= len(fabric.gpus):
        raise InputError(
            f"{fabric.name} has {len(fabric.gpus)} GPUs, not {count}", field="--gpus",
            expected=f"1 to {len(fabric.gpus)}",
        )  # fmt: skip
    chosen = fabric.gpus[:count]
    names = sorted({fabric.model[gpu] for gpu in chosen.tolist()})
    if len(names) > 1:
        raise InputError(f"{fabric.name} has {', '.join(names)}", field="topology",
                         expected="one kind of GPU")  # fmt: skip
    kinds = np.array(fabric.kind)
    from_gpu = kinds[fabric.link_src] == DeviceKind.GPU
    nvlink = from_gpu & (fabric.link_model == LinkModel.NVLINK)
    local = fabric.link_rate_bps[nvlink if nvlink.any() else from_gpu]
    # A GPU reaches the network over PCIe or, on a bare host, by its cables.
    away = fabric.link_rate_bps[from_gpu & ~nvlink]
    return Site(
        gpus=count,
        gpu=gpu_model(names[0]),
        hosts=[int(fabric.host[gpu]) for gpu in chosen],
        local_bps=int(local.max()),
        network_bps=int(away.max()) if len(away) else int(local.max()),
    )


@dataclass(frozen=True)
class Ranking:
    """What `rank_plans` found.

    Parameters
    ----------
    rows
        A row for each emulated plan, the shortest step first.
    dropped
        Plans that do not divide or fit.
    behind
        Plans that were not emulated: their bounds are above all the steps shown.
    """

    rows: list[dict[str, Any]]
    dropped: list[Dropped]
    behind: list[Candidate]


def scenario_of(candidate: Candidate, topology: str, *, seed: int) -> dict[str, Any]:
    """Return the scenario that runs a plan by itself.

    Parameters
    ----------
    candidate
        The plan.
    topology
        A shipped name or a path, which becomes absolute.
    seed
        Of draws and hashes.
    """
    path = Path(topology)
    keys = dict(candidate.workload)
    if Path(str(keys["model"])).exists():
        keys["model"] = str(Path(str(keys["model"])).resolve())
    if not candidate.fits:
        keys["check_memory"] = False
    return {
        "schema": 1,
        "seed": seed,
        "engine": "fluid",
        "topology": str(path.resolve()) if path.exists() else topology,
        "workload": keys,
    }


def rank_plans(
    found: list[Candidate],
    dropped: list[Dropped],
    topology: str,
    *,
    seed: int,
    top: int,
) -> Ranking:
    """Emulate plans until none that is left can be among the first ``top``.

    Parameters
    ----------
    found
        Plans to rank, least bound first.
    dropped
        Plans that are none.
    topology, seed
        As for `scenario_of`.
    top
        How many rows are wanted.

    Raises
    ------
    RailweaveError
        A plan's run did not end.
    """
    from railweave.runner import run_scenario

    rows: list[dict[str, Any]] = []
    at = 0
    while at < len(found):
        if len(rows) >= top and found[at].least_ps >= sorted(r["step_ps"] for r in rows)[top - 1]:
            break
        candidate = found[at]
        at += 1
        scenario = scenario_of(candidate, topology, seed=seed)
        result = run_scenario(scenario).raise_for_status()
        rows.append(_row(candidate, result.steps[0], scenario))
    rows.sort(key=lambda row: (row["step_ps"], str(row["workload"])))
    rows = [{"row": number, **row} for number, row in enumerate(rows[:top], 1)]
    return Ranking(rows, dropped, found[at:])


def _row(candidate: Candidate, step: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    tokens = step["tokens"]
    return {
        "plan": step["plan"],
        "ep_backend": candidate.workload.get("ep_backend"),
        "recompute": candidate.workload.get("recompute"),
        "fits": candidate.fits,
        "memory_bytes": candidate.memory_bytes,
        "at_least_ps": candidate.least_ps,
        "tokens_per_s": round(tokens * 1e12 / step["step_ps"], 3) if step["step_ps"] else 0.0,
        **{
            key: step[key]
            for key in (
                "step_ps", "bound_ps", "compute_ps", "exposed_ps", "overlapped_ps", "bubble_ps",
                "communication_ps", "limit", "wire_bytes", "replicas", "tokens",
            )
        },
        "workload": candidate.workload,
        "scenario": scenario,
    }  # fmt: skip
