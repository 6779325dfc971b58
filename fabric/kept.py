# SPDX-License-Identifier: Apache-2.0
"""Results kept for reuse, within a budget of memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Kept"]

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """What was worked out before, the least recently used of it forgotten first.

    Parameters
    ----------
    most
        Sum of sizes above which things are forgotten.

    Examples
    --------
    >>> kept = Kept[str](most=10)
    >>> for name, size in (("a", 4), ("b", 4), ("c", 4)):
    ...     kept.put(name, name.upper(), size=size)
    >>> kept.get("a"), kept.get("c")
    (None, 'C')
    """

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return what is kept under a key, or None."""
        known = self._values.get(key)
        if known is None:
            return None
        self._values.move_to_end(key)
        return known[0]

    def put(self, key: Hashable, value: Value, *, size: int) -> None:
        """Keep a value; one that is larger than all that may be kept is not."""
        if size > self.most:
            return
        old = self._values.pop(key, None)
        self._size += size - (0 if old is None else old[1])
        self._values[key] = value, size
        while self._size > self.most:
            _, (_, least) = self._values.popitem(last=False)
            self._size -= least

    def change(self, how: Callable[[Value], Value]) -> None:
        """Replace each value by what a function makes of it, of the same size."""
        for key, (value, size) in self._values.items():
            self._values[key] = how(value), size

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._size = 0
