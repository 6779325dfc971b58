# SPDX-License-Identifier: Apache-2.0
"""Who measures goes before whatever else the machine does, where that is permitted."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PRIORITY", "before_others"]

PRIORITY: Final = -15
"""Nice value (nice(2)) of the processes that keep time."""


@contextmanager
def before_others() -> Iterator[None]:
    """Run with `PRIORITY` for a while; like any other process where that is not permitted."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
