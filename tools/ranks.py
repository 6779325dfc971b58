# SPDX-License-Identifier: Apache-2.0
"""Which rank of which workload sits on which GPU of a run, to be drawn over its topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.tools.palette import rail_colour

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.scenario import Scenario

__all__ = ["IDLE", "RankMap", "gpus_by_host", "rank_map", "read_ranks"]

IDLE: Final = "#dfe5ea"  # a GPU on which nothing was placed


@dataclass(frozen=True, eq=False)
class RankMap:
    """The placement of a run.

    Parameters
    ----------
    run
        Its name.
    labels
        Workloads, or pools of a serving workload.
    label_of, rank_of
        int64 (devices,): number of the label and of the rank inside it, -1 on idle devices.
    """

    run: str
    labels: tuple[str, ...]
    label_of: NDArray[np.int64]
    rank_of: NDArray[np.int64]

    def colour(self, label: int) -> str:
        """Return the colour of a label, or of nothing."""
        return rail_colour(label) if label >= 0 else IDLE

    def say(self, device: int) -> str:
        """Return what sits on a device, or nothing."""
        label = int(self.label_of[device])
        return f"rank {self.rank_of[device]} of {self.labels[label]}" if label >= 0 else ""

    def of_host(self, gpus: list[int]) -> int:
        """Return the label that most of these GPUs have, or -1."""
        found = self.label_of[gpus]
        found = found[found >= 0]
        return int(np.bincount(found).argmax()) if len(found) else -1


def gpus_by_host(fabric: Fabric) -> list[list[int]]:
    """Return the GPUs of each host."""
    found: list[list[int]] = [[] for _ in fabric.host_names]
    for gpu in fabric.gpus.tolist():
        found[int(fabric.host[gpu])].append(gpu)
    return found


def read_ranks(run: Path, fabric: Fabric) -> RankMap:
    """Place the workloads of a run as it did, from its folder.

    Raises
    ------
    InputError
        The folder has no scenario that can be run, or its fabric is another one.
    """
    from railweave.scenario import load_scenario

    path = run / "scenario.yaml"
    if not path.is_file():
        raise InputError("cannot be read", file=str(path), expected="a folder that `run` wrote")
    found = rank_map(load_scenario(path), run.name)
    if len(found.label_of) != fabric.n_devices:
        raise InputError(
            "is a run of another topology", file=str(path), expected=f"a run of {fabric.name}"
        )
    return found


def rank_map(scenario: Scenario, name: str) -> RankMap:
    """Place the workloads of a scenario, without running them."""
    from railweave.runner import prepare

    prepared = prepare(scenario)
    by_workload: dict[str, list[int]] = {}
    for gpu, owner in prepared.findings.occupied.items():
        by_workload.setdefault(owner, []).append(gpu)
    labels: list[str] = []
    label_of = np.full(prepared.fabric.n_devices, -1, np.int64)
    rank_of = np.full(prepared.fabric.n_devices, -1, np.int64)
    for workload in scenario.workloads:
        gpus = by_workload.get(workload.name, [])
        for label, members in _parts(workload.name, workload.model, gpus):
            label_of[members], rank_of[members] = len(labels), np.arange(len(members))
            labels.append(label)
    return RankMap(name, tuple(labels), label_of, rank_of)


def _parts(name: str, model: Any, gpus: list[int]) -> list[tuple[str, list[int]]]:
    """Divide the GPUs of a workload of pools, in the order of placement, into these."""
    from railweave.workloads.replay.kv_transfer import KvTransferModel
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.placing import placed_replicas

    if isinstance(model, ServingModel):
        counts = placed_replicas(model)
    elif isinstance(model, KvTransferModel):
        counts = model.replicas
    else:
        return [(name, gpus)] if gpus else []
    found, at = {}, 0
    for pool, keys in model.pools.items():
        need = counts[pool] * keys.ranks
        found[pool] = (f"{name} {pool}", gpus[at : at + need])
        at += need
    return list(found.values())
