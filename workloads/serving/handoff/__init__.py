# SPDX-License-Identifier: Apache-2.0
"""How a KV cache gets from the replica that prefilled it to the one that decodes.

A new way is one module of this package. Whether the decode replica is chosen before the prefill
or after it is the way's own: who sends while computing must know where to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.workloads.serving.handoff.mover import KvMover, Piece
    from railweave.workloads.serving.handoff.posting import Posting
    from railweave.workloads.serving.keys import TransferModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["HANDOFFS", "Handoff", "handoff"]


class Handoff(ABC):
    """One cache on its way.

    Parameters
    ----------
    mover
        Makes its flows.
    sequence
        As the prefill replica has it.
    source, target
        The two replicas.
    keys
        What was asked for.
    skip
        Tokens that the target has cached already: they do not move.
    """

    early: ClassVar[bool] = False
    """Whether the decode replica sets its blocks aside before the prefill begins."""
    reads: ClassVar[bool] = False
    """Whether the decode side posts the messages (RDMA READ), or the prefill side (WRITE)."""

    def __init__(
        self,
        mover: KvMover,
        sequence: Sequence,
        source: Replica,
        target: Replica,
        keys: TransferModel,
        *,
        skip: int = 0,
    ) -> None:
        self.mover, self.sequence, self.source, self.target = mover, sequence, source, target
        self.keys = keys
        self.tokens = sequence.prompt - skip
        self.skip = skip
        self.sent = 0  # tokens of those that move
        self.size_bytes = 0
        self._pieces = 0
        self._posted: list[Posting] = []
        self.aborted = False
        self._watch()

    @property
    def env(self) -> FabricEnvironment:
        """The clock."""
        return self.source.env

    @property
    def engine(self) -> Engine:
        """What carries the flows."""
        return self.source.engine

    def _watch(self) -> None:  # noqa: B027 - most ways need not be told
        """Ask to be told of the steps of the prefill."""

    @abstractmethod
    def finish(self) -> Generator[simpy.Event, Any, None]:
        """Send what has not been sent, the prefill being over, and wait for all of it."""

    def abort(self) -> None:
        """Send nothing more, and stop what is under way."""
        self.aborted = True
        for one in self._posted:
            one.stop()

    def _send(self, end: int) -> None:
        """Send the tokens up to ``end`` of those that move."""
        if end > self.sent and not self.aborted:
            self._start(self.mover.between(self.sent, end))
            self.sent = end

    def _start(self, pieces: list[Piece]) -> None:
        request = self.sequence.request
        if request.kv_start_ps < 0:
            request.kv_start_ps = int(self.env.now)
        piece = f".{self._pieces}" if self._pieces else ""
        again = f".a{request.attempts}" if request.attempts > 1 else ""
        self._pieces += 1
        size = sum(one.size_bytes for one in pieces)
        self.size_bytes += size
        self.target.inbound_bytes += size
        posted = self.mover.send(
            f"{request.name}{again}{piece}", pieces, self.source.plan, self.target.plan,
            self.engine, read=self.reads,
        )  # fmt: skip
        self._posted += posted

        def arrived(event: simpy.Event) -> None:
            event.defused = True  # one that was stopped
            self.target.inbound_bytes -= size

        everything = self.env.all_of([one.event for one in posted])
        assert everything.callbacks is not None
        everything.callbacks.append(arrived)

    def arrival(self) -> simpy.Event:
        """Return the event that fires when all that was sent has come."""
        event = self.env.all_of([one.event for one in self._posted])
        event.defused = True  # it may be stopped when nobody waits any more
        return event

    def bound_ps(self) -> int:
        """Return the least that all of it takes on an empty fabric, in ps."""
        pieces = self.mover.between(0, self.tokens)
        return self.mover.together_ps(pieces, self.source.plan, self.target.plan, self.engine)


HANDOFFS: Final[Registry[type[Handoff]]] = Registry(
    "kv_transfer", package="railweave.workloads.serving.handoff"
)
handoff = HANDOFFS
"""The decorator that registers a way: ``@handoff("name")``."""
