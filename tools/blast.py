# SPDX-License-Identifier: Apache-2.0
"""What each failure costs: one of every class of equal parts is taken out, before the run begins.

Parts are of one class where the fabric's symmetry does not tell them apart: switches of one cell
of its coarsest equitable partition, cables between equal ends, hosts of equal make. A workload may
be less symmetric than the fabric, so the part that carried most in the healthy run stands for its
class.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.faults import Fault, apply_faults
from railweave.topologies.min_cut import SwitchGraph
from railweave.topologies.reach import unreachable_pairs
from railweave.topologies.review.alignment import planes_of
from railweave.topologies.review.capacity import bisection_cut_bps
from railweave.topologies.review.case import TIERS, Case
from railweave.topologies.review.hosts import host_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.result import Result

__all__ = [
    "Damage",
    "FailureClass",
    "JobTime",
    "blast_radius",
    "failure_classes",
    "result_on",
    "run_on",
]

_FABRIC: Final = "link"
_ID: Final = 12


@dataclass(frozen=True, kw_only=True)
class FailureClass:
    """A class of parts that can fail.

    Parameters
    ----------
    part
        ``host-leaf cable``, ``optic``, ``nic``, ``leaf``, ``spine``, ``core``, ``plane``, ``host``.
    count
        How many parts are of the class.
    example
        The one that stands for it.
    faults
        What takes it out.
    """

    part: str
    count: int
    example: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True)
class JobTime:
    """How a workload ran.

    ``time_ps`` and ``bound_ps`` are None where it could not run to its end; ``said`` tells why.
    ``run`` begins the digest of the resolved scenario, faults included, which repeats the run.
    """

    time_ps: int | None
    bound_ps: int | None
    said: str = ""
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What a failure does.

    Parameters
    ----------
    failure
        What failed.
    least_share
        Share of its network bandwidth that the worst host keeps.
    hosts_hit, hosts_lost
        Hosts that keep less than all, and hosts that keep nothing.
    lost_pairs
        Ordered pairs of GPUs that nothing joins any more.
    bisection_share
        Share of the bisection that is left.
    jobs
        Each workload's time.
    """

    failure: FailureClass
    least_share: float
    hosts_hit: int
    hosts_lost: int
    lost_pairs: int
    bisection_share: float
    jobs: tuple[JobTime, ...] = ()

    def slowdown(self, healthy: tuple[JobTime, ...]) -> float:
        """Return the worst ratio of a job's time to its healthy one; infinite where one stops."""
        worst = 1.0
        for job, whole in zip(self.jobs, healthy, strict=True):
            if whole.time_ps is None:
                continue
            worst = max(worst, job.time_ps / whole.time_ps if job.time_ps else float("inf"))
        return worst


