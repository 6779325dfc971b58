# SPDX-License-Identifier: Apache-2.0
"""Compile kernels with numba, and keep their machine code on disk.

numba is slow to import, and its own cache needs it. So the machine code of a kernel that Python
calls is kept here, and later processes load it through LLVM's linker alone (llvmlite): a warm run
never imports numba. The code is found by its content (the kernel, all that it calls, the argument
types, the processor, numba's version), so no change to a source can leave a stale one in use.
"""

from __future__ import annotations

import os
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.fabric._machine_code import NativeFunction

__all__ = ["Kernel", "as_python", "call_for_work", "jit"]

_FEW: Final = 200_000  # steps, some tenths of a second in Python
Function = TypeVar("Function", bound="Callable[..., Any]")


class Kernel:
    """A compiled function of arrays and numbers.

    Its first call from Python fixes the types of its arguments; other types are an error later. It
    makes no arrays and returns a number or None. An index is never negative: machine code does not
    count from an array's end. Kernels call each other freely.
    """

    def __init__(self, function: Callable[..., Any], *, inline: bool = False) -> None:
        update_wrapper(self, function)
        self.function = function
        self.inline = inline
        self._native: NativeFunction | None = None
        self._interpreted: int | None = None  # steps done as a Python function; None: not asked

    interpreting: ClassVar[int] = 0  # how many kernels run as Python functions now

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code, which is loaded or compiled first where that is needed."""
        if Kernel.interpreting:
            return self.function(*arguments)
        native = self._native
        if native is None:
            from railweave.fabric._code_cache import native_function

            native = self._native = native_function(self, arguments)
        return native(arguments)

    def call_for_work(self, work: int, *arguments: Any) -> Any:
        """Run about ``work`` steps, as a Python function where compiling does not pay."""
        if self._native is None and not Kernel.interpreting:
            if self._interpreted is None:
                from railweave.fabric._code_cache import kept_function

                self._native = kept_function(self, arguments)
                self._interpreted = 0
            self._interpreted += work
            if self._native is None and self._interpreted <= _FEW:
                return as_python(self, *arguments)
        return self(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba's dispatcher."""
        from railweave.fabric._compile import dispatcher

        return dispatcher(self.function, inline=self.inline)

    @property
    def _numba_type_(self) -> Any:
        """What numba sees where another kernel names this one."""
        import numba

        typeof: Any = numba.typeof
        return typeof(self.dispatcher)


def call_for_work(work: int, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel that has ``work`` elementary steps to do, about.

    Compiling takes as long as a few hundred thousand steps in Python. Until a process has asked
    for that many, a kernel whose machine code is not kept runs as the Python function that it is,
    with the same results.
    """
    if isinstance(kernel, Kernel):
        return kernel.call_for_work(work, *arguments)
    return as_python(kernel, *arguments)


def as_python(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Run a kernel as the Python function that it is: for what is rare, compiling does not pay."""
    Kernel.interpreting += 1
    try:
        with np.errstate(over="ignore"):  # hashes wrap, as in machine code
            return getattr(kernel, "function", kernel)(*arguments)
    finally:
        Kernel.interpreting -= 1


@overload
def jit(function: Function) -> Function: ...
@overload
def jit(*, inline: bool) -> Callable[[Function], Function]: ...
def jit(function: Any = None, *, inline: bool = False) -> Any:
    """Compile a function in numba's nopython mode at its first call from Python.

    ``NUMBA_DISABLE_JIT=1`` leaves it a Python function. Where no cache folder can be written, it is
    compiled anew in every process. With ``inline`` it is copied into every kernel that calls it
    (in a call, each array costs seven words).

    Examples
    --------
    >>> @jit
    ... def double(value):
    ...     return 2 * value
    >>> int(double(21))
    42
    """
    if function is None:
        return lambda wrapped: Kernel(wrapped, inline=inline) if _compiling() else wrapped
    return Kernel(function, inline=inline) if _compiling() else function


def _compiling() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
