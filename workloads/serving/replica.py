# SPDX-License-Identifier: Apache-2.0
"""A replica: the ranks of one copy of a model, its KV memory, and the steps it computes.

The same engine prefills, decodes, and does both: what a sequence is here for says its `Sequence`.
While nobody comes or goes, decode iterations of a replica that has its links to itself are done
many at a time, with the same times to the picosecond as one by one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import simpy

from railweave.workloads.serving.ledger import Ledger
from railweave.workloads.serving.steps import Work, bound_ps, perform
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.fabric.iterations import Iterations
    from railweave.workloads.serving.batching import Batching, Step
    from railweave.workloads.serving.memory import KvMemory
    from railweave.workloads.serving.sequence import Sequence
    from railweave.workloads.serving.steps import Stage

__all__ = ["Replica", "ReplicaLostError", "ReplicaPlan"]

_MOST_ITERATIONS: Final = 4096  # at a time: more than that no change is ever far


class ReplicaLostError(Exception):
    """The replica that had a sequence is gone."""


@dataclass(frozen=True, kw_only=True)
class ReplicaPlan:
    """A replica before it runs.

    Parameters
    ----------
    pool
        ``prefill``, ``decode`` or ``colocated``.
    number
        Which of its pool.
    devices
        Device index of the GPU of every rank.
    stages
        Its pipeline stages.
    blocks
        KV blocks that it has room for.
    block_tokens
        Tokens of a block.
    flops_per_s
        Peak arithmetic rate of a rank.
    """

    pool: str
    number: int
    devices: tuple[int, ...]
    stages: tuple[Stage, ...]
    blocks: int
    block_tokens: int
    flops_per_s: int = 0

    @property
    def name(self) -> str:
        """``prefill0``, ``decode3``."""
        return f"{self.pool}{self.number}"

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take.

        Examples
        --------
        >>> plan = ReplicaPlan(
        ...     pool="decode", number=0, devices=(), stages=(), blocks=9, block_tokens=16
        ... )
        >>> plan.blocks_of(50)
        4
        """
        return -(-tokens // self.block_tokens)


@dataclass
class _Leap:
    """Iterations under way: of whom, how many are accounted for, and where their ends begin."""

    iterations: Iterations
    sequences: list[Sequence]
    applied: int = 0


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

    Attributes
    ----------
    connections
        Requests that were sent here and have not left.
    inbound_bytes
        Bytes of KV caches that are on their way here.
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
    ) -> None:
        self.plan, self.env, self.engine = plan, env, engine
        self.memory, self.batching = memory, batching
        self.waiting, self.running = batching.waiting, batching.running
        self.connections = 0
        self.inbound_bytes = 0
        self.up = True
        self.lost = self._lost()
        self.ledger = Ledger(plan)
        self._tag = tag
        self._arriving: deque[Sequence] = deque()  # want blocks for a cache from elsewhere
        self._holding: dict[Sequence, None] = {}  # hold blocks and are in no step
        self._leap: _Leap | None = None
        self._wake = env.event()
        self._processes: dict[simpy.Process, None] = {}
        self._rooms = [simpy.Resource(env) for _ in plan.stages]
        self._start()

    # ------------------------------------------------------------------ coming and going
    def submit(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.append(sequence)
        self._changed()

    def reserve(self, sequence: Sequence) -> None:
        """Let a sequence wait for the blocks of a prompt whose cache comes from elsewhere.

        Nobody overtakes, and nobody is admitted while a sequence of this replica waits.
        """
        self._arriving.append(sequence)
        self.sync()
        self._grant()

    def arrived(self, sequence: Sequence) -> None:
        """Let a sequence begin whose cache has come: its last prompt token is computed again."""
        self.sync()
        self._holding.pop(sequence, None)
        sequence.computed = sequence.scheduled = sequence.prompt - 1
        self.memory.note(sequence)
        self.batching.reserved -= 1
        self.batching.join(sequence)
        self._changed()

    def release(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence that waited for its cache to leave."""
        if sequence in self._holding:
            del self._holding[sequence]
            self.memory.release(sequence)
            self._changed()

    def withdraw(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, but for one that steps compute."""
        self.sync()
        if sequence in self._arriving:
            self._arriving.remove(sequence)
        elif sequence in self._holding:
            del self._holding[sequence]
            self.memory.release(sequence)
            self.batching.reserved -= sequence.granted is not None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._changed()

    def _grant(self) -> None:
        """Set blocks aside for caches that come, in order."""
        batching = self.batching
        while self._arriving and self.up and not self.waiting:
            sequence = self._arriving[0]
            seated = len(self.running) + batching.reserved < batching.max_num_seqs
            if not seated or not self.memory.admit(sequence, sequence.prompt):
                return
            self._arriving.popleft()
            self._holding[sequence] = None
            batching.reserved += 1
            assert sequence.granted is not None
            sequence.granted.succeed()
            if self._leap is not None:
                self._leap.iterations.curtail()

    def _changed(self) -> None:
        """See what follows from a sequence that came or left."""
        self.sync()
        self._grant()
        if self._leap is not None:
            self._leap.iterations.curtail()
        if not self._wake.triggered:
            self._wake.succeed()

    # ------------------------------------------------------------------ failing
    def fail(self) -> list[Sequence]:
        """Go down: lose every sequence and all that is remembered. Return those sequences."""
        self.sync()
        lost = [*self.running, *self.waiting, *self._arriving, *self._holding]
        lost = list(dict.fromkeys([*lost, *self.batching.ready]))
        for process in self._processes:
            process.interrupt()
        self._processes.clear()
        if self._leap is not None:
            self._leap.iterations.curtail()
        for sequence in lost:
            self.memory.release(sequence)
            for event in (sequence.granted, sequence.done):
                if event is not None and not event.triggered:
                    event.fail(ReplicaLostError(self.plan.name))
                    event.defused = True
        self.memory.forget()
        self.batching.clear()
        self._arriving.clear()
        self._holding.clear()
        self._leap = None
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
        self._rooms = [simpy.Resource(self.env) for _ in self.plan.stages]
        self._start()

    # ------------------------------------------------------------------ computing
    def _start(self) -> None:
        self._spawn(self._run())

    def _spawn(self, what: Generator[simpy.Event, Any, None]) -> None:
        def guarded() -> Generator[simpy.Event, Any, None]:
            try:
                yield from what
            except simpy.Interrupt:
                return
            finally:
                self._processes.pop(process, None)

        process = self.env.process(guarded())
        self._processes[process] = None

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            step = self.batching.plan()
            self.ledger.plan_made(self)
            if not step:
                self._grant()
                self._wake = self.env.event()
                yield self._wake
                continue
            for sequence, tokens in step:
                request = sequence.request
                if request.prefill_start_ps < 0 and sequence.granted is None:
                    request.prefill_start_ps = int(self.env.now)
                    request.found_tokens = sequence.found
                sequence.scheduled += tokens
                sequence.in_flight += 1
            iterations = self._iterations(step)
            if iterations:
                yield from self._iterate(step, iterations)
            else:
                left_first = self.env.event()
                self._spawn(self._pass(step, left_first))
                yield left_first

    def _load(self, step: Step) -> StepLoad:
        return StepLoad(
            tuple((tokens, s.scheduled - tokens) for s, tokens in step),
            rows=sum(s.scheduled >= s.length for s, _ in step),
        )

    def _pass(self, step: Step, left_first: simpy.Event) -> Generator[simpy.Event, Any, None]:
        """Take one step through all stages."""
        load = self._load(step)
        works = [stage.works(load) for stage in self.plan.stages]
        begun_ps = int(self.env.now)
        begin = [(s, s.began_step) for s, _ in step if s.began_step is not None]
        if begin:
            expected_ps = sum(bound_ps(self.engine, parts) for parts in works)
            added_ps = max(began(sequence, expected_ps) for sequence, began in begin)
            for number, parts in enumerate(works):  # evenly over the stages
                share = added_ps * (number + 1) // len(works) - added_ps * number // len(works)
                parts.append(Work(wait_ps=share))
        for number, room in enumerate(self._rooms):
            with room.request() as turn:
                yield turn
                begun = self.env.now
                yield from perform(self.env, self.engine, works[number], tag=self._tag)
                self.ledger.busy_ps += int(self.env.now - begun)
            if number == 0:
                left_first.succeed()
        now = int(self.env.now)
        flops = sum(stage.flops(load) for stage in self.plan.stages)
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
        self.running.remove(sequence)
        if sequence.target:
            self.memory.release(sequence)
        else:
            self._holding[sequence] = None  # until its cache has left
        sequence.done.succeed()

    def _made(self, sequence: Sequence, now: int) -> None:
        request = sequence.request
        sequence.made += 1
        request.generated += 1
        self.ledger.token(sequence, now)
        if request.first_ps < 0:
            request.first_ps = now
        sequence.last_ps = request.last_token_ps = now

    # ------------------------------------------------------------------ many iterations at a time
    def _iterations(self, step: Step) -> int:
        """Return how many iterations like this one can be done at once; 0: only this step."""
        if len(self.plan.stages) > 1 or not self.plan.stages[0].steady:
            return 0
        if not all(tokens == 1 and s.scheduled == s.length and s.target for s, tokens in step):
            return 0
        if len(step) < len(self.running):
            return 0
        most = min(_MOST_ITERATIONS, *(s.target - s.made for s, _ in step))
        free = self.memory.free_blocks
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            wanted = sum(self.memory.wanted(s, s.scheduled + middle - 1) for s, _ in step)
            low, high = (middle, high) if wanted <= free else (low, middle - 1)
        return low

    def _iterate(self, step: Step, count: int) -> Generator[simpy.Event, Any, None]:
        """Do decode iterations; whoever looks meanwhile sees them as if done one by one."""
        (stage,) = self.plan.stages
        load = self._load(step)
        pauses = stage.times(load, count)
        began = int(self.env.now)
        iterations = self.engine.iterate(
            stage.iteration(load), self.plan.devices, pauses, tag=self._tag
        )
        leap = self._leap = _Leap(iterations, [s for s, _ in step])
        runs = yield iterations.event
        self._apply(leap, runs)
        self._leap = None
        flops = stage.flops(load, runs)
        self.ledger.iterations(self, len(step), began, int(self.env.now), runs, flops)
        for sequence in leap.sequences:
            sequence.in_flight -= 1
            if sequence.made == sequence.target:
                self.running.remove(sequence)
                self.memory.release(sequence)
                sequence.done.succeed()
        self._grant()

    def sync(self) -> None:
        """Bring sequences and blocks to where the iterations under way are now."""
        leap = self._leap
        if leap is None or leap.iterations.event.triggered:
            return
        runs = leap.iterations.done(int(self.env.now))
        self._apply(leap, min(runs, len(leap.iterations.ends_ps) - 1))

    def _apply(self, leap: _Leap, runs: int) -> None:
        """Account for the iterations up to a number, and the blocks of the one after."""
        ends = leap.iterations.ends_ps
        under_way = int(runs < len(ends))
        new = runs - leap.applied
        if new <= 0:
            return
        for sequence in leap.sequences:
            request = sequence.request
            sequence.computed += new
            sequence.made += new
            sequence.scheduled = sequence.computed + under_way
            request.generated += new
            self.memory.grow(sequence, sequence.scheduled)
            self.ledger.token(sequence, ends[leap.applied])
            if request.first_ps < 0:
                request.first_ps = ends[leap.applied]
            sequence.last_ps = request.last_token_ps = ends[runs - 1]
        self.ledger.further(ends[leap.applied : runs], len(leap.sequences))
        leap.applied = runs

    # ------------------------------------------------------------------ being looked at
    @property
    def waiting_count(self) -> int:
        """Requests that wait for their first step or for blocks."""
        return len(self.waiting) + len(self._arriving)

    @property
    def empty(self) -> bool:
        """Whether no request is here."""
        return not (self.connections or self.running or self.waiting_count or self._holding)

    @property
    def short(self) -> bool:
        """Whether a sequence waits for KV blocks, not for a seat."""
        batching = self.batching
        seated = len(self.running) + batching.reserved < batching.max_num_seqs
        return batching.short or (bool(self._arriving) and seated)

    @property
    def free_blocks(self) -> int:
        """KV blocks that a sequence could have."""
        self.sync()
        return self.memory.free_blocks

    def bound_ps(self, load: StepLoad) -> int:
        """Return the least that a step takes here on an empty fabric, in ps."""
        return sum(bound_ps(self.engine, stage.works(load)) for stage in self.plan.stages)

    def waiting_lines(self) -> Iterator[str]:
        """Say who waits for blocks here."""
        self.sync()
        holders = [s.name for s in (*self.running, *self._holding)]
        held = ", ".join(holders[:4]) + (" and others" if len(holders) > 4 else "")
        free = f"{self.memory.free_blocks} of {self.memory.blocks} are free"
        free += f" and {held} hold the rest" if holders else ""
        for sequence in self._arriving:
            blocks = self.memory.wanted(sequence, sequence.prompt)
            yield (
                f"request {sequence.name} waits for {blocks} KV blocks of {self.plan.name}, "
                f"where {free}"
            )
        for sequence in self.waiting:
            blocks = self.memory.wanted(sequence, sequence.length)
            yield (
                f"request {sequence.name} waits for its turn at {self.plan.name}, and for "
                f"{blocks} KV blocks there, where {free}"
            )
