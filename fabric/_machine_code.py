# SPDX-License-Identifier: Apache-2.0
"""Machine code of kernels: linked into the process and called with arrays and numbers.

numba's calling convention (`numba.core.callconv.CPUCallConv`): a function takes a pointer to where
its result goes, one to where an error would, then its arguments: a number as it is, a record as a
pointer, an array as (owner, parent, items, bytes per item, data, shape..., strides...). It returns
a status, 0 or negative unless it failed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import RailweaveError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Code", "NativeFunction"]

_RESULTS: Final[dict[str, Any]] = {
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
    "none": ctypes.c_void_p,
}


@dataclass(frozen=True, kw_only=True)
class Code:
    """An object file with the name of a function in it and the type of what that returns."""

    symbol: str
    returns: str
    machine_code: bytes


@cache
def _linker() -> tuple[Any, Any]:
    """Return llvmlite's binding and a target machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm, llvm.Target.from_default_triple().create_target_machine


def _flat(argument: Any) -> list[Any]:
    """Return an argument as the machine code takes it."""
    if isinstance(argument, np.ndarray):
        words = (0, 0, argument.size, argument.itemsize, argument.ctypes.data)
        return [ctypes.c_int64(w) for w in (*words, *argument.shape, *argument.strides)]
    if isinstance(argument, np.void):
        return [ctypes.c_int64(argument.__array_interface__["data"][0])]
    if isinstance(argument, float | np.floating):
        return [ctypes.c_double(float(argument))]
    if isinstance(argument, np.uint64):
        return [ctypes.c_uint64(int(argument))]
    return [ctypes.c_int64(int(argument))]


def _kind(argument: Any) -> object:
    """Return what must stay the same of an argument from call to call."""
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise RailweaveError("a kernel takes contiguous arrays only")
        return argument.dtype, argument.ndim
    if isinstance(argument, np.void):
        return argument.dtype
    if isinstance(argument, np.uint64):
        return np.uint64
    return float if isinstance(argument, float | np.floating) else int


class NativeFunction:
    """A kernel's machine code in this process, for one set of argument types."""

    def __init__(self, code: Code, arguments: Sequence[Any]) -> None:
        llvm, machine = _linker()
        # The engine owns the code: it must live as long as the function.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
        self._engine.finalize_object()
        address = self._engine.get_function_address(code.symbol)
        self._function = ctypes.PYFUNCTYPE(ctypes.c_int32)(address)
        self._result = _RESULTS[code.returns]()
        self._ends = (ctypes.byref(self._result), ctypes.byref(ctypes.c_void_p()))
        self._symbol = code.symbol
        self._kinds = [_kind(argument) for argument in arguments]
        self._last: list[Any] = [None] * len(arguments)
        self._words: list[list[Any]] = [[] for _ in arguments]

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Call it; arrays that it was given last time too cost next to nothing."""
        last, words = self._last, self._words
        if len(arguments) != len(last):
            raise TypeError(f"{len(last)} arguments expected, {len(arguments)} given")
        for i, argument in enumerate(arguments):
            if argument is not last[i]:
                if _kind(argument) != self._kinds[i]:
                    raise TypeError(
                        f"argument {i} is {_kind(argument)}, compiled for {self._kinds[i]}"
                    )
                words[i] = _flat(argument)
                last[i] = argument
        flat = [word for group in words for word in group]
        if self._function(*self._ends, *flat) > 0:
            raise RailweaveError(f"{self._symbol} failed")
        return self._result.value
