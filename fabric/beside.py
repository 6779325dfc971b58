# SPDX-License-Identifier: Apache-2.0
"""Schedules side by side: what several groups of ranks do at the same time, as one schedule."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import RailweaveError
from railweave.fabric.loops import join_loops
from railweave.fabric.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["beside"]

_REMEMBERED: Final = 256
_NUMBERS: Final = count()
_KNOWN: Final[OrderedDict[Hashable, Schedule]] = OrderedDict()


def beside(
    parts: Sequence[tuple[Schedule, tuple[int, ...]]], *, n_ranks: int, op: str | None = None
) -> Schedule:
    """Return the schedule in which each part runs on its own ranks, all beginning together.

    Parts that have keys are put together once: the same parts give the same schedule.

    Parameters
    ----------
    parts
        Each schedule, and the rank of the whole that each of its ranks is.
    n_ranks
        Ranks of the whole.
    op
        Name of the whole; None: that of the first part.

    Raises
    ------
    RailweaveError
        There is no part, or one is given another number of ranks than it has.

    Examples
    --------
    >>> from railweave.fabric.chain import parallel
    >>> one = parallel(2, ((0, 1),), (10,))
    >>> both = beside([(one, (0, 2)), (one, (1, 3))], n_ranks=4)
    >>> both.src.tolist(), both.dst.tolist()
    ([0, 1], [2, 3])
    """
    if not parts or any(len(ranks) != part.n_ranks for part, ranks in parts):
        raise RailweaveError("parts side by side need a rank of the whole for each of their own")
    keys = tuple((part.key, ranks) for part, ranks in parts)
    key = None if any(part.key is None for part, _ in parts) else ("beside", n_ranks, keys)
    if key is not None and key in _KNOWN:
        _KNOWN.move_to_end(key)
        return _KNOWN[key]
    made = _joined(parts, n_ranks, op)
    if key is None:
        return made
    # A short key of its own: the long one is compared here and nowhere else.
    made = _KNOWN[key] = replace(made, key=("beside", next(_NUMBERS)))
    if len(_KNOWN) > _REMEMBERED:
        _KNOWN.popitem(last=False)
    return made


def _joined(
    parts: Sequence[tuple[Schedule, tuple[int, ...]]], n_ranks: int, op: str | None
) -> Schedule:
    first = parts[0][0]
    schedules = [part for part, _ in parts]
    starts = np.cumsum([0, *(len(part) for part in schedules)])
    edges = np.cumsum([0, *(len(part.succ) for part in schedules)])

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in schedules])

    def optional(name: str, otherwise: int) -> Any:
        if all(getattr(part, name) is None for part in schedules):
            return None
        return np.concatenate(
            [
                np.full(len(part), otherwise, np.int32)
                if getattr(part, name) is None
                else getattr(part, name)
                for part in schedules
            ]
        )

    def places(name: str) -> Any:
        return np.concatenate(
            [np.array(ranks, np.int32)[getattr(part, name)] for part, ranks in parts]
        )

    again = np.concatenate(
        [
            np.zeros(len(part.succ), np.bool_) if part.loops is None else part.loops.again
            for part in schedules
        ]
    )
    loops = join_loops([(part, 0) for part in schedules], again)
    return Schedule(
        n_ranks=n_ranks,
        kind=column("kind"),
        src=places("src"),
        dst=places("dst"),
        size_bytes=column("size_bytes"),
        delay_ps=column("delay_ps"),
        n_deps=column("n_deps"),
        succ_ptr=np.concatenate(
            [np.zeros(1, np.int32)]
            + [part.succ_ptr[1:] + np.int32(at) for part, at in zip(schedules, edges, strict=False)]
        ).astype(np.int32),
        succ=np.concatenate(
            [part.succ + np.int32(at) for part, at in zip(schedules, starts, strict=False)]
        ).astype(np.int32),
        chunk=None if loops is None else optional("chunk", -1),
        channel=optional("channel", 0),
        loops=loops,
        op=first.op if op is None else op,
        algorithm=first.algorithm,
    )
