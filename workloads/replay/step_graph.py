# SPDX-License-Identifier: Apache-2.0
"""A step as a graph of tasks, each begun when those before it have ended.

A task is compute with the collectives between its blocks, or messages to another stage, or a
collective of its own. Tasks of one stage that take turns are joined by edges like all others, so
the graph says all there is to say; the engine decides how long its communication takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import RailweaveError
from railweave.workloads.works import bound_ps, perform

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.works import Work

__all__ = ["StepGraph", "Task"]


@dataclass(frozen=True)
class Task:
    """A part of a step.

    Parameters
    ----------
    name
        What it is: the tag of its collectives.
    stage
        Pipeline stage whose time it is.
    axis
        ``compute``, or the axis whose communication it is.
    works
        Parts one after another.
    compute_ps
        What they take where communication is free.
    lane
        Number of the group of replicas that does it, -1: all together.
    """

    name: str
    stage: int
    axis: str
    works: tuple[Work, ...]
    compute_ps: int = 0
    lane: int = -1


@dataclass
class StepGraph:
    """Tasks and who waits for whom.

    Attributes
    ----------
    tasks
        In the order in which they were added.
    after
        For each task, the tasks that it waits for.
    begin_ps, end_ps
        When each task began and ended, -1 before.
    """

    tasks: list[Task] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    begin_ps: list[int] = field(default_factory=list)
    end_ps: list[int] = field(default_factory=list)

    def add(self, task: Task, after: Sequence[int | None] = ()) -> int:
        """Add a task that waits for others (None: for nobody) and return its number."""
        self.tasks.append(task)
        self.after.append(tuple(dict.fromkeys(i for i in after if i is not None)))
        self.begin_ps.append(-1)
        self.end_ps.append(-1)
        return len(self.tasks) - 1

    def wait(self, task: int, before: int) -> None:
        """Let a task wait for one more."""
        if before not in self.after[task]:
            self.after[task] = (*self.after[task], before)

    def _successors(self) -> list[list[int]]:
        behind: list[list[int]] = [[] for _ in self.tasks]
        for task, before in enumerate(self.after):
            for one in before:
                behind[one].append(task)
        return behind

    def _order(self) -> Iterator[int]:
        """Yield the tasks so that none comes before one that it waits for."""
        left = [len(before) for before in self.after]
        behind = self._successors()
        ready = [task for task, count in enumerate(left) if not count]
        seen = 0
        while ready:
            task = ready.pop()
            seen += 1
            yield task
            for one in behind[task]:
                left[one] -= 1
                if not left[one]:
                    ready.append(one)
        if seen < len(self.tasks):
            raise RailweaveError("the tasks of a step wait for each other in a circle")

    def ends(self, duration: Callable[[int], int]) -> list[int]:
        """Return when each task would end if each took a given duration in ps."""
        end = [0] * len(self.tasks)
        for task in self._order():
            begin = max((end[i] for i in self.after[task]), default=0)
            end[task] = begin + duration(task)
        return end

    def longest(self, duration: Callable[[int], int]) -> int:
        """Return the longest chain of tasks, each with a given duration in ps."""
        return max(self.ends(duration), default=0)

    def computed_ps(self, task: int) -> int:
        """Return what a task takes where communication is free."""
        return self.tasks[task].compute_ps

    def least(self, engine: Engine) -> Callable[[int], int]:
        """Return what says the least that a task takes: alone on an empty fabric."""
        known: dict[tuple[int, ...], int] = {}

        def least(task: int) -> int:
            works = self.tasks[task].works
            key = tuple(map(id, works))
            if key not in known:
                known[key] = bound_ps(engine, works)
            return known[key]

        return least

    def run(self, env: FabricEnvironment, engine: Engine, *, prefix: str = "") -> simpy.Event:
        """Do all tasks, each as soon as it may begin; the event fires at the end of the last."""
        left = [len(before) for before in self.after]
        behind = self._successors()
        done, open_tasks = env.event(), len(self.tasks)
        if not open_tasks:
            return done.succeed()

        def process(task: int) -> Generator[simpy.Event, Any, None]:
            nonlocal open_tasks
            self.begin_ps[task] = int(env.now)
            one = self.tasks[task]
            yield from perform(env, engine, one.works, tag=prefix + one.name)
            self.end_ps[task] = int(env.now)
            open_tasks -= 1
            for after in behind[task]:
                left[after] -= 1
                if not left[after]:
                    env.process(process(after))
            if not open_tasks:
                done.succeed()

        for task, count in enumerate(left):
            if not count:
                env.process(process(task))
        # A task that fails ends the run: the engine's error passes through its process.
        return done

    def waiting(self) -> Iterator[str]:
        """Say, a line each, which tasks have not ended and why."""
        for number, task in enumerate(self.tasks):
            if self.end_ps[number] < 0:
                before = [self.tasks[i].name for i in self.after[number] if self.end_ps[i] < 0]
                why = f"waits for {', '.join(before[:3])}" if before else "does not end"
                yield f"{task.name} {why}"
