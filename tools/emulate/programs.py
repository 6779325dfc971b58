# SPDX-License-Identifier: Apache-2.0
"""Programs, one per rank, on a scenario's network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.fabric.placement import place
from railweave.tools.emulate.choosing import steered
from railweave.tools.emulate.lab import Lab
from railweave.tools.emulate.layout import lay_out
from railweave.tools.emulate.ranks import check_command, rank_environment, run_ranks
from railweave.workloads.workload import locating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.scenario import Scenario
    from railweave.tools.emulate.headroom import Headroom
    from railweave.tools.emulate.layout import Options
    from railweave.tools.emulate.ranks import RankEnd

__all__ = ["run_command"]


def run_command(
    scenario: Scenario,
    options: Options,
    command: Sequence[str],
    *,
    ranks: int | None,
    said: Callable[[int, str, str], None],
) -> tuple[list[RankEnd], Headroom | None]:
    """Build a scenario's network and run a program on it, once per rank.

    Parameters
    ----------
    scenario
        Its topology, placement and seed count; its workload does not run.
    options
        ``paths`` other than ``kernel`` pin the routes by destination.
    command
        The program and its arguments.
    ranks
        How many; None: one per GPU of the placement.
    said
        Called with rank, ``out`` or ``err``, and a line of its output.

    Raises
    ------
    InputError
        The network cannot be, or there is no such program.
    MissingToolError
        Namespaces are not permitted here, or the kernel lacks something.
    """
    check_command(command)
    plan, *_ = lay_out(scenario, options)
    placement = scenario.model.placement
    with locating(scenario.document, "placement"):
        gpus = place(
            plan.fabric, placement.policy, ranks, gpus=placement.gpus, seed=scenario.model.seed
        ).tolist()
    rank_environment(plan, gpus)
    if options.paths == "fabric":
        raise InputError(
            "programs choose their own ports, so the fabric's paths cannot be given to them",
            field="paths",
            expected="kernel | spread | collide",
        )
    plan = replace(plan, hops=steered(plan, options.paths))
    with Lab(plan, mode=options.mode, limit_s=options.limit_s, acks_first=False) as lab:
        ends = run_ranks(lab, gpus, command, said=said)
    return ends, lab.headroom
