# SPDX-License-Identifier: Apache-2.0
"""Which links the flows of a run crossed, and with which share of their bytes.

A packet run writes the paths of its flows. Others follow from the scenario: the same fabric, policy
and seed give the same paths. Where routes changed in mid-run, these are the paths at its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.routing import Routing
from railweave.tools.overlay import links_by_name
from railweave.workloads.replay.paths import pinned_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.scenario import Scenario
    from railweave.tools.report.run_data import FlowRow, Run

__all__ = ["FlowLinks", "flow_links"]

FlowLinks = dict[int, float]
"""Link number -> share of the flow's bytes that crossed it, in the order of the path."""


def flow_links(run: Run, flows: Sequence[FlowRow]) -> list[FlowLinks]:
    """Return the links of each flow; none for a flow whose path cannot be told."""
    numbers = links_by_name(run.fabric)
    found: list[FlowLinks] = [
        {numbers[name]: 1.0 for name in flow.path if name in numbers} for flow in flows
    ]
    if run.scenario is None:
        return found
    model = run.scenario.model
    routing = Routing(run.fabric, policy=run.scenario.paths_policy, seed=model.seed)
    own, pinned = _pairs_and_pinned(run.scenario)
    for position, flow in enumerate(flows):
        if flow.id in pinned and not found[position]:
            found[position] = _pinned(run, flow, pinned[flow.id])
    sets: dict[tuple[int, bool], list[int]] = {}
    for position, flow in enumerate(flows):
        if not found[position]:
            qps = own.get(flow.id, model.routing.qps)
            turns = model.routing.qp_mode == "round-robin" and qps > 1
            sets.setdefault((qps, turns), []).append(position)
    for (qps, turns), members in sets.items():
        for position, shares in _routed(run, routing, flows, members, qps, turns=turns).items():
            found[position] = shares
    return found


def _pairs_and_pinned(scenario: Scenario) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Return queue pairs by flow, where a flow has its own, and paths, where one is given."""
    pairs: dict[str, int] = {}
    pinned: dict[str, tuple[str, ...]] = {}
    several = len(scenario.workloads) > 1
    for workload in scenario.workloads:
        prefix = f"{workload.name}/" if several else ""
        for number, flow in enumerate(getattr(workload.model, "flows", None) or ()):
            name = f"{prefix}{flow.id if flow.id is not None else f'f{number}'}"
            if getattr(flow, "qps", None) is not None:
                pairs[name] = flow.qps
            if getattr(flow, "path", None) is not None:
                pinned[name] = tuple(flow.path)
    return pairs, pinned


def _pinned(run: Run, flow: FlowRow, path: Sequence[str]) -> FlowLinks:
    index = run.fabric.device_index
    try:
        links = pinned_path(run.fabric, path, src=index[flow.src], dst=index[flow.dst])
    except (InputError, KeyError):
        return {}
    return dict.fromkeys(links, 1.0)


def _routed(
    run: Run,
    routing: Routing,
    flows: Sequence[FlowRow],
    members: Sequence[int],
    qps: int,
    *,
    turns: bool,
) -> Mapping[int, FlowLinks]:
    index = run.fabric.device_index
    ends = [(index.get(flows[i].src), index.get(flows[i].dst), i) for i in members]
    known = [(a, b, i) for a, b, i in ends if a is not None and b is not None and a != b]
    if not known:
        return {}
    taken: dict[tuple[int, int], int] = {}
    src, dst, pair, owner = [], [], [], []
    for a, b, i in known:
        turn = taken.get((a, b), 0)
        taken[a, b] = turn + 1
        for qp in [turn % qps] if turns else range(qps):
            src.append(a)
            dst.append(b)
            pair.append(qp)
            owner.append(i)
    try:
        paths = routing.routes(np.array(src), np.array(dst), np.array(pair))
    except (UnreachableError, InputError):  # a link of it went down in mid-run
        return {}
    shares: dict[int, FlowLinks] = {}
    each = 1.0 if turns else 1.0 / qps
    for row, i in enumerate(owner):
        own = shares.setdefault(i, {})
        first, last = int(paths.ptr[row]), int(paths.ptr[row + 1])
        for link, share in zip(
            paths.links[first:last].tolist(), paths.share[first:last].tolist(), strict=True
        ):
            own[link] = own.get(link, 0.0) + share * each
    return shares
