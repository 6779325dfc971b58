# SPDX-License-Identifier: Apache-2.0
"""The fluid engine: weighted max-min fair rates between events, in integer picoseconds.

Not visible here: pauses and their victims, deadlock, incast drops, marking and convergence of a
congestion control, reordering, and the variance of per-packet load balancing.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._fluid_layout import FOREVER
from railweave.fabric.batch import Batch, is_plain
from railweave.fabric.cautions import lossless_cautions
from railweave.fabric.engine import MOST_TOLERANCE, Capabilities
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.fluid_state import FluidState
from railweave.fabric.folds import Folds
from railweave.fabric.jobs import Job, JobEngine
from railweave.fabric.kept import Kept
from railweave.fabric.memo import Isolated, Span
from railweave.fabric.remembered import Iterated, Known, Part, Remembered

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import simpy
    from numpy.typing import NDArray

    from railweave.fabric.binding import BoundSchedule
    from railweave.fabric.flow import Flow
    from railweave.fabric.iterations import Iterations
    from railweave.fabric.schedule import Schedule
    from railweave.fabric.usage import Usage

__all__ = ["FluidEngine"]

_KEPT_NODES = 2**22  # nodes of all schedules that are kept cut out of the fabric
_EACH = 64  # what such a schedule takes beside its nodes, in nodes
_MEMO_NODES = 2**23  # larger schedules run once and are not worth remembering


class FluidEngine(JobEngine):
    """Max-min fair sharing of every link.

    Parameters
    ----------
    memo
        Remember what a schedule takes while no other flow uses its links. Exact: results are
        the same to the picosecond with and without.
    tolerance
        How far, relative to itself, a rate may be from the fair one, and the end of a flow be moved
        to that of another, for the sake of speed; 0: not at all. Errors add up: docs/scale.md has
        some. Links never carry more than they can.
    """

    name = "fluid"
    runs_loops = True
    capabilities = Capabilities(contention=True, packets=False, set_link=True)

    def __init__(
        self, *args: Any, memo: bool = True, tolerance: float = 0.0, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        if not 0.0 <= tolerance <= MOST_TOLERANCE:
            raise InputError(
                f"a tolerance of {tolerance} is not possible", expected=f"0 to {MOST_TOLERANCE}"
            )
        self.tolerance = tolerance
        fabric = self.fabric
        capacity = np.where(fabric.link_up, fabric.link_rate_bps, 0).astype(np.float64)
        self.state = FluidState(capacity, self.table.ack_share(), self.table, tolerance=tolerance)
        self._link_up = fabric.link_up.copy()  # as `set_link` left them
        self._link_rate_bps = fabric.link_rate_bps.copy()
        self._memo = memo
        self._spans: dict[bytes, Span | None] = {}
        self._folds = Folds()
        self._isolated: Kept[tuple[object, Isolated]] = Kept(most=_KEPT_NODES)
        self._jobs: dict[int, Job] = {}  # by group
        self._ends: list[tuple[int, int, Remembered]] = []
        self._iterated: dict[int, Iterated] = {}  # by their number
        self._batches: dict[int, NDArray[np.int64]] = {}  # ends of the flows of ended batches
        self._begun = 0
        self._owner: dict[int, Known] = {}  # by link, while remembered
        self._users = np.zeros(fabric.n_links, np.int32)  # jobs that run as a graph, by link
        self._reached: tuple[int, list[int]] = (0, [])

    # ------------------------------------------------------------------ starting
    def _begin(self, job: Job) -> None:
        links = job.bound.links
        for link in links if self._owner else ():
            owner = self._owner.get(int(link))
            if owner is not None:
                self._wake(owner)
        if self._memo and job.flow is None and job.batch is None and not self._users[links].any():
            isolated = self._cut_out(job.bound)
            if isolated is not None:
                span = self._span(isolated)
                if span is not None:
                    self.state.contended[isolated.links[span.contended]] = 1
                    self._remember(Remembered(job, isolated, span.time_ps))
                    return
        self._run(job, self._add(job))

    def _add(self, job: Job) -> int:
        if job.batch is not None:
            return self.state.add(
                job.bound.graph, at_ps=int(self.env.now), in_turn=False, timed=True
            )
        if job.flow is None:
            return self.state.add(job.bound.graph, at_ps=int(self.env.now))
        flow = job.flow
        parts = len(job.bound.path)
        cap = np.inf if flow.cap_bps is None else flow.cap_bps / parts
        return self.state.add(
            job.bound.graph,
            at_ps=int(self.env.now),
            weight=flow.weight,
            cap_bps=cap,
            in_turn=False,
        )

    def _run(self, job: Job, group: int) -> None:
        self._jobs[group] = job
        self._users[job.bound.links] += 1

    def send_all(self, flows: Sequence[Flow], *, start_ps: Sequence[int]) -> simpy.Event:
        """Send each flow at its time; plain ones as a batch."""
        times = np.asarray(start_ps, np.int64)
        plain = np.array([self.binder.qps == 1 and is_plain(flow) for flow in flows], np.bool_)
        now, events = int(self.env.now), []
        if plain.any():
            own = [flow for flow, alike in zip(flows, plain, strict=True) if alike]
            batch = Batch.of(self.binder, own, np.maximum(times[plain], now), now_ps=now)
            for priority in {flow.priority for flow in own}:
                like = np.array([flow.priority == priority for flow in own], np.bool_)
                self.in_use.note(batch.bound.path[like], priority)
            job = Job(batch.bound, self._event(), now, 1, "", batch=batch)
            self._records.append(job)
            self._begin(job)
            events.append(job.event)
        if not plain.all():
            rest = [flow for flow, alike in zip(flows, plain, strict=True) if not alike]
            events.append(super().send_all(rest, start_ps=times[~plain].tolist()))
        return self.env.all_of(events)

    def _batch_ends(self, job: Job) -> NDArray[np.int64]:
        known = self._batches.get(id(job))
        if known is not None:
            return known
        group = next(group for group, other in self._jobs.items() if other is job)
        return self.state.ends_of(group, job.bound.graph)

    # ------------------------------------------------------------------ remembering
    def _cut_out(self, bound: BoundSchedule) -> Isolated | None:
        if bound.n_nodes > _MEMO_NODES:
            return None
        known = self._isolated.get(id(bound))
        if known is not None and known[0] is bound:
            return known[1]
        isolated = Isolated(bound, self.state, self._folds)
        self._isolated.put(id(bound), (bound, isolated), size=bound.n_nodes + _EACH)
        return isolated

    def _span(self, isolated: Isolated) -> Span | None:
        if isolated.key not in self._spans:
            self._spans[isolated.key] = isolated.span()
        return self._spans[isolated.key]

    def _remember(self, memo: Remembered) -> None:
        heapq.heappush(self._ends, (memo.end_ps, self._begun, memo))
        self._begun += 1
        self._own(memo)

    def _own(self, memo: Known) -> None:
        for link in memo.links.tolist():
            self._owner[link] = memo

    def _forget(self, memo: Known) -> None:
        for link in memo.links.tolist():
            self._owner.pop(link, None)

    def _known(self) -> list[Known]:
        """Return all that goes on undisturbed."""
        return [*(entry[2] for entry in self._ends), *self._iterated.values()]

    def _wake(self, memo: Known) -> None:
        """Go on as a graph from where a remembered job is now."""
        self._forget(memo)
        now = int(self.env.now)
        if isinstance(memo, Iterated):
            del self._iterated[memo.number]
            self.env.process(self._disturb(memo, now))
            return
        self._ends = [entry for entry in self._ends if entry[2] is not memo]
        heapq.heapify(self._ends)
        self._resume(memo, now)

    def _resume(self, memo: Remembered, now: int) -> None:
        job = memo.job
        runs = memo.runs(now)
        job.runs_left = job.repeat - runs
        start = job.start_ps + runs * memo.span_ps
        self._run(job, memo.isolated.resume(self.state, start_ps=start, now_ps=now))

    # ------------------------------------------------------------------ iterations
    def iterate(
        self,
        parts: Sequence[tuple[Schedule, int]],
        ranks: Sequence[int],
        pauses_ps: Sequence[int],
        *,
        tag: str = "",
    ) -> Iterations:
        """Start iterations, all at once where nobody else uses the links of their schedules."""
        known = self._parts(parts, ranks) if self._memo and parts else None
        if known is None:
            return super().iterate(parts, ranks, pauses_ps, tag=tag)
        memo = Iterated(
            self.env,
            known,
            ranks,
            pauses_ps,
            tag=tag,
            number=self._begun,
            ended=lambda runs: self._iterations_end(memo, runs),
        )
        self._begun += 1
        self._iterated[memo.number] = memo
        self._own(memo)
        return memo.iterations

    def _parts(
        self, parts: Sequence[tuple[Schedule, int]], ranks: Sequence[int]
    ) -> list[Part] | None:
        """Return what is known of some schedules; None if one of them may be disturbed."""
        devices = np.asarray(ranks, np.int32)
        known = []
        for schedule, repeat in parts:
            bound = self._bind(schedule, devices)
            links = bound.links
            if not len(schedule) or self._users[links].any():
                return None
            if self._owner and any(link in self._owner for link in links.tolist()):
                return None
            isolated = self._cut_out(bound)
            span = None if isolated is None else self._span(isolated)
            if isolated is None or span is None:
                return None
            self.state.contended[isolated.links[span.contended]] = 1
            known.append(Part(bound, isolated, span.time_ps, repeat))
        return known

    def _iterations_end(self, memo: Iterated, runs: int) -> None:
        self._forget(memo)
        del self._iterated[memo.number]
        self._count_iterations(memo, runs, end_ps=int(self.env.now))

    def _count_iterations(self, memo: Iterated, runs: int, *, end_ps: int) -> None:
        """Record so many whole iterations, which end now or a little before."""
        for part in memo.parts if runs else ():
            times = runs * part.repeat
            job = Job(part.bound, self._event(), memo.iterations.start_ps, times, memo.tag)
            self._finish(job, end_ps=end_ps)

    def _disturb(self, memo: Iterated, now: int) -> Generator[simpy.Event, Any, None]:
        """Go on as a graph in the iteration under way; return what sees to its end."""
        iterations = memo.iterations
        runs = iterations.leave()
        at = iterations.ends_ps[runs - 1] if runs else iterations.start_ps
        pause_ps = iterations.pauses_ps[runs]
        self._count_iterations(memo, runs, end_ps=at)
        for number, part in enumerate(memo.parts):
            job = Job(part.bound, self._event(), at, part.repeat, memo.tag)
            at += part.span_ps * part.repeat
            if at <= now:
                self._finish(job, end_ps=at)
                continue
            self._resume(Remembered(job, part.isolated, part.span_ps), now)
            return self._last_iteration(memo, job, memo.parts[number + 1 :], pause_ps)
        return self._last_iteration(memo, None, (), at + pause_ps - now)

    def _last_iteration(
        self, memo: Iterated, job: Job | None, rest: Sequence[Part], pause_ps: int
    ) -> Generator[simpy.Event, Any, None]:
        if job is not None:
            yield job.event
        for part in rest:
            yield self.execute(part.bound.schedule, memo.devices, tag=memo.tag, repeat=part.repeat)
        yield self.env.timeout(pause_ps)
        memo.iterations.end()

    # ------------------------------------------------------------------ changing
    def cancel(self, flow: Flow) -> None:
        """Stop a flow; its event fails."""
        for group, job in self._jobs.items():
            if job.flow is flow:
                now = int(self.env.now)
                self._count(self.state.moved(group, job.bound, now_ps=now), 1, job.tag)
                self.state.cancel(group, at_ps=now)
                self._leave(group)
                job.event.fail(RailweaveError(f"flow '{flow.id}' was cancelled"))
                return
            if job.batch is not None and flow in job.batch.flows:
                raise InputError(f"flow '{flow.id}' is one of many sent at once and goes on")
        raise InputError(f"flow '{flow.id}' is not under way")

    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Change one direction of a cable from now on."""
        fabric = self.fabric
        if not 0 <= link < fabric.n_links:
            raise InputError(f"there is no link {link}", expected=f"0 to {fabric.n_links - 1}")
        if rate_bps is not None and rate_bps < 0:
            raise InputError(f"'{fabric.link_name(link)}' cannot have a rate below 0")
        if not self.table.limiting(link):
            raise InputError(
                f"'{fabric.link_name(link)}' cannot change during a run",
                expected="a link that is not in series with a narrower one",
            )
        built_bps = int(fabric.link_rate_bps[link])
        if rate_bps is not None and rate_bps > built_bps:  # bounds reckon with the built rate
            raise InputError(
                f"'{fabric.link_name(link)}' cannot become faster than it was built",
                expected=f"at most {built_bps} bit/s",
            )
        if up is not None:
            self._link_up[link] = up
        if rate_bps is not None:
            self._link_rate_bps[link] = rate_bps
        owner = self._owner.get(link) or self._owner.get(link ^ 1)
        if owner is not None:
            self._wake(owner)
        self._isolated.clear()
        capacity = float(self._link_rate_bps[link]) if self._link_up[link] else 0.0
        self.state.set_capacity(link, capacity, at_ps=int(self.env.now))

    # ------------------------------------------------------------------ time
    @property
    def busy(self) -> bool:
        """Whether anything has started that has not ended."""
        return bool(self._jobs or self._ends or self._iterated)

    def advance(self, limit_ps: int | None) -> int | None:
        """Run to the first completions at or before ``limit_ps``."""
        limit = FOREVER - 1 if limit_ps is None else limit_ps
        known_end = self._ends[0][0] if self._ends else FOREVER
        groups = self.state.advance(min(limit, known_end)) if self._jobs else None
        if groups is not None:
            self._reached = (self.state.now_ps, groups)
        elif known_end <= limit:
            self._reached = (known_end, [])
        else:
            return None
        return self._reached[0]

    def deliver(self) -> None:
        """Fire the events of the completions that `advance` reached."""
        now, groups = self._reached
        for group in groups:
            job = self._jobs[group]
            job.runs_left -= 1
            if job.runs_left:
                self.state.restart(group, job.bound.graph, at_ps=now)
            else:
                if job.batch is not None:
                    self._batches[id(job)] = self.state.ends_of(group, job.bound.graph)
                self._leave(group)
                self.state.release(group)
                self._finish(job, end_ps=now)
        while self._ends and self._ends[0][0] == now:
            memo = heapq.heappop(self._ends)[2]
            self._forget(memo)
            self._finish(memo.job, end_ps=now)

    def _leave(self, group: int) -> None:
        job = self._jobs.pop(group)
        self._users[job.bound.links] -= 1

    # ------------------------------------------------------------------ looking
    def _in_flight(self) -> list[tuple[Usage, int, str]]:
        now = int(self.env.now)
        parts: list[tuple[Usage, int, str]] = []
        for memo in self._known():
            parts += [(usage, times, memo.tag) for usage, times in memo.moved(now)]
        for group, job in self._jobs.items():
            parts.append((job.bound.usage, job.repeat - job.runs_left, job.tag))
            parts.append((self.state.moved(group, job.bound, now_ps=now), 1, job.tag))
        return parts

    def unreserved_bytes(
        self, wire_bytes: NDArray[np.int64], ack_bytes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the ACK bytes of each link beyond those of long messages.

        Rates leave room for an ACK in `NetworkSettings.ack_every` packets; each message has at
        least one.
        """
        other = np.arange(len(wire_bytes)) ^ 1
        reserved = np.ceil(self.table.ack_share() * wire_bytes[other]).astype(np.int64)
        beyond: NDArray[np.int64] = np.maximum(ack_bytes - reserved, 0)
        return beyond

    def cautions(self) -> list[str]:
        """Say what a lossless network would have shown of this run and a fluid one cannot."""
        contended = self.state.contended[: self.fabric.n_links]
        lines = lossless_cautions(self.table, self.in_use, contended)
        if self.tolerance:
            lines.append(
                f"with a tolerance of {self.tolerance:.3g} the times of flows are off by less than "
                "that on average, single ones by several times as much"
            )
        return lines

    def waiting(self) -> list[str]:
        """Say what has started and cannot end."""
        lines = []
        for group, job in self._jobs.items():
            base = int(self.state.groups[group].first_node)
            for slot in self.state.slots_of(group):
                flow = self.state.slots[slot]
                if flow.finish == FOREVER:
                    lines.append(self._stalled(job, int(flow.node) - base, flow))
        return list(dict.fromkeys(lines))

    def _stalled(self, job: Job, node: int, slot: Any) -> str:
        """Say which link keeps a transfer from ending, and that it stands or takes months."""
        link = int(slot.bottleneck)
        where = self.fabric.link_name(link) if link >= 0 else "its cap"
        why = "which carries nothing" if slot.rate == 0 else "which needs more than 50 days for it"
        if job.flow is not None:
            names = self.fabric.device_names
            ends = f"{names[job.flow.src]} -> {names[job.flow.dst]}"
            return f"flow '{job.flow.id}' ({ends}) waits for {where}, {why}"
        if job.batch is not None:
            return self._stalled(replace(job, flow=job.batch.flows[node], batch=None), 0, slot)
        plan = job.bound.schedule
        return (
            f"collective '{job.tag}': rank {plan.dst[node]} waits for rank {plan.src[node]} "
            f"over {where}, {why}"
        )
