# SPDX-License-Identifier: Apache-2.0
"""At the times that a trace or a list of requests says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.workloads.serving.arrivals import Arrivals, arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.traces import TraceRequest

__all__ = ["Listed"]


@arrivals("trace")
class Listed(Arrivals):
    """The times of the requests themselves."""

    def requests(self, listed: Sequence[TraceRequest] | None) -> list[TraceRequest]:
        """Return the requests as they are."""
        return list(listed or ())

    def times(self, count: int) -> list[int]:
        """Return nothing: each request has its own time."""
        return [0] * count
