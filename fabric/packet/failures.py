# SPDX-License-Identifier: Apache-2.0
"""What goes wrong during a packet run: links that fail and come back, pause storms, watchdogs.

Changes happen in the event order, before everything else of their instant. They are rare, so they
run as Python. Routes follow a link's change after the detection delay: queue pairs whose route
changed send on over the new one, and what was lost on the old one is recovered as any loss is.

The watchdog is that of SONiC ("PFC Watchdog in SONiC",
https://github.com/sonic-net/SONiC/wiki/PFC-Watchdog): a switch port's queue that has packets and
was paused without a break for the detection time is, at the next poll, let loose: what it has and
what comes is dropped, or sent as if there were no pause. When no pause came for the restoration
time it heeds pauses again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.jit import as_python
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.balance import Ways
from railweave.fabric.packet.buffers import send_pause
from railweave.fabric.packet.events import push
from railweave.fabric.packet.outages import flush
from railweave.fabric.reroute import Detector, ReroutingBinder
from railweave.fabric.routing import Routing
from railweave.fabric.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from railweave.fabric.faults import FaultPlan, LinkChange, Storm
    from railweave.fabric.packet.engine import PacketEngine
    from railweave.fabric.packet.state import PacketState

__all__ = ["Failures", "push_event"]

_MOST_QUANTA: Final = 65535
_STILL_PS: Final = 100 * 10**9  # nothing moves for so long under an endless storm: it never will


def push_event(state: PacketState, at_ps: int, key: int) -> None:
    """Add an event from outside the kernel."""
    if state.run.ev_left < state.spare or len(state.far) - state.run.far < state.spare:
        state.grow_events(len(state.ev) // lay.BLOCK + state.spare)
    as_python(push, state.runs, state.ev, state.wheel, state.far, at_ps, key, 0)


@dataclass
class _Blow:
    """A storm under way."""

    storm: Storm
    klass: int


@dataclass
class _Lane:
    """Where a queue pair goes: the number of its path, its ends, and whether answers are pinned."""

    path: int
    sprayed: bool
    pinned_back: bool
    ends: tuple[int, int] = field(default=(-1, -1))


class Failures:
    """Failures of one run.

    Parameters
    ----------
    engine
        Whose run it is.
    changing
        bool (links,): links that may change; None: none does.
    delay_ps
        From a link's going down or coming up until routes follow.
    """

    def __init__(
        self, engine: PacketEngine, changing: NDArray[np.bool_] | None, delay_ps: int
    ) -> None:
        self.engine = engine
        self.changing = changing is not None
        self.detector = Detector(engine.fabric.link_up, delay_ps)
        self.lanes: dict[int, _Lane] = {}
        self.reroutes: list[dict[str, Any]] = []
        self.watched: list[dict[str, Any]] = []
        self._acted: dict[tuple[int, int], dict[str, Any]] = {}
        self._planned: list[tuple[int, Any]] = []
        self._endless = 0
        self._moved = (-1, 0)  # frames sent, and since when no more were

    # ------------------------------------------------------------------ planning
    @property
    def planned(self) -> bool:
        """Whether links change or hosts storm during the run."""
        return bool(self._planned)

    def plan(self, faults: FaultPlan) -> None:
        """Take the changes and storms of a run."""
        if faults.changes and not self.changing:
            raise InputError("links that change during a packet run must be announced")
        for change in faults.changes:
            self._planned.append((change.at_ps, change))
            self._watch_for(change)
        for storm in faults.storms:
            if storm.priority is not None:
                self.engine.announce(storm.priority)
            self._planned.append((storm.at_ps, storm))

    def _watch_for(self, change: LinkChange) -> None:
        """Let routing know of a change when the delay has passed."""
        env, at = self.engine.env, change.at_ps

        def note(_: Any) -> None:
            if self.detector.note(change.link, up=change.up, now_ps=at):
                self._after(self.detector.delay_ps, self._look)

        if at > env.now:
            self._after(at - int(env.now), note)
        else:
            note(None)

    def now(self, state: PacketState, change: LinkChange) -> None:
        """Change a link in this instant."""
        if not self.changing:
            raise InputError("links that change during a packet run must be announced")
        state.run.now = max(int(state.run.now), change.at_ps)
        state.run.tie = lay.FOREVER  # all events of this instant have been
        self.change(state, change.link, up=change.up, rate_bps=change.rate_bps)
        self._watch_for(change)

    def _after(self, wait_ps: int, do: Callable[[Any], None]) -> None:
        timer = self.engine.env.timeout(wait_ps)
        assert timer.callbacks is not None
        timer.callbacks.append(do)

    def install(self, state: PacketState) -> None:
        """Put what was planned into the event order of a simulation that begins."""
        self._actions = [action for _, action in self._planned]
        for number, (at_ps, _) in enumerate(self._planned):
            if at_ps == 0:
                self._act(state, number)
            else:
                push_event(state, at_ps, (lay.LINK_CHANGE << lay.CLASS_SHIFT) | number)

    # ------------------------------------------------------------------ acting
    def take(self, state: PacketState) -> None:
        """Do what the event that stopped the kernel asks for."""
        key = int(state.run.ev_key)
        if key == (lay.CHECK << lay.CLASS_SHIFT) | lay.SAMPLE:
            assert self.engine.sampler is not None
            self.engine.sampler.take(state)
        elif key >> lay.CLASS_SHIFT == lay.LINK_CHANGE:
            self._act(state, key & lay.ENTITY_MASK)
        else:
            self._poll(state)

    def _act(self, state: PacketState, number: int) -> None:
        action = self._actions[number]
        if isinstance(action, _Blow):
            self._blow(state, number, action)
        elif hasattr(action, "until_ps"):
            priority = state.settings.priority if action.priority is None else action.priority
            self._actions[number] = blow = _Blow(action, state.priorities.index(priority))
            self._endless += action.until_ps < 0
            self._blow(state, number, blow)
        else:
            self.change(state, action.link, up=action.up, rate_bps=action.rate_bps)

    def change(self, state: PacketState, link: int, *, up: bool, rate_bps: int) -> None:
        """Change one link now."""
        port, run = state.ports[link], state.run
        if rate_bps != port.rate:
            port.rate, port.carry = rate_bps, 0
            tau, rest = divmod(8 * PS_PER_S, rate_bps)
            port.tau = tau if rest == 0 and tau < 2**31 else 0
        if up == bool(port.up):
            return
        port.up = int(up)
        if port.switch >= 0:
            port.dropping = 0 if up else (1 << run.classes) - 1
        if not up and port.switch >= 0:
            for klass in range(run.classes):
                self._flush(state, link * int(run.classes) + klass)
        if up:
            self._say_again(state, link ^ 1)
            self._kick(state, link)

    def _say_again(self, state: PacketState, link: int) -> None:
        """Let a port forget the pauses it knows, which come by a link that was down, and tell anew.

        Pause frames of the time between were lost: a port must neither wait for a resume that will
        not come, nor send what a buffer has no room for.
        """
        run, port, now = state.run, state.ports[link], int(state.run.now)
        if port.credit == 1:
            return
        for klass in range(run.classes):
            queue, bit = link * int(run.classes) + klass, 1 << klass
            if port.blocked & bit:
                port.blocked &= ~bit
                state.egress[queue].paused += now - state.egress[queue].since
                run.blocked -= 1
            own = state.ingress[queue]
            if own.off == 1:
                own.since = now
                self._pause(state, queue, _MOST_QUANTA)
        self._kick(state, link)

    @staticmethod
    def _pause(state: PacketState, queue: int, quanta: int) -> None:
        """Send a pause frame, or with 0 quanta a resume, to the sender of an ingress queue."""
        as_python(
            send_pause, state.runs, state.ev, state.wheel, state.far, state.ports, state.ingress,
            queue, quanta,
        )  # fmt: skip

    def _kick(self, state: PacketState, link: int) -> None:
        """Let a port try to send in this instant."""
        if state.ports[link].pending == 0:
            state.ports[link].pending = 1
            push_event(state, int(state.run.now), (lay.TX_END << lay.CLASS_SHIFT) | link)

    def _flush(self, state: PacketState, queue: int) -> None:
        count, number = 0, int(state.egress[queue].head)
        while number >= 0:
            count, number = count + 1, int(state.packets[number].next)
        while state.run.ev_left < state.spare + 2 * count or (
            len(state.far) - state.run.far < state.spare + 2 * count
        ):
            state.grow_events(len(state.ev) // lay.BLOCK + state.spare)
        as_python(
            flush, state.runs, state.ev, state.wheel, state.far, state.ports, state.egress,
            state.ingress, state.switches, state.swports, state.packets, state.qps, queue,
        )  # fmt: skip

    # ------------------------------------------------------------------ storms
    def _blow(self, state: PacketState, number: int, blow: _Blow) -> None:
        """Send a pause of a storm, and see to the next one."""
        run, storm = state.run, blow.storm
        now, over = int(run.now), 0 <= storm.until_ps <= int(run.now)
        quanta = _MOST_QUANTA
        if over:
            if run.pfc_expiry == 1:  # its last pause ends by itself
                return
            quanta = 0
        self._pause(state, storm.link * int(run.classes) + blow.klass, quanta)
        if over:
            return
        again = now + (
            int(run.refresh_ps) or _MOST_QUANTA * int(state.ports[storm.link].quantum) // 2
        )
        if run.pfc_expiry == 0:
            again = storm.until_ps
        if storm.until_ps >= 0:
            again = min(again, storm.until_ps)
        if again > now:
            push_event(state, again, (lay.LINK_CHANGE << lay.CLASS_SHIFT) | number)

    def stands(self, state: PacketState) -> bool:
        """Whether an endless storm has stopped all there is for long enough to say so."""
        frames, now = int(state.egress.frames.sum()), int(state.run.now)
        if frames != self._moved[0] or not self._endless:
            self._moved = frames, now
            return False
        dog = state.settings.watchdog
        patience = _STILL_PS
        if dog is not None:
            patience = max(patience, 2 * (dog.detect_ps + dog.poll_ps))
        return now - self._moved[1] >= max(patience, 8 * int(state.run.rto_ps))

    def said(self, state: PacketState) -> str:
        """Say which storms blow."""
        blows = [one for one in self._actions if isinstance(one, _Blow)]
        names = sorted({self.engine.fabric.link_name(one.storm.link ^ 1) for one in blows})
        return (
            f"nothing has moved since {format_time(self._moved[1])} under the pause storm of "
            + (", ".join(names))
        )

    # ------------------------------------------------------------------ watchdog
    def _poll(self, state: PacketState) -> None:
        """Look at paused queues, let loose those paused for too long, restore others."""
        run, dog = state.run, state.settings.watchdog
        assert dog is not None
        run.polling = 0
        now, classes = int(run.now), int(run.classes)
        ports = state.ports
        paused = (ports.blocked != 0) & (ports.switch >= 0) & (ports.credit == 0)
        for link in np.flatnonzero(paused).tolist():
            for klass in range(classes):
                row = state.egress[link * classes + klass]
                stuck = (int(ports[link].blocked) >> klass) & 1 and row.head >= 0
                if stuck and now - row.since >= dog.detect_ps:
                    self._let_loose(state, link, klass, dog.action)
        for (link, klass), record in list(self._acted.items()):
            if now - state.egress[link * classes + klass].heard >= dog.restore_ps:
                record["restored_ps"] = now
                del self._acted[link, klass]
                ports[link].deaf &= ~(1 << klass)
                if ports[link].up:
                    ports[link].dropping &= ~(1 << klass)
        if run.blocked > 0 or any(one["action"] != "alert" for one in self._acted.values()):
            run.polling = 1
            at = (now // dog.poll_ps + 1) * dog.poll_ps
            push_event(state, at, (lay.CHECK << lay.CLASS_SHIFT) | lay.POLL)

    def _let_loose(self, state: PacketState, link: int, klass: int, action: str) -> None:
        if (link, klass) in self._acted:  # an alert was given already
            return
        port, row, now = state.ports[link], state.egress[link * state.run.classes + klass], 0
        now = int(state.run.now)
        record = {
            "port": self.engine.fabric.link_name(link),
            "priority": state.priorities[klass],
            "paused_since_ps": int(row.since),
            "detected_ps": now,
            "restored_ps": -1,
            "action": action,
        }
        self.watched.append(record)
        self._acted[link, klass] = record
        if action == "alert":
            return
        port.deaf |= 1 << klass
        port.blocked &= ~(1 << klass)
        row.paused += now - row.since
        state.run.blocked -= 1
        if action == "drop":
            port.dropping |= 1 << klass
            self._flush(state, link * int(state.run.classes) + klass)
        self._kick(state, link)

    # ------------------------------------------------------------------ routes
    def note_lanes(
        self, numbers: NDArray[np.int64], paths: NDArray[np.int64], *, sprayed: bool, back: bool
    ) -> None:
        """Remember which way new queue pairs go."""
        table, fabric = self.engine.table, self.engine.fabric
        for number, path in zip(numbers.tolist(), paths.tolist(), strict=True):
            own = table.links_of(path)
            ends = int(fabric.link_src[own[0]]), int(fabric.link_dst[own[-1]])
            self.lanes[number] = _Lane(path, sprayed, back, ends)

    def forget(self, number: int) -> None:
        """Forget a queue pair that is used for something else."""
        self.lanes.pop(number, None)

    def _look(self, _: Any) -> None:
        """Let routing notice what has been so for the delay, and move queue pairs."""
        engine, now = self.engine, int(self.engine.env.now)
        if not self.detector.look(now):
            return
        binder = engine.binder
        assert isinstance(binder, ReroutingBinder)
        before = binder.routing
        left = engine.fabric.with_links(up=self.detector.known)
        remap = binder.reroute(Routing(left, policy=before.policy, seed=before.seed))
        engine.routes_changed()
        moved = self._move_sprayed(engine.state)
        if remap is not None:
            moved += self._move_pinned(engine.state, remap)
            engine.carry_over(remap)
        paths = 0 if remap is None else int((remap[:-1] != np.arange(len(remap) - 1)).sum())
        self.reroutes.append(
            {"at_ps": now, "paths": paths, "queue_pairs": moved, "without_route": binder.waiting}
        )

    def _move_sprayed(self, state: PacketState) -> int:
        ways, moved = None, 0
        for number, lane in self.lanes.items():
            if not lane.sprayed:
                continue
            ways = ways or Ways(state, self.engine.binder.routing)
            try:
                row, one = ways.first_hop(*lane.ends)
            except InputError:  # no way is left: what it sends is lost until one is
                continue
            state.qps[number].path = row
            self._set_first(state, number, int(one[0]))
            if not lane.pinned_back:
                state.qps[number].back = ways.first_hop(*lane.ends[::-1])[0]
            moved += 1
        return moved

    def _move_pinned(self, state: PacketState, remap: NDArray[np.int32]) -> int:
        moved = 0
        table, binder = self.engine.table, self.engine.binder
        assert isinstance(binder, ReroutingBinder)
        for number, lane in self.lanes.items():
            new = int(remap[lane.path])
            if new == lane.path:
                continue
            lane.path = new
            if lane.sprayed or binder.parked(new):
                continue
            links = table.links_of(new).astype(np.int64)
            ptr = np.array([0, len(links)])
            state.qps[number].path = state.add_paths(ptr, links)[0]
            self._set_first(state, number, int(links[0]))
            if not lane.pinned_back:
                back = links[::-1] ^ 1
                state.qps[number].back = state.add_paths(ptr, back)[0]
                classes = int(state.run.classes)
                klass = int(state.qps[number].back_queue) % classes
                state.qps[number].back_queue = back[0] * classes + klass
            moved += 1
        return moved

    def _set_first(self, state: PacketState, number: int, link: int) -> None:
        """Let a queue pair send over another cable of its host."""
        qp, classes = state.qps[number], int(state.run.classes)
        queue = link * classes + int(qp.klass)
        if queue == qp.queue:
            return
        ready = qp.state == lay.QP_READY
        if ready:
            self._take_off(state, number)
        qp.queue = queue
        if ready:
            row = state.egress[queue]
            qp.next = lay.NONE
            if row.ready < 0:
                row.ready = number
                state.ports[link].mask |= 1 << int(qp.klass)
            else:
                state.qps[row.ready_tail].next = number
            row.ready_tail = number
            self._kick(state, link)

    @staticmethod
    def _take_off(state: PacketState, number: int) -> None:
        """Take a queue pair out of its port's ready list."""
        qp = state.qps[number]
        row = state.egress[qp.queue]
        at, before = int(row.ready), lay.NONE
        while at != number:
            before, at = at, int(state.qps[at].next)
        if before < 0:
            row.ready = qp.next
        else:
            state.qps[before].next = qp.next
        if row.ready_tail == number:
            row.ready_tail = before
        if row.ready < 0 and row.head < 0:
            port = state.ports[int(qp.queue) // int(state.run.classes)]
            port.mask &= ~(1 << int(qp.klass))

    # ------------------------------------------------------------------ telling
    def network(self) -> dict[str, Any]:
        """Return reroutes and what the watchdog did, for ``result.json``."""
        found: dict[str, Any] = {}
        if self.changing:
            found["reroutes"] = self.reroutes
        if self.engine.packet.watchdog is not None:
            found["watchdog"] = self.watched
        return found
