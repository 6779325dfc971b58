# SPDX-License-Identifier: Apache-2.0
"""A replica: the ranks of one copy of a model, its KV memory, and the sequences it has.

The same engine prefills, decodes, and does both: what a sequence is here for says its `Sequence`.
How steps come about is in `railweave.workloads.serving.stepping`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from railweave.workloads.serving.ledger import Ledger
from railweave.workloads.serving.stepping import Stepper
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.batching import Batching, Step
    from railweave.workloads.serving.lockstep import Lockstep
    from railweave.workloads.serving.memory import KvMemory
    from railweave.workloads.serving.replica_plan import ReplicaPlan
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Replica", "ReplicaLostError"]


class ReplicaLostError(Exception):
    """The replica that had a sequence is gone."""


class Replica:
    """A replica at work.

    Parameters
    ----------
    plan
        What it is.
    env, engine
        The clock and the fabric.
    memory
        Its KV blocks.
    batching
        Chooses what each step computes, among `waiting` and `running`.
    tag
        What its collectives are called.
    lockstep
        Steps with those that it shares experts with, or None.

    Attributes
    ----------
    connections
        Requests that were sent here and have not left.
    inbound_bytes
        Bytes of KV caches that are on their way here.
    arriving, holding
        Sequences that want blocks for a cache from elsewhere, in order, and those that hold blocks
        and are in no step.
    ledger
        What it did.
    up
        Whether it serves.
    lost
        Fails with `ReplicaLostError` when it goes down.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        env: FabricEnvironment,
        engine: Engine,
        *,
        memory: KvMemory,
        batching: Batching,
        tag: str,
        lockstep: Lockstep | None = None,
    ) -> None:
        self.plan, self.env, self.engine = plan, env, engine
        self.memory, self.batching = memory, batching
        self.waiting, self.running = batching.waiting, batching.running
        self.connections = 0
        self.inbound_bytes = 0
        self.up = True
        self.lost = self._lost()
        self.ledger = Ledger(plan)
        self.arriving: deque[Sequence] = deque()
        self.holding: dict[Sequence, None] = {}
        self._steps: Stepper | Lockstep = Stepper(self, tag) if lockstep is None else lockstep
        if lockstep is not None:
            lockstep.add(self)
        self._steps.start()

    # ------------------------------------------------------------------ coming and going
    def submit(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.append(sequence)
        self._changed()

    def reserve(self, sequence: Sequence) -> None:
        """Let a sequence wait for the blocks of a prompt whose cache comes from elsewhere.

        Nobody overtakes, and nobody is admitted while a sequence of this replica waits.
        """
        self.arriving.append(sequence)
        self.sync()
        self.grant()
        self.ledger.look(self)

    def arrived(self, sequence: Sequence) -> None:
        """Let a sequence begin whose cache has come: its last prompt token is computed again."""
        self.sync()
        self.holding.pop(sequence, None)
        sequence.computed = sequence.scheduled = sequence.prompt - 1
        self.memory.note(sequence)
        self.batching.reserved -= 1
        self.batching.join(sequence)
        self._changed()

    def release(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence that waited for its cache to leave."""
        if sequence in self.holding:
            del self.holding[sequence]
            self.memory.release(sequence)
            self._changed()

    def withdraw(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, but for one that steps compute."""
        self.sync()
        if sequence in self.arriving:
            self.arriving.remove(sequence)
        elif sequence in self.holding:
            del self.holding[sequence]
            self.memory.release(sequence)
            self.batching.reserved -= sequence.granted is not None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._changed()
        self.ledger.look(self)

    def grant(self) -> None:
        """Set blocks aside for caches that come, in order."""
        batching = self.batching
        while self.arriving and self.up and not self.waiting:
            sequence = self.arriving[0]
            seated = len(self.running) + batching.reserved < batching.max_num_seqs
            if not seated or not self.memory.admit(sequence, sequence.prompt):
                return
            self.arriving.popleft()
            self.holding[sequence] = None
            batching.reserved += 1
            assert sequence.granted is not None
            sequence.granted.succeed()
            self._steps.curtail()

    def _changed(self) -> None:
        """See what follows from a sequence that came or left."""
        self.sync()
        self.grant()
        self._steps.wake()

    # ------------------------------------------------------------------ failing
    def fail(self) -> list[Sequence]:
        """Go down: lose every sequence and all that is remembered. Return those sequences."""
        self.sync()
        lost = [*self.running, *self.waiting, *self.arriving, *self.holding]
        lost = list(dict.fromkeys([*lost, *self.batching.ready]))
        self._steps.stop()
        for sequence in lost:
            self.memory.release(sequence)
            for event in (sequence.granted, sequence.done):
                if event is not None and not event.triggered:
                    event.fail(ReplicaLostError(self.plan.name))
                    event.defused = True
        self.memory.forget()
        self.batching.clear()
        self.arriving.clear()
        self.holding.clear()
        self.ledger.look(self)
        self.up = False
        self.lost.fail(ReplicaLostError(self.plan.name))
        return lost

    def _lost(self) -> simpy.Event:
        event = self.env.event()
        event.defused = True  # nobody may be waiting
        return event

    def recover(self) -> None:
        """Serve again, with nothing in memory."""
        self.up = True
        self.lost = self._lost()
        self._steps.start()

    # ------------------------------------------------------------------ computing
    def plan_step(self) -> Step:
        """Return what the next step computes; nothing if there is nothing to do."""
        step = self.batching.plan()
        self.ledger.plan_made(self)
        return step

    def begin(self, step: Step) -> None:
        """Note that a step begins."""
        for sequence, tokens in step:
            request = sequence.request
            if request.prefill_start_ps < 0 and sequence.granted is None:
                request.prefill_start_ps = int(self.env.now)
                request.found_tokens = sequence.found
            sequence.scheduled += tokens
            sequence.in_flight += 1

    def load(self, step: Step) -> StepLoad:
        """Return what a step that has begun computes."""
        return StepLoad(
            tuple((tokens, s.scheduled - tokens) for s, tokens in step),
            rows=sum(s.scheduled >= s.length for s, _ in step),
        )

    def announce(self, step: Step, expected_ps: int) -> int:
        """Tell those who send while a step computes what it takes; return what that adds, in ps."""
        begin = [(s, s.began_step) for s, _ in step if s.began_step is not None]
        return max((began(sequence, expected_ps) for sequence, began in begin), default=0)

    def finish(self, step: Step, begun_ps: int, flops: int) -> None:
        """Note that a step has ended, and take what came out of it.

        Parameters
        ----------
        step, begun_ps
            The step, and when it began.
        flops
            Floating-point operations of a rank, summed over stages.
        """
        now = int(self.env.now)
        self.ledger.step(self, step, begun_ps, now, flops)
        for sequence, tokens in step:
            sequence.in_flight -= 1
            sequence.computed += tokens
            self.memory.note(sequence)
            if sequence.ended_step is not None:
                sequence.ended_step(sequence)
            if sequence.computed == sequence.length:
                self._token(sequence, now)
        self._changed()

    def _token(self, sequence: Sequence, now: int) -> None:
        """Take what comes out when all known tokens of a sequence are computed."""
        if sequence.target:
            self._made(sequence, now)
        if sequence.made < sequence.target:
            return
        self.leave(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Let a sequence go that has nothing more to do here."""
        self.running.remove(sequence)
        if sequence.target:
            self.memory.release(sequence)
        else:
            self.holding[sequence] = None  # until its cache has left
        sequence.done.succeed()

    def _made(self, sequence: Sequence, now: int) -> None:
        request = sequence.request
        sequence.made += 1
        request.generated += 1
        self.ledger.token(sequence, now)
        if request.first_ps < 0:
            request.first_ps = now
        sequence.last_ps = request.last_token_ps = now
        if sequence.made == 1 and sequence.first_token is not None:
            sequence.first_token()

    def sync(self) -> None:
        """Bring sequences and blocks to where the steps under way are now."""
        self._steps.sync()

    # ------------------------------------------------------------------ being looked at
    @property
    def waiting_count(self) -> int:
        """Requests that wait for their first step or for blocks."""
        return len(self.waiting) + len(self.arriving)

    @property
    def empty(self) -> bool:
        """Whether no request is here."""
        return not (self.connections or self.running or self.waiting_count or self.holding)

    @property
    def short(self) -> bool:
        """Whether a sequence waits for KV blocks, not for a seat."""
        batching = self.batching
        seated = len(self.running) + batching.reserved < batching.max_num_seqs
        return batching.short or (bool(self.arriving) and seated)

    @property
    def free_blocks(self) -> int:
        """KV blocks that a sequence could have."""
        self.sync()
        return self.memory.free_blocks

    def bound_ps(self, load: StepLoad) -> int:
        """Return the least that a step takes here on an empty fabric, in ps."""
        return self._steps.bound_ps(load)
