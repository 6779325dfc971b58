# SPDX-License-Identifier: Apache-2.0
"""Process groups of a workload that the network does not join, with and without its top tier."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from railweave.topologies.apart import lost_within
from railweave.topologies.name_ranges import name_ranges
from railweave.topologies.review.paths import without_top_switches

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.workloads.process_groups import ProcessGroup

__all__ = ["GroupLoss", "group_losses"]


@dataclass(frozen=True, kw_only=True)
class GroupLoss:
    """The groups of one kind of a workload.

    Parameters
    ----------
    workload, name, count, ranks
        Whose groups, what they are for, how many there are, and the ranks of the largest.
    apart, pairs
        Groups with members that nothing joins, and the ordered pairs of such members.
    example
        The GPUs of the first of them.
    apart_without_top, pairs_without_top
        The same on the fabric without its top tier of switches.
    """

    workload: str
    name: str
    count: int
    ranks: int
    apart: int
    pairs: int
    example: str
    apart_without_top: int
    pairs_without_top: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def group_losses(workload: str, scenario: Path, topology: str | None) -> list[GroupLoss]:
    """Look whether the groups of a scenario's workloads reach their members.

    Bytes that a GPU of the group would have to pass on (PXN) do not count as a way.

    Parameters
    ----------
    workload
        What the workload is called.
    scenario, topology
        The scenario, and what it runs on instead of its own topology.
    """
    from railweave.fabric.engine import FabricEnvironment
    from railweave.runner import set_stage, workload_context
    from railweave.tools.job_time import load_on
    from railweave.workloads.process_groups import process_groups
    from railweave.workloads.workload import Findings

    loaded = load_on(scenario, topology)
    env = FabricEnvironment()
    stage = set_stage(env, loaded)
    kinds: dict[str, list[ProcessGroup]] = {}
    for one in loaded.workloads:
        context = workload_context(loaded, one, env, stage, Findings())
        for group in process_groups(one.model, context):
            kinds.setdefault(group.name, []).append(group)
    fabric = stage.fabric
    found = []
    lower = without_top_switches(fabric)
    for name, groups in kinds.items():
        members = [group.devices for group in groups]
        lost, without = lost_within(fabric, members), lost_within(lower, members)
        first = next((m for m, pairs in zip(members, lost, strict=True) if pairs), ())
        found.append(
            GroupLoss(
                workload=workload,
                name=name,
                count=len(groups),
                ranks=max(len(m) for m in members),
                apart=sum(pairs > 0 for pairs in lost),
                pairs=sum(lost),
                example=name_ranges(fabric.device_names[device] for device in first),
                apart_without_top=sum(pairs > 0 for pairs in without),
                pairs_without_top=sum(without),
            )
        )
    return found