def failure_classes(fabric: Fabric, carried: NDArray[np.int64] | None = None) -> list[FailureClass]:
    """Return every class of parts that can fail, with the one that stands for it.

    Parameters
    ----------
    fabric
        The healthy fabric.
    carried
        int64 (links,): bytes that each link carried; the part with most stands for its class.
    """
    case = Case(fabric=fabric)
    load = np.zeros(fabric.n_links, np.int64) if carried is None else carried
    mark = _marks(case)
    device_load = np.zeros(fabric.n_devices, np.int64)
    np.add.at(device_load, fabric.link_src[fabric.link_network], load[fabric.link_network])
    groups: dict[tuple[Any, ...], list[tuple[int, str, tuple[Fault, ...]]]] = defaultdict(list)
    cables = (np.flatnonzero(fabric.link_network[::2] & fabric.link_up[::2]) * 2).tolist()
    cages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k in cables:
        a, b = int(fabric.link_src[k]), int(fabric.link_dst[k])
        busy = int(load[k] + load[k + 1])
        name = fabric.cable_name(k)
        key = (fabric.link_tier[k], *sorted((mark[a], mark[b])), int(fabric.link_rate_bps[k]))
        tier = "" if fabric.link_tier[k] == _FABRIC else f"{fabric.link_tier[k]} "
        groups[f"{tier}cable", key].append((busy, name, (Fault(link=name),)))
        for device, port in (
            (a, int(fabric.link_src_port[k])),
            (b, int(fabric.link_dst_port[k])),
        ):
            room = _cage_links(fabric, device, int(fabric.link_rate_bps[k]))
            if room > 1:
                cages[device, port // room].append(k)
    for (device, _), links in cages.items():
        if len(links) > 1:
            names = [fabric.cable_name(k) for k in links]
            busy = int(sum(load[k] + load[k + 1] for k in links))
            key = (mark[device], *sorted(fabric.link_tier[k] for k in links))
            example = f"{fabric.device_names[device]} with {' and '.join(names)}"
            groups["optic", key].append((busy, example, tuple(Fault(link=n) for n in names)))
    for nic in np.unique(case.access.nic).tolist():
        name = fabric.device_names[nic]
        groups["nic", (mark[nic],)].append((int(device_load[nic]), name, (Fault(node=name),)))
    for device in fabric.switches.tolist():
        name = fabric.device_names[device]
        part = TIERS.get(int(fabric.tier[device]), "switch")
        groups[part, (mark[device],)].append((int(device_load[device]), name, (Fault(node=name),)))
    for kind, hosts in host_kinds(case).items():
        for host in hosts:
            name = fabric.host_names[host]
            groups["host", (hash(kind),)].append((0, name, (Fault(node=name),)))
    _add_planes(case, groups, device_load)
    found = []
    for (part, _), members in groups.items():
        busiest = max(members, key=lambda member: member[0])
        found.append(
            FailureClass(part=part, count=len(members), example=busiest[1], faults=busiest[2])
        )
    return found


def _marks(case: Case) -> dict[int, int]:
    """Return the class of each switch and each cabled NIC."""
    fabric = case.fabric
    graph = SwitchGraph(fabric)
    hosts = np.zeros(len(fabric.switches), np.int64)
    np.add.at(hosts, graph.number[case.access.switch], fabric.link_rate_bps[case.access.link])
    models: dict[str, int] = {}
    model = np.array(
        [models.setdefault(fabric.model[d], len(models)) for d in fabric.switches.tolist()],
        np.int64,
    )
    start = np.stack([hosts, fabric.tier[fabric.switches].astype(np.int64), model])
    cells = graph.cells(np.unique(start, axis=1, return_inverse=True)[1])
    mark = {d: int(c) for d, c in zip(fabric.switches.tolist(), cells.tolist(), strict=True)}
    homes: dict[int, list[int]] = defaultdict(list)
    for nic, switch in zip(case.access.nic.tolist(), case.access.switch.tolist(), strict=True):
        homes[nic].append(mark[switch])
    kinds: dict[tuple[Any, ...], int] = {}
    for nic, cells_of in homes.items():
        key = (fabric.model[nic], *sorted(cells_of))
        mark[nic] = -1 - kinds.setdefault(key, len(kinds))
    return mark


def _cage_links(fabric: Fabric, device: int, rate_bps: int) -> int:
    if int(fabric.host[device]) >= 0 or not fabric.model[device]:
        return 1
    model = switch_model(fabric.model[device])
    given = model.figures.get("cage_links")
    cage = max(model.ports) * (int(given.value) if given is not None else 1)
    return max(1, min(2, cage // rate_bps))  # a twin-port optic holds two links


def _add_planes(
    case: Case,
    groups: dict[tuple[Any, ...], list[tuple[int, str, tuple[Fault, ...]]]],
    device_load: NDArray[np.int64],
) -> None:
    """Add whole planes: the parts that share no switch, of NICs with cables in several."""
    label = planes_of(case)
    if label is None:
        return
    fabric = case.fabric
    # Parts of one plane of all rails fail together: they are told by the end of their names.
    planes: dict[str, list[int]] = defaultdict(list)
    for device in fabric.switches.tolist():
        _, dot, plane = fabric.device_names[device].rpartition(".p")
        planes[plane if dot and plane.isdigit() else str(int(label[device]))].append(device)
    for plane, devices in planes.items():
        names = [fabric.device_names[device] for device in devices]
        groups["plane", ()].append(
            (
                int(device_load[devices].sum()),
                f"plane {plane} ({len(names)} switches)",
                tuple(Fault(node=name) for name in names),
            )
        )


def run_on(scenario: Path, topology: str | None, faults: Iterable[Fault] = ()) -> JobTime:
    """Run a scenario, on another topology and with faults from the beginning.

    Parameters
    ----------
    scenario
        The scenario file.
    topology
        A shipped name or an absolute path in place of the scenario's topology, or None.
    faults
        Beside those of the file.
    """
    found = result_on(scenario, topology, faults)
    return found[0]


def result_on(
    scenario: Path, topology: str | None, faults: Iterable[Fault] = ()
) -> tuple[JobTime, Result | None]:
    """Run a scenario as `run_on` does, and return the result too, None where nothing ran."""
    from railweave.runner import run_scenario
    from railweave.scenario import load_scenario, scenario_sha256

    overrides: dict[str, Any] = {} if topology is None else {"topology": topology}
    mine = [_as_mapping(fault) for fault in faults]
    loaded = load_scenario(scenario, overrides=overrides)
    if mine:
        own = loaded.document.data.get("faults") or []
        loaded = load_scenario(scenario, overrides={**overrides, "faults": [*own, *mine]})
    try:
        result = run_scenario(loaded)
    except RailweaveError as error:
        if not mine or not isinstance(error, InputError):
            raise
        run = scenario_sha256(loaded.resolved())[:_ID]
        return JobTime(time_ps=None, bound_ps=None, said=error.message, run=run), None
    run = result.provenance.scenario_sha256[:_ID]
    if result.status != "completed":
        return JobTime(time_ps=None, bound_ps=None, said=str(result.error), run=run), result
    return JobTime(time_ps=result.sim_time_ps, bound_ps=result.bound_ps, run=run), result


def _as_mapping(fault: Fault) -> dict[str, str]:
    name = {"link": fault.link} if fault.link is not None else {"node": fault.node or ""}
    return {"at": "0s", "do": fault.do, **name}


def blast_radius(
    fabric: Fabric,
    *,
    topology: str | None = None,
    scenarios: Mapping[str, Path] | None = None,
) -> tuple[tuple[JobTime, ...], list[Damage]]:
    """Fail one part of each class, worst first.

    Parameters
    ----------
    fabric
        The healthy fabric.
    topology, scenarios
        What the fabric was built from, and the workloads to run on it, by name.

    Returns
    -------
    tuple
        Each workload's healthy time, and the damage of each class.
    """
    healthy: list[JobTime] = []
    carried = np.zeros(fabric.n_links, np.int64)
    for path in (scenarios or {}).values():
        time, result = result_on(path, topology)
        healthy.append(time)
        if result is not None:
            carried += result.links.wire_bytes
    case = Case(fabric=fabric)
    whole = _host_bandwidth(case)
    cut = bisection_cut_bps(fabric)
    before, _ = unreachable_pairs(fabric)
    found = []
    for one in failure_classes(fabric, carried):
        broken = apply_faults(fabric, one.faults)
        left = _host_bandwidth(Case(fabric=broken))
        share = np.divide(left, whole, out=np.ones(len(whole)), where=whole > 0)
        damage = Damage(
            failure=one,
            least_share=float(share.min()),
            hosts_hit=int((share < 1).sum()),
            hosts_lost=int((share == 0).sum()),
            lost_pairs=unreachable_pairs(broken)[0] - before,
            bisection_share=bisection_cut_bps(broken) / cut if cut else 1.0,
        )
        jobs = tuple(run_on(path, topology, one.faults) for path in (scenarios or {}).values())
        found.append(replace(damage, jobs=jobs))
    times = tuple(healthy)
    found.sort(
        key=lambda damage: (
            -damage.slowdown(times),
            damage.least_share,
            -damage.lost_pairs,
            damage.bisection_share,
            -damage.hosts_hit,
        )
    )
    return times, found


def _host_bandwidth(case: Case) -> NDArray[np.float64]:
    """float64 (hosts,): rate of the cables in service of each host."""
    fabric = case.fabric
    nic, _, link = case.access
    up = fabric.link_up[link]
    total = np.zeros(len(fabric.host_names))
    np.add.at(total, fabric.host[nic[up]], fabric.link_rate_bps[link[up]].astype(np.float64))
    return total
