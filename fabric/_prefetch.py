# SPDX-License-Identifier: Apache-2.0
"""Kernels ask for array rows that they will need soon, so that memory answers meanwhile."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

__all__ = ["prefetch"]


class _Prefetch:
    """``prefetch(array, row, line)``: LLVM's ``prefetch`` of a line of 64 bytes, a hint only.

    The row may be any number: what is not there is not fetched and is no error. It changes no
    result, so where kernels run as Python functions it does nothing.
    """

    def __call__(self, array: Any, row: Any, line: Any) -> None:
        """Do nothing: Python functions do not hide the latency of memory."""

    @cached_property
    def _numba_type_(self) -> Any:
        """What numba sees where a kernel names this."""
        from llvmlite import ir
        from numba.core import cgutils as untyped
        from numba.core import types
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        cgutils: Any = untyped
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))

        def fetch(_: Any, array: Any, row: Any, line: Any) -> Any:
            def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                items = context.make_array(signature.args[0])(context, builder, arguments[0])
                number = context.cast(builder, arguments[1], signature.args[1], types.intp)
                item = cgutils.get_item_pointer(
                    context, builder, signature.args[0], items, [number], wraparound=False
                )
                ahead = context.cast(builder, arguments[2], signature.args[2], types.intp)
                ahead = builder.shl(ahead, ir.Constant(ahead.type, 6))
                place = builder.gep(builder.bitcast(item, cgutils.voidptr_t), [ahead])
                number_t = ir.IntType(32)
                kind = ir.FunctionType(
                    ir.VoidType(), [cgutils.voidptr_t, number_t, number_t, number_t]
                )
                function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
                builder.call(function, [place, read, keep, data])
                return context.get_dummy_value()

            return types.none(array, row, line), lower

        context: Any = cpu_target.typing_context
        made: Any = intrinsic(fetch)
        context.refresh()  # it knows the new function
        return context.resolve_value_type(made)


prefetch: Final = _Prefetch()
