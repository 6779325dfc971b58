# SPDX-License-Identifier: Apache-2.0
"""Ranks that post the messages of their KV transfers one after another.

A rank posts the messages of a flow while its bytes are already under way, so that a flow takes as
long as its bytes or its messages, whichever is longer; the next flow of that rank begins when the
messages of this one are posted. Without a cost of messages every flow begins at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import simpy

from railweave.fabric.errors import InputError, RailweaveError

if TYPE_CHECKING:
    from collections.abc import Generator

    from railweave.fabric.engine import Engine
    from railweave.fabric.flow import Flow

__all__ = ["Posting", "Posts"]


class Posting:
    """A flow that is under way, or waits until its rank has posted others.

    Parameters
    ----------
    flow
        What is sent.
    engine
        What carries it.

    Attributes
    ----------
    event
        Fires when all of it has come; fails if it is stopped.
    """

    def __init__(self, flow: Flow, engine: Engine) -> None:
        self.flow = flow
        self.event = engine.env.event()
        self._engine = engine
        self._started = False
        self._stopped = engine.env.event()

    def begin(self) -> None:
        """Let its bytes leave."""
        self._started = True
        sent = self._engine.send(self.flow)
        assert sent.callbacks is not None
        sent.callbacks.append(self._ended)

    def _ended(self, sent: simpy.Event) -> None:
        sent.defused = True
        if not self.event.triggered:
            self.event.trigger(sent)

    def stop(self) -> None:
        """Send no more of it."""
        if self.event.triggered:
            return
        self.event.defused = True
        self._stopped.succeed()
        if self._started:
            with suppress(InputError):  # it ends at this very instant
                self._engine.cancel(self.flow)
        else:
            self.event.fail(RailweaveError(f"{self.flow.id} was stopped before it began"))

    def post(self, turns: simpy.Resource, posting_ps: int) -> Generator[simpy.Event, Any, None]:
        """Begin when it is its turn, and keep the rank for the time of its messages."""
        with turns.request() as turn:
            yield turn | self._stopped
            if self._stopped.triggered:
                return
            self.begin()
            yield self._engine.env.timeout(posting_ps) | self._stopped


class Posts:
    """The ranks that post, by device."""

    def __init__(self) -> None:
        self._turns: dict[int, simpy.Resource] = {}

    def post(self, flow: Flow, device: int, posting_ps: int, engine: Engine) -> Posting:
        """Send a flow whose messages take so long to post, when its rank is free to.

        Parameters
        ----------
        device
            The rank that posts.
        """
        one = Posting(flow, engine)
        if not posting_ps:
            one.begin()
            return one
        if device not in self._turns:
            self._turns[device] = simpy.Resource(engine.env)
        engine.env.process(one.post(self._turns[device], posting_ps))
        return one
