# SPDX-License-Identifier: Apache-2.0
"""Turn a kernel into machine code with numba; nothing else imports numba."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba.core import types
from numba.np import numpy_support

from railweave.fabric._compiler_shortcuts import in_one_piece, shortcuts
from railweave.fabric._machine_code import Code
from railweave.fabric.errors import RailweaveError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from railweave.fabric.jit import Kernel

__all__ = ["compile_kernel", "dispatcher"]

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


def dispatcher(function: Callable[..., Any], *, inline: bool) -> Any:
    """Return a function as numba's dispatcher.

    Results must not depend on the machine, so floating point is never reordered (no fastmath).
    Division by zero follows IEEE 754. Kernels make no arrays, so they need not count references
    (``_nrt``), and nobody enters them through numba's own wrappers.
    """
    return _dispatcher(function, inline=inline, **_pipeline())


def _dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    njit: Any = numba.njit
    inline = options.pop("inline")
    return njit(
        error_model="numpy",
        _nrt=False,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        forceinline=inline,
        **options,
    )(function)


@cache
def _pipeline() -> dict[str, Any]:
    """Return the way kernels are compiled: the short one, or numba's own if that does not work.

    The short one stands on what numba does not promise to keep, so it is tried first.
    """
    try:
        from railweave.fabric._kernel_pipeline import KernelPipeline

        options = {"pipeline_class": KernelPipeline}
        added = _dispatcher(_added, inline=True, **options)

        def twice(value: int) -> int:
            total: int = added(value, value)
            return total

        _machine_code(_dispatcher(twice, inline=False, **options), (types.int64,))
    except Exception:  # whatever another version of numba does
        return {}
    return options


def _added(value: int, other: int) -> int:
    return value + other


def _machine_code(made: Any, signature: tuple[Any, ...]) -> tuple[Any, Any, bytes]:
    """Compile a dispatcher; return numba's result, LLVM's module and the object file."""
    with shortcuts():
        in_one_piece(made.compile, signature)
        result = made.overloads[signature]
        library = result.library
        if not hasattr(library, "linked"):  # the way of numba itself
            _, _, (code, _) = library.serialize_using_object_code()
            return result, library._final_module, bytes(code)
        module = library.linked()
        return result, module, library.emit(module)


def compile_kernel(kernel: Kernel, arguments: Sequence[Any]) -> Code:
    """Return the machine code of a kernel for the types of some arguments.

    Raises
    ------
    RailweaveError
        The kernel makes arrays or needs something else of numba's run time, or it returns neither
        a number nor None.
    """
    signature = tuple(_type_of(argument) for argument in arguments)
    result, module, code = _machine_code(kernel.dispatcher, signature)
    returns = _RETURNS.get(result.signature.return_type)
    if returns is None:
        raise RailweaveError(
            f"kernel '{kernel.function.__qualname__}' returns {result.signature.return_type}"
        )
    for function in module.functions:
        name = function.name
        if function.is_declaration and not (name.startswith("llvm.") or name in _FROM_LIBRARIES):
            raise RailweaveError(
                f"kernel '{kernel.function.__qualname__}' calls '{name}', which only numba has"
            )
    return Code(symbol=result.fndesc.llvm_func_name, returns=returns, machine_code=code)
