# SPDX-License-Identifier: Apache-2.0
"""Counts and lists in words, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["listed", "plural", "shown_size"]


def plural(count: int, noun: str) -> str:
    """Return ``1 host`` or ``32 hosts``; ``switch`` takes ``es``, ``leaf`` becomes ``leaves``.

    Examples
    --------
    >>> plural(1, "leaf"), plural(1024, "leaf"), plural(2, "leaf switch")
    ('1 leaf', '1,024 leaves', '2 leaf switches')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("leaf"):
        return f"{count:,} {noun[:-1]}ves"
    return f"{count:,} {noun}{'es' if noun.endswith('h') else 's'}"


def listed(names: Sequence[str], *, between: str = ", ", most: int = 8) -> str:
    """Return names beside each other; of many, the first and how many more there are.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], between=" -> ", most=2)
    ('a, b, c', 'a -> b -> 1 more')
    """
    if len(names) <= most:
        return between.join(names)
    return between.join([*names[:most], f"{len(names) - most:,} more"])


def shown_size(size_bytes: int) -> str:
    """Write a size for reading: four digits, in binary units.

    Examples
    --------
    >>> shown_size(9_524_544), shown_size(40_000), shown_size(700)
    ('9.083 MiB', '39.06 KiB', '700 B')
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"
