# SPDX-License-Identifier: Apache-2.0
"""How a process ties its life to its parent's (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, however that happens.

    Parameters
    ----------
    parent
        Process id of the parent that is meant: if that one is gone already, end at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
