# SPDX-License-Identifier: Apache-2.0
"""Turn a kernel into machine code with numba; nothing else imports numba."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba.core import types
from numba.np import arrayobj, numpy_support

from railweave.fabric._machine_code import Code
from railweave.fabric.errors import RailweaveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.fabric.jit import Kernel

__all__ = ["compile_kernel"]

_RETURNS: Final = {
    types.int64: "int64", types.uint64: "uint64", types.float64: "float64", types.none: "none",
}  # fmt: skip
_FROM_LIBRARIES: Final = frozenset({"memcpy", "memmove", "memset"})
"""Functions that machine code may call: those of C's library, which every process has."""


def _type_of(argument: Any) -> Any:
    typeof: Any = numba.typeof
    if isinstance(argument, np.ndarray):
        return types.Array(numpy_support.from_dtype(argument.dtype), argument.ndim, "C")
    if isinstance(argument, np.void | np.uint64):
        return typeof(argument)
    return types.float64 if isinstance(argument, float | np.floating) else types.int64


def _index(context: Any, builder: Any, index_type: Any, index: Any, _: Any) -> Any:
    """Return an index as a machine word; stands in for numba's `fix_integer_index`."""
    return context.cast(builder, index, index_type, types.intp)


@contextmanager
def _lean() -> Iterator[None]:
    """Compile less: collect no garbage, make no vector loops, do not look for negative indices.

    Kernels need neither. What a negative index does in Python (it counts from the end) costs a
    comparison at each access to an array: a fifth of the packet engine's time.
    """
    config: Any = numba.config
    indexing: Any = arrayobj
    collecting, vectors = gc.isenabled(), config.LOOP_VECTORIZE
    wrap = getattr(indexing, "fix_integer_index", None)  # None: another version of numba
    gc.disable()  # compiling makes millions of objects, few of which are garbage
    config.LOOP_VECTORIZE = 0
    if wrap is not None:
        indexing.fix_integer_index = _index
    try:
        yield
    finally:
        if wrap is not None:
            indexing.fix_integer_index = wrap
        config.LOOP_VECTORIZE = vectors
        if collecting:
            gc.enable()


def compile_kernel(kernel: Kernel, arguments: Sequence[Any]) -> Code:
    """Return the machine code of a kernel for the types of some arguments.

    Raises
    ------
    RailweaveError
        The kernel makes arrays or needs something else of numba's run time, or it returns neither
        a number nor None.
    """
    dispatcher = kernel.dispatcher
    signature = tuple(_type_of(argument) for argument in arguments)
    with _lean():
        dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    returns = _RETURNS.get(result.signature.return_type)
    if returns is None:
        raise RailweaveError(
            f"kernel '{kernel.function.__qualname__}' returns {result.signature.return_type}"
        )
    _, _, (code, _) = result.library.serialize_using_object_code()
    for function in result.library._final_module.functions:
        name = function.name
        if function.is_declaration and not (name.startswith("llvm.") or name in _FROM_LIBRARIES):
            raise RailweaveError(
                f"kernel '{kernel.function.__qualname__}' calls '{name}', which only numba has"
            )
    return Code(symbol=result.fndesc.llvm_func_name, returns=returns, machine_code=bytes(code))
