# SPDX-License-Identifier: Apache-2.0
"""Ways round what numba does again and again while it compiles a kernel.

Each replaces a private function of numba for as long as something is compiled, by one with the same
results. Where a version of numba lacks the function, it is left alone.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack, contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numba
from numba.core import ir, types
from numba.core.base import BaseContext
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction
from numba.np import arrayobj

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["in_one_piece", "shortcuts"]

_ROOM: Final = 80_000  # words, of the 2^17 that it takes to hold them
_WITHOUT_VARIABLES: Final = frozenset({str, int, bool, NoneType, ir.Loc})


@contextmanager
def shortcuts() -> Iterator[None]:
    """Compile less, and less often.

    No garbage is collected (compiling makes millions of objects, few of which are garbage), no
    vector loops are made, and no negative indices are looked for: what one does in
    Python (it counts from the end) costs a comparison at each access to an array, a fifth of the
    packet engine's time.
    """
    config: Any = numba.config
    collecting, vectors = gc.isenabled(), config.LOOP_VECTORIZE
    with ExitStack() as changes:
        for owner, name, change in (
            (arrayobj, "fix_integer_index", lambda _: _index),
            (TargetConfig, "__eq__", _equal),
            (BaseFunction, "get_call_type", _remembered),
            (types.Record, "__repr__", _said_once),
            (types.Dispatcher, "get_call_type", _without_literals),
            (ir.Inst, "_rec_list_vars", _listed),
            (BaseContext, "get_abi_sizeof", _sized_once),
        ):
            changes.enter_context(_changed(owner, name, change))
        gc.disable()
        config.LOOP_VECTORIZE = 0
        try:
            yield
        finally:
            config.LOOP_VECTORIZE = vectors
            if collecting:
                gc.enable()


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


_called.__code__ = _called.__code__.replace(co_stacksize=_ROOM)


def in_one_piece(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that calls deeply, with one piece of memory for the frames of all calls.

    CPython has frames in pieces of 16 KiB. A loop that calls across the end of one asks the system
    for the next piece and gives it back each time, 300,000 times while a kernel is compiled. A
    frame that is larger than a piece gets one of twice its size or less, and the calls from it what
    is left of that.
    """
    return _called(function, *arguments)


@contextmanager
def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Give a module or class another function of a name, if it has one."""
    before = vars(owner).get(name)
    if before is None:
        yield
        return
    setattr(owner, name, change(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def _index(context: Any, builder: Any, index_type: Any, index: Any, _: Any) -> Any:
    """Return an index as a machine word."""
    return context.cast(builder, index, index_type, types.intp)


def _equal(before: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Compare flags by what was set of them first: numba asks tens of thousands of times."""

    def equal(one: Any, other: Any) -> Any:
        if type(one) is type(other) and one._values == other._values:
            return True
        return before(one, other)

    return equal


def _remembered(before: Callable[..., Any]) -> Callable[..., Any]:
    """Find the type of an operator's result once for the same types of arguments."""
    found: dict[tuple[Any, ...], Any] = {}

    def get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return before(function, context, args, kws)
        key = (function, *args)
        if key not in found:
            found[key] = before(function, context, args, kws)
        return found[key]

    return get_call_type


def _said_once(before: Callable[[Any], str]) -> Callable[[Any], str]:
    """Write out a record's fields once."""
    said: dict[int, tuple[Any, str]] = {}

    def text(record: Any) -> str:
        if id(record) not in said:
            said[id(record)] = record, before(record)
        return said[id(record)][1]

    return text


def _without_literals(before: Callable[..., Any]) -> Callable[..., Any]:
    """Call a kernel with an integer, whatever its value: not one more copy for each constant."""
    unliteral: Any = types.unliteral

    def get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        plain = tuple(unliteral(argument) for argument in args)
        return before(function, context, plain, kws)

    return get_call_type


def _listed(before: Callable[..., Any]) -> Callable[..., Any]:
    """List the variables of an instruction without a look into its names, numbers and places."""

    def list_variables(instruction: Any, value: Any) -> Any:
        if type(value) in _WITHOUT_VARIABLES:
            return []
        return before(instruction, value)

    return list_variables


def _sized_once(before: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
    """Ask LLVM once how large a type is: numba has it parse a module to answer."""
    found: dict[Any, int] = {}

    def size(context: Any, kind: Any) -> int:
        if kind not in found:
            found[kind] = before(context, kind)
        return found[kind]

    return size
