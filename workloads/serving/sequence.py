# SPDX-License-Identifier: Apache-2.0
"""A request as one replica sees it: what is computed, what is generated, what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy

    from railweave.workloads.serving.request import Request

__all__ = ["Sequence"]


@dataclass(eq=False, kw_only=True)
class Sequence:
    """A sequence on one replica.

    Parameters
    ----------
    request
        Whose it is.
    prompt
        Tokens to be computed before it generates here: those of the prompt, and what was generated
        before it came.
    target
        Tokens to be generated here; 0: only the prompt is computed.
    done
        Fires when it has nothing more to do here.
    granted
        Fires when its blocks are set aside, where its cache comes from elsewhere.
    first_token
        Called when the first token that it generates here comes out.
    began_step, ended_step
        Called when a step that computes tokens of its prompt begins, with the time that the step
        takes undisturbed in ps, and when it ends. The first returns what it adds to that time.
    computed, scheduled
        Tokens whose cache is there, and those besides that steps under way compute.
    made
        Tokens generated here.
    in_flight
        Steps under way that it takes part in.
    blocks
        KV blocks of its own.
    nodes
        Ids of the blocks of the prefix cache that it holds.
    found
        Prompt tokens found in the prefix cache when it was admitted, the last time.
    last_ps
        When its last token came out; -1 before.
    preempted
        How often it lost its blocks.
    noted
        Ids of its prompt that the prefix cache has looked at.
    left
        Whether nobody needs it here any more.
    """

    request: Request
    prompt: int
    target: int
    done: simpy.Event
    granted: simpy.Event | None = None
    first_token: Callable[[], None] | None = None
    began_step: Callable[[Sequence, int], int] | None = None
    ended_step: Callable[[Sequence], None] | None = None
    computed: int = 0
    scheduled: int = 0
    made: int = 0
    in_flight: int = 0
    blocks: int = 0
    nodes: list[int] = field(default_factory=list)
    found: int = 0
    last_ps: int = -1
    preempted: int = 0
    noted: int = 0
    left: bool = False

    @property
    def length(self) -> int:
        """Tokens known so far: those of the prompt and those generated."""
        return self.prompt + self.made

    @property
    def need(self) -> int:
        """Tokens that steps have yet to compute before the next comes out."""
        return self.prompt + self.made - self.scheduled

    @property
    def decoding(self) -> bool:
        """Whether the next step computes the one token that gives the next."""
        return self.need == 1 and self.target > 0 and self.scheduled >= self.prompt - 1

    @property
    def most(self) -> int:
        """Tokens whose cache it holds in the end: the last one generated needs none."""
        return self.prompt + max(self.target - 1, 0)

    @property
    def name(self) -> str:
        """``r17``."""
        return self.request.name
