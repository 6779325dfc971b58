# SPDX-License-Identifier: Apache-2.0
"""Schedules with the devices that execute them: ranks, and the switches that reduce for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.collectives import plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from railweave.collectives.algorithm import Links
    from railweave.fabric.nodes import Machines
    from railweave.fabric.schedule import Schedule

__all__ = ["placed"]

_IN_SWITCHES: Final = ("nvls", "collnet")


def placed(
    op: str,
    machines: Machines,
    *,
    size_bytes: int,
    algorithm: str,
    hosts: Sequence[int] | None = None,
    links: Links | None,
    options: Mapping[str, int | None],
) -> tuple[Schedule, list[int], NDArray[np.int32]]:
    """Return a schedule, the device of each of its ranks, and the node of each.

    Parameters
    ----------
    op, size_bytes, algorithm, links, options
        As for `railweave.collectives.plan`.
    machines
        The ranks; their nodes say which NVSwitches and leaves take part.
    hosts
        Host of each rank, where an algorithm is to look at these, shape (ranks,); None: nodes.
        NVLS and CollNet always look at nodes, a node being what NVSwitches join.

    Raises
    ------
    InputError
        As `railweave.collectives.plan`; or no switch is there that could reduce.
    """
    nodes = machines.node.tolist()
    given = dict(options)
    aggregated = algorithm == "collnet" and machines.nodes > 1
    devices, node = machines.devices, machines.node
    if aggregated:
        given["groups"], devices, node = machines.aggregation()
    schedule = plan(
        op,
        ranks=machines.ranks,
        size_bytes=size_bytes,
        algorithm=algorithm,
        hosts=nodes if hosts is None or algorithm in _IN_SWITCHES else hosts,
        links=links,
        step_delay_ps=0,
        **given,
    )
    if not aggregated:
        devices, node = machines.with_switches(schedule.switches)
    return schedule, devices, node
