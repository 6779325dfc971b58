# SPDX-License-Identifier: Apache-2.0
"""The fluid engine over a fabric whose links fail and come back while work is under way.

A link that carries nothing stops its flows at once. When routing notices, after the detection
delay, all routes are made anew on what is left. Every message whose route changed goes on over the
new one with what it has left to send, and what has not started begins there. A pair without any
route waits for one. When a link comes back its rate is there at once, its routes again after the
delay.

A slower link changes rates, not routes, and not the latency of a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._fluid_layout import FOREVER, NO_EVENT, NO_NODE, grown
from railweave.fabric._fluid_reroute import move_flows
from railweave.fabric.binding import BoundSchedule
from railweave.fabric.faults import DETECTION_DELAY_PS
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.fluid_state import FluidState
from railweave.fabric.reroute import Detector, ReroutingBinder
from railweave.fabric.rerouted import arriving_runs, message_sizes, share_done, started_parts
from railweave.fabric.routing import Routing
from railweave.fabric.stalls import Stall, StallBook, standing
from railweave.fabric.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import simpy
    from numpy.typing import NDArray

    from railweave.fabric.jobs import Job

__all__ = ["FaultyFluidEngine", "Reroute"]

_SHOWN = 100  # rows of stalls in a result
_NAMED = 4  # names in a sentence


@dataclass(frozen=True, kw_only=True)
class Reroute:
    """What routing did when it noticed a change.

    Parameters
    ----------
    at_ps
        When.
    paths
        Pairs (and queue pairs), of those that were routed before, whose route changed.
    messages
        Messages that were on their way and moved.
    names
        Names of the flows and collectives that these are of.
    without_route
        Pairs that have none now.
    """

    at_ps: int
    paths: int
    messages: int
    names: tuple[str, ...]
    without_route: int


class FaultyFluidEngine(FluidEngine):
    """Max-min fair sharing of links that change, with routes that follow.

    Parameters
    ----------
    changing
        bool (links,): links that `set_link` may change even where a narrower one in series would
        make them irrelevant; None: only those that can limit as built.
    detection_delay_ps
        From a link's going down or coming up until routing knows. A link that comes back within it
        is not missed.
    """

    def __init__(
        self,
        *args: Any,
        changing: NDArray[np.bool_] | None = None,
        detection_delay_ps: int = DETECTION_DELAY_PS,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if changing is not None:
            self.table.keep(changing)
        plain = self.binder
        self._routes = self.binder = ReroutingBinder(
            self.table, plain.routing, qps=plain.qps, split=plain.split
        )
        # A cable that is not there, for pairs that have no route.
        capacity = np.append(self.state.links.capacity[: self.fabric.n_links], [0.0, 0.0])
        self.state = FluidState(
            capacity,
            np.append(self.table.ack_share(), [0.0, 0.0]),
            self.table,
            tolerance=self.tolerance,
        )
        self._detector = Detector(self.fabric.link_up, detection_delay_ps)
        self._looks: set[int] = set()  # times at which routing will look
        self._book = StallBook()
        self.reroutes: list[Reroute] = []

    # ------------------------------------------------------------------ changing
    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        """Change one direction of a cable from now on; routing follows after the delay."""
        super().set_link(link, up=up, rate_bps=rate_bps)
        now = int(self.env.now)
        self._book.look(self.state, self._name_of, now_ps=now)
        if up is None or not self._detector.note(link, up=up, now_ps=now):
            return
        at = now + self._detector.delay_ps
        if at not in self._looks:
            self._looks.add(at)
            look = self.env.timeout(at - now)
            assert look.callbacks is not None
            look.callbacks.append(self._look)

    def _name_of(self, node: int) -> str:
        """Return the name of the flow or collective that a node under way belongs to."""
        group = int(self.state.nodes.group[node])
        job = self._jobs[group]
        flow = job.flow
        if job.batch is not None:
            flow = job.batch.flows[node - int(self.state.groups[group].first_node)]
        if flow is not None:
            return f"flow {flow.id}"
        return f"collective {job.tag}" if job.tag else "a collective"

    def _look(self, timer: simpy.Event) -> None:
        """Let routing notice what has changed for long enough, and move who is concerned."""
        now = int(self.env.now)
        self._looks.discard(now)
        if not self._detector.look(now):
            return
        before = self._routes.routing
        left = self.fabric.with_links(up=self._detector.known)
        remap = self._routes.reroute(Routing(left, policy=before.policy, seed=before.seed))
        if remap is None:
            self._told(now, 0, [])
            return
        self.in_use.move(remap)
        self._bound.clear()
        self._isolated.clear()
        for memo in self._known():
            if any((remap[paths] != paths).any() for paths in memo.paths):
                self._wake(memo)
        self.state.reach(now)
        arriving = arriving_runs(self.state)
        moving = self._concerned(remap, arriving > 0)
        for _, _, bound in moving:
            for link in bound.links if self._owner else ():
                owner = self._owner.get(int(link))
                if owner is not None:
                    self._wake(owner)
        parts = started_parts(self.state, arriving, now)
        for group, job, bound in moving:
            self._carry_over(job, bound, share_done(self.state, group, job.bound, parts))
        nodes = self._move(moving, remap)
        self.rounded_bytes += len(nodes)
        self._book.look(self.state, self._name_of, now_ps=now)
        self._told(now, int((remap[:-1] != np.arange(len(remap) - 1)).sum()), nodes)

    def _told(self, now_ps: int, paths: int, nodes: Sequence[int]) -> None:
        self.reroutes.append(
            Reroute(
                at_ps=now_ps, paths=paths, messages=len(nodes),
                names=tuple(sorted({self._name_of(node) for node in nodes})),
                without_route=self._routes.waiting,
            )
        )  # fmt: skip

    def _concerned(
        self, remap: NDArray[np.int32], arriving: NDArray[np.bool_]
    ) -> list[tuple[int, Job, BoundSchedule]]:
        """Return the jobs under way that have paths to leave, bound to their new ones.

        What has been sent for good stays with the path that it took.
        """
        found = []
        for group, job in self._jobs.items():
            old = job.bound.path
            new = remap[old]
            if job.runs_left == 1 and (new != old).any():
                base = int(self.state.groups[group].first_node)
                here = slice(base, base + len(old))
                sent = arriving[here].copy()
                sent[job.bound.looped] = False
                sent |= self.state.nodes.deps[here] == -1
                new = np.where(sent, old, new)
            if (new == old).all():
                continue
            size, wire = job.bound.schedule.size_bytes, job.bound.wire_bytes
            framing = self.table.framing
            if (framing[np.maximum(new, 0)] != framing[np.maximum(old, 0)]).any():
                wire = self.table.wire_bytes(new, size)
            found.append((group, job, BoundSchedule(job.bound.schedule, self.table, new, wire)))
        return found

    def _carry_over(self, job: Job, bound: BoundSchedule, done: NDArray[np.float64]) -> None:
        """Leave the bytes sent so far with the old paths; the end of the job counts the new ones.

        What was sent is taken off the new paths beforehand, so that both together are whole.
        """
        runs = job.repeat - job.runs_left
        for one, sign in ((job.bound, 1), (bound, -1)):
            self._count(one.usage_of(done), sign, job.tag)
            self._count(one.usage, sign * runs, job.tag)
        if len(bound.looped):  # chunks of a loop may differ by a byte, which shares of it ignore
            self.rounded_bytes += int(np.abs(bound.graph.loop_rows["longer_by"]).sum()) * int(
                bound.graph.loop_rows["cycle"].max()
            )
        self._users[job.bound.links] -= 1
        self._users[bound.links] += 1
        job.before = (*job.before, job.bound)
        job.bound = bound
        if job.batch is not None:
            job.batch = job.batch.rerouted(bound)

    def _move(
        self, moving: Sequence[tuple[int, Job, BoundSchedule]], remap: NDArray[np.int32]
    ) -> list[int]:
        """Give nodes, queues and active flows their new paths; return the nodes of the flows."""
        state = self.state
        self._move_lanes(remap)
        active = np.sort(state.ends.slot[: state.run.active]).astype(np.int64)
        path = state.slots.path[active]
        moved = active[remap[path] != path]
        moved = moved[np.argsort(state.slots.node[moved], kind="stable")]
        nodes = state.slots.node[moved]
        size = message_sizes(state, nodes)
        for group, _, bound in moving:
            base = int(state.groups[group].first_node)
            own = state.nodes[base : base + bound.n_nodes]
            own.path = bound.path
            waits = own.deps != -1  # a node that completed may hold its time instead
            own.wire[waits] = bound.wire_bytes[waits]
            if len(bound.looped):
                loops = state.nodes.loop[base + bound.looped]
                state.loops.longer_by[loops] = bound.graph.loop_rows["longer_by"]
        target = remap[state.slots.path[moved]]
        scale = message_sizes(state, nodes) / np.maximum(size, 1)
        done = 0
        while True:
            done = move_flows(
                state.runs, state.lists, state.slots, state.ends, state.where, state.place,
                state.links, state.pool, state.paths.routes, state.paths.hops,
                moved, target, scale, done,
            )  # fmt: skip
            if done == len(moved):
                return [int(node) for node in nodes]
            state.pool = grown(state.pool, 2 * len(state.pool))

    def _move_lanes(self, remap: NDArray[np.int32]) -> None:
        """Let the queue of each path that was left go on at the path that took its place."""
        state = self.state
        state.make_room()
        old = np.flatnonzero(remap[:-1] != np.arange(len(remap) - 1))
        new = remap[old]
        state.lanes[new] = state.lanes[old]
        left = state.lanes[old]
        left.busy, left.reserved = 0, NO_NODE
        left.head = left.tail = NO_EVENT
        state.lanes[old] = left

    # ------------------------------------------------------------------ looking
    def cautions(self) -> list[str]:
        """Say what a lossless network would have shown of this run, and who moved or stood."""
        return super().cautions() + self._sentences()

    def _sentences(self) -> list[str]:
        moved = list(dict.fromkeys(name for one in self.reroutes for name in one.names))
        lines = []
        if moved:
            times = [format_time(one.at_ps) for one in self.reroutes if one.names]
            lines.append(f"rerouted at {_some(times)}: {_some(moved)}")
        rows = self._stall_rows()
        if rows:
            count = sum(row["count"] for row in rows)
            worst = rows[0]
            lines.append(
                f"{_counted(count, 'transfer')} stood still on links that carried nothing, the "
                f"longest for {format_time(worst['longest_ps'])} ({worst['name']})"
            )
        return lines

    def _stall_rows(self) -> list[dict[str, Any]]:
        """Return a row per flow or collective that stood still, the longest first."""
        stalls = {name: (stall, True) for name, stall in self._book.stalls.items()}
        for slot in standing(self.state).tolist():
            flow = self.state.slots[slot]
            lasted = int(self.env.now) - int(flow.updated)
            if lasted <= 0:
                continue
            name = self._name_of(int(flow.node))
            known, _ = stalls.get(name, (Stall(), True))
            stall = Stall(known.count, known.total_ps, known.longest_ps)
            stall.add(lasted)
            stalls[name] = (stall, False)
        rows = [
            {
                "name": name,
                "count": stall.count,
                "total_ps": stall.total_ps,
                "longest_ps": stall.longest_ps,
                "ended": ended,
            }
            for name, (stall, ended) in stalls.items()
        ]
        return sorted(rows, key=lambda row: (-row["longest_ps"], row["name"]))

    def network(self) -> dict[str, Any]:
        """Return the reroutes, and the stalls of flows and collectives, the longest first."""
        rows = self._stall_rows()
        return {
            "reroutes": [
                {
                    "at_ps": one.at_ps,
                    "paths": one.paths,
                    "messages": one.messages,
                    "moved": list(one.names[:_SHOWN]),
                    "moved_count": len(one.names),
                    "without_route": one.without_route,
                }
                for one in self.reroutes
            ],
            "stalls": {
                "count": sum(row["count"] for row in rows),
                "longest_ps": max((row["longest_ps"] for row in rows), default=0),
                "by_name": rows[:_SHOWN],
            },
        }

    def _stalled(self, job: Job, node: int, slot: Any) -> str:
        if int(slot.bottleneck) < self.table.nowhere or slot.finish < FOREVER:
            return super()._stalled(job, node, slot)
        names = self.fabric.device_names
        src, dst = (names[end] for end in self._routes.ends_of(int(slot.path)))
        line = f"no route from '{src}' to '{dst}' since {format_time(int(slot.updated))}"
        dead = [names[end] for end in self._routes.ends_of(int(slot.path)) if self._cut_off(end)]
        if dead:
            line += f": no link of {' and '.join(repr(name) for name in dead)} is in service"
        flow = job.flow if job.batch is None else job.batch.flows[node]
        return f"flow '{flow.id}' has {line}" if flow else f"collective '{job.tag}' has {line}"

    def _cut_off(self, device: int) -> bool:
        """Tell whether all links of a device are down."""
        fabric = self.fabric
        own = (fabric.link_src == device) | (fabric.link_dst == device)
        return not (self._link_up & own).any()


def _some(names: Sequence[str]) -> str:
    """Write names in a row, the first few where they are many."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
