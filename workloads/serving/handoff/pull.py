# SPDX-License-Identifier: Apache-2.0
"""The decode side reads the whole cache when the prefill is over, as vLLM's NIXL connector does.

All pairs of ranks begin together (RDMA READ), after a delay for the answer of the prefill side, the
scheduling of the decode side and the read request (``read_delay``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.handoff import Handoff, handoff

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

__all__ = ["Pull"]


@handoff("pull")
class Pull(Handoff):
    """See the module."""

    reads = True

    def finish(self) -> Generator[simpy.Event, Any, None]:
        """Move the cache."""
        if self.keys.read_delay:
            yield self.env.timeout(self.keys.read_delay)
        self._send(self.tokens)
        yield self.arrival()
