# SPDX-License-Identifier: Apache-2.0
"""Many names of devices in few words: ``h[0-63]/gpu[1-7]``."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["name_ranges"]


def name_ranges(names: Iterable[str]) -> str:
    """Write names as ranges of their numbers, as Slurm writes lists of hosts.

    Parameters
    ----------
    names
        Any names; those that differ only in their numbers are taken together.

    Returns
    -------
    str
        Ranges that stand for exactly these names, in the order of the first of each kind.

    Examples
    --------
    >>> name_ranges(f"h{h}/gpu{g}" for h in range(4) for g in (1, 2, 5))
    'h[0-3]/gpu[1-2,5]'
    >>> name_ranges(["leaf0", "a", "leaf2"])
    'leaf[0,2] a'
    """
    kinds: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for name in names:
        parts = re.split(r"(0|[1-9][0-9]*)", name)  # 'h', '0', '/gpu', '3', ''
        kinds.setdefault(tuple(parts[::2]), {})[tuple(parts[1::2])] = None
    return " ".join(
        "".join(text + number for text, number in zip(words, (*numbers, ""), strict=True))
        for words, rows in kinds.items()
        for numbers in _boxes(list(rows))
    )


def _boxes(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return ranges per place whose products are the rows, each once."""
    if not rows[0]:
        return [()]
    firsts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for first, *rest in rows:
        firsts[tuple(rest)].append(first)
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for others, numbers in firsts.items():
        alike[tuple(sorted(numbers, key=int))].append(others)
    return [
        (_range([int(n) for n in numbers]), *box)
        for numbers, several in alike.items()
        for box in _boxes(several)
    ]


def _range(numbers: list[int]) -> str:
    """Write ascending numbers: one as it is, several in brackets."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return text if len(numbers) == 1 else f"[{text}]"
