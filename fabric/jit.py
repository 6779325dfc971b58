# SPDX-License-Identifier: Apache-2.0
"""Compile a kernel with numba, cached on disk where that is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["jit"]

Kernel = TypeVar("Kernel", bound="Callable[..., Any]")


def jit(
    signature: str | list[str] | None = None,
    *,
    internal: bool = False,
    allocates: bool = True,
) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a function in nopython mode.

    Results must not depend on the machine, so floating point is never reordered (no fastmath).
    Division by zero follows IEEE 754 instead of raising.

    Parameters
    ----------
    signature
        numba's type signature, such as ``"i8(i8[:])"``: compiled (or loaded from the cache) at
        import. None: compiled at the first call.
    internal
        Only other kernels call the function, so it needs no entry from Python (saves compile time).
    allocates
        The function makes arrays. One that does not need not count references to those it is given.

    Notes
    -----
    numba refuses to cache when neither the package's folder nor the user's cache folder can be
    written; the function is then compiled anew in every process. ``NUMBA_DISABLE_JIT=1`` leaves
    it a Python function.

    Examples
    --------
    >>> @jit("i8(i8)")
    ... def double(value):
    ...     return 2 * value
    >>> int(double(21))
    42
    """
    njit: Any = numba.njit
    arguments = () if signature is None else (signature,)
    options: dict[str, Any] = {"error_model": "numpy"}
    if not allocates:
        options["_nrt"] = False
    options["no_cfunc_wrapper"] = True  # nothing calls them through C pointers
    if internal:
        options["no_cpython_wrapper"] = True

    def compile_kernel(function: Kernel) -> Kernel:
        try:
            compiled = njit(*arguments, cache=True, **options)(function)
        except (RuntimeError, OSError):  # no place for a cache, or one that went away
            compiled = njit(*arguments, **options)(function)
        return cast("Kernel", compiled)

    return compile_kernel
