# SPDX-License-Identifier: Apache-2.0
"""One thread that waits for descriptors, timers and ends of processes."""

from __future__ import annotations

import heapq
import os
import selectors
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Loop"]

_COARSE_NS: Final = 1_200_000  # epoll counts milliseconds: what is nearer is awaited spinning


class Loop:
    """Runs callbacks until it is stopped."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._running = True

    def watch(self, descriptor: int, events: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` whenever the descriptor is ready for ``events``; 0 only keeps it known."""
        known = descriptor in self._selector.get_map()
        if known and events:
            self._selector.modify(descriptor, events, ready)
        elif known:
            self._selector.unregister(descriptor)
        elif events:
            self._selector.register(descriptor, events, ready)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more."""
        self.watch(descriptor, 0, lambda: None)

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        """Call at a time of the monotonic clock, in ns; timers of one time in order."""
        self._count += 1
        heapq.heappush(self._timers, (when_ns, self._count, call))

    def on_exit(self, process: int, call: Callable[[], None]) -> None:
        """Call when a child process has ended."""
        descriptor = os.pidfd_open(process)

        def ended() -> None:
            self.forget(descriptor)
            os.close(descriptor)
            call()

        self.watch(descriptor, selectors.EVENT_READ, ended)

    def stop(self) -> None:
        """Return from `run` after this round."""
        self._running = False

    def run(self) -> None:
        """Wait and call until stopped."""
        while self._running:
            for key, _ in self._selector.select(self._patience_s()):
                key.data()
            now = time.monotonic_ns()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()

    def _patience_s(self) -> float | None:
        if not self._timers:
            return None
        left_ns = self._timers[0][0] - time.monotonic_ns()
        return 0.0 if left_ns < _COARSE_NS else (left_ns - _COARSE_NS) / 1e9
