# SPDX-License-Identifier: Apache-2.0
"""What each failure costs: one of every class of equal parts is out when the run begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from railweave.fabric.failover import on_nics_left
from railweave.fabric.faults import apply_faults
from railweave.fabric.kinds import DeviceKind
from railweave.tools.failure_classes import failure_classes
from railweave.tools.job_time import JobTime, result_on, run_on
from railweave.topologies.apart import apart_groups
from railweave.topologies.reach import unreachable_pairs
from railweave.topologies.review.capacity import bisection_cut_bps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from railweave.fabric.faults import Fault
    from railweave.fabric.graph import Fabric
    from railweave.result import Result
    from railweave.tools.failure_classes import FailureClass
    from railweave.topologies.apart import Apart

__all__ = ["Blast", "Damage", "blast_radius"]


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
    lost
        Those pairs by name, groups by groups.
    jobs
        Each workload's time.
    """

    failure: FailureClass
    least_share: float
    hosts_hit: int
    hosts_lost: int
    lost_pairs: int
    bisection_share: float
    lost: tuple[Apart, ...] = ()
    jobs: tuple[JobTime, ...] = ()

    def slowdown(self, healthy: tuple[JobTime, ...]) -> tuple[bool, float]:
        """Return whether a job stops, and the worst ratio of a job's time to its healthy one.

        Of one that stops the ratio is that of the job started again, infinite where it cannot be.
        """
        stops, worst = False, 1.0
        for job, whole in zip(self.jobs, healthy, strict=True):
            if not whole.time_ps:
                continue
            stops |= job.time_ps is None
            left = job.after_all.time_ps
            worst = max(worst, left / whole.time_ps if left is not None else float("inf"))
        return stops, worst


class Blast(NamedTuple):
    """Each workload's time on the whole fabric, what failures do, and the results of those runs."""

    healthy: tuple[JobTime, ...]
    damages: list[Damage]
    results: tuple[Result | None, ...]


def blast_radius(
    fabric: Fabric,
    *,
    topology: str | None = None,
    scenarios: Mapping[str, Path] | None = None,
) -> Blast:
    """Fail one part of each class, worst first.

    A workload keeps its ranks and NICs: one whose NIC is cut off stops, and is started again with
    the GPUs concerned on other NICs of their hosts (`railweave.fabric.failover`).

    Parameters
    ----------
    fabric
        The healthy fabric.
    topology, scenarios
        What the fabric was built from, and the workloads to run on it, by name.
    """
    jobs = _Jobs(fabric, topology, dict(scenarios or {}))
    whole = _host_bandwidth(fabric)
    cut = bisection_cut_bps(fabric)
    before, _ = unreachable_pairs(fabric)
    known = set(apart_groups(fabric)) if before else set()
    found = []
    for one in failure_classes(fabric, jobs.carried):
        broken = apply_faults(fabric, one.faults)
        left = _host_bandwidth(broken)
        share = np.divide(left, whole, out=np.ones(len(whole)), where=whole > 0)
        if one.part == "host":  # it may have had no cable
            share[fabric.host_names.index(one.example)] = 0.0
        lost_pairs = unreachable_pairs(broken)[0] - before
        lost = [group for group in apart_groups(broken) if group not in known] if lost_pairs else []
        found.append(
            Damage(
                failure=one,
                least_share=float(share.min()),
                hosts_hit=int((share < 1).sum()),
                hosts_lost=int((share == 0).sum()),
                lost_pairs=lost_pairs,
                bisection_share=bisection_cut_bps(broken) / cut if cut else 1.0,
                lost=tuple(lost),
                jobs=jobs.on(broken, one.faults),
            )
        )
    found.sort(
        key=lambda damage: (
            *(-worst for worst in damage.slowdown(jobs.healthy)),
            damage.least_share,
            -damage.lost_pairs,
            damage.bisection_share,
            -damage.hosts_hit,
        )
    )
    return Blast(jobs.healthy, found, jobs.results)


class _Jobs:
    """The workloads on a fabric, whole and broken; faults that leave the same links run once.

    ``healthy`` and ``results`` are those of the whole fabric, ``carried`` what its links carried.
    """

    def __init__(self, fabric: Fabric, topology: str | None, scenarios: dict[str, Path]) -> None:
        self._topology = topology
        self._scenarios = scenarios
        self._known: dict[bytes, tuple[JobTime, ...]] = {}
        healthy, results = [], []
        self.carried = np.zeros(fabric.n_links, np.int64)
        for path in scenarios.values():
            time, result = result_on(path, topology)
            healthy.append(time)
            results.append(result)
            if result is not None:
                self.carried += result.links.wire_bytes
        self.healthy, self.results = tuple(healthy), tuple(results)

    def on(self, broken: Fabric, faults: tuple[Fault, ...]) -> tuple[JobTime, ...]:
        """Return each workload's time with faults there from the beginning."""
        key = _usable(broken).tobytes()
        if key not in self._known:
            moved = on_nics_left(broken) is not broken
            self._known[key] = tuple(
                self._run(path, faults, moved=moved) if whole.time_ps is not None else whole
                for path, whole in zip(self._scenarios.values(), self.healthy, strict=True)
            )
        return self._known[key]

    def _run(self, path: Path, faults: tuple[Fault, ...], *, moved: bool) -> JobTime:
        job = run_on(path, self._topology, faults)
        if job.time_ps is not None or not moved:
            return job
        again = run_on(path, self._topology, faults, overrides={"routing.failover": "nic"})
        return replace(job, restarted=again)


def _usable(fabric: Fabric) -> NDArray[np.bool_]:
    """Bool (links,): links in service, without those of NICs that are cut off."""
    network = fabric.link_up & fabric.link_network
    wired = np.zeros(fabric.n_devices, np.bool_)
    wired[fabric.link_src[network]] = True
    wired |= fabric.kind != DeviceKind.NIC
    usable: NDArray[np.bool_] = fabric.link_up & wired[fabric.link_src] & wired[fabric.link_dst]
    return usable


def _host_bandwidth(fabric: Fabric) -> NDArray[np.float64]:
    """float64 (hosts,): rate of the cables in service of each host."""
    out = fabric.link_network & fabric.link_up & (fabric.host[fabric.link_src] >= 0)
    total = np.zeros(len(fabric.host_names))
    np.add.at(
        total, fabric.host[fabric.link_src[out]], fabric.link_rate_bps[out].astype(np.float64)
    )
    return total
