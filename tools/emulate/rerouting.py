# SPDX-License-Identifier: Apache-2.0
"""The prediction of runs with faults: what is under way stops, and goes on over another path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.routing import PathSet
from railweave.tools.emulate.predicting import PredictingEngine
from railweave.tools.emulate.single import single_transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from railweave.fabric.jobs import Job
    from railweave.tools.emulate.rehearsal import Phase

__all__ = ["ReroutingEngine"]

LOCAL_STALL_NS: Final = 5_000_000
"""Expected silence where a kernel sees the gap itself, before any was measured."""
LOST_STALL_NS: Final = 60_000_000
"""Expected silence after a way is there again: TCP's timer has backed off meanwhile."""


class ReroutingEngine(PredictingEngine):
    """A prediction in which circuits change their ways at given times.

    Parameters
    ----------
    phases
        From the rehearsal, in order.
    scale
        Ns of the wall clock for one of the fabric's.
    stalls_ns
        Flow or collective -> measured silence in ns of the wall clock; without one, what is
        expected of the kind of gap.
    """

    def __init__(
        self,
        *args: Any,
        phases: Sequence[Phase],
        scale: int,
        stalls_ns: Mapping[str, int],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._phases = list(phases)
        self._scale = scale
        self._stalls_ns = stalls_ns
        self._now: Phase | None = None
        self._lost: list[Job] = []  # no way leads on
        self._stalled_at: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Job] = []
        for phase in self._phases:
            timer = self.env.timeout(self._ps(phase.wall_ns))
            timer.callbacks.append(self._changer(phase))

    def _ps(self, wall_ns: int) -> int:
        return wall_ns * 1000 // self._scale

    def _changer(self, phase: Phase) -> Callable[[Any], None]:
        return lambda _: self._change(phase)

    # ------------------------------------------------------------------ changes
    def _change(self, phase: Phase) -> None:
        now = int(self.env.now)
        self._now = phase
        for link, rate in phase.rates.items():
            self.set_link(link, rate_bps=rate)
        for group, job in list(self._jobs.items()):
            here = self._network_links(job)
            there = phase.ways.get(self._circuit(job)) if here else here
            if there == here:
                continue
            self._stop(group, job, now)
            if there is None:
                self._stalled_at[id(job)] = now
                self._lost.append(job)
            elif self._is_reroute(phase):  # it went on, and goes on elsewhere
                self._go_on(job, 0)
            else:
                self._go_on(job, self._ps(self._stall_ns(job, LOCAL_STALL_NS)))
        lost, self._lost = self._lost, []
        for job in lost:
            if phase.ways.get(self._circuit(job)) is None:
                self._lost.append(job)
                continue
            since = now - self._stalled_at[id(job)]
            silence = self._ps(self._stall_ns(job, LOST_STALL_NS + self._scale * since // 1000))
            self._go_on(job, max(0, silence - since))

    @staticmethod
    def _is_reroute(phase: Phase) -> bool:
        return phase.name.startswith("reroute")

    def _stall_ns(self, job: Job, expected_ns: int) -> int:
        name = job.tag if job.flow is None else job.flow.id
        return self._stalls_ns.get(name, expected_ns)

    def _stop(self, group: int, job: Job, now: int) -> None:
        """Take a transfer off its links and leave in it what it has not moved yet."""
        usage = self.state.moved(group, job.bound, now_ps=now)
        self._count(usage, 1)
        self.state.cancel(group, at_ps=now)
        self._leave(group)
        size = int(job.bound.schedule.size_bytes[0])
        left = max(1, size - int(usage.payload_bytes.sum()))
        job.bound = single_transfer(self.table, int(job.bound.path[0]), left)

    def _go_on(self, job: Job, after_ps: int) -> None:
        timer = self.env.timeout(after_ps)
        timer.callbacks.append(lambda _: self._starting.append(job))

    # ------------------------------------------------------------------ ways
    def _start_all(self) -> None:
        starting, self._starting = self._starting, []
        for job in starting:
            if self._now is not None and self._now.ways.get(self._circuit(job), ()) is None:
                self._stalled_at[id(job)] = int(self.env.now)
                self._lost.append(job)
            else:
                self._put_on_its_way(job)
                self._starting.append(job)
        super()._start_all()

    def _put_on_its_way(self, job: Job) -> None:
        if self._now is None:
            return
        here = self._network_links(job)
        there = self._now.ways.get(self._circuit(job)) if here else here
        if there is None or there == here:
            return
        whole = self.table.links_of(int(job.bound.path[0])).tolist()
        network = self.fabric.link_network
        head = [link for link in whole if not network[link]]
        cut = next((i for i, link in enumerate(whole) if network[link]), len(whole))
        links = np.array([*head[:cut], *there, *head[cut:]], np.int32)
        found = PathSet(np.array([0, len(links)], np.int32), links, np.ones(len(links)))
        path = int(self.table.intern(found)[0])
        job.bound = single_transfer(self.table, path, int(job.bound.schedule.size_bytes[0]))

    def _network_links(self, job: Job) -> tuple[int, ...]:
        path = int(job.bound.path[0])
        if path < 0:
            return ()
        links = self.table.links_of(path).tolist()
        return tuple(link for link in links if self.fabric.link_network[link])

    def _circuit(self, job: Job) -> int:
        known = self._numbers.get(id(job))
        if known is None:
            if job.flow is not None:
                circuit = self.kernel.circuit_of(job.flow)
            else:
                path = int(job.bound.path[0])
                over = self.kernel.circuits_over(self.table.links_of(path).tolist())
                circuit = over[0] if over else None
            known = -1 if circuit is None else circuit.number
            self._numbers[id(job)] = known
            self._kept.append(job)  # so that its id stays its own
        return known
