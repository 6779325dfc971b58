# SPDX-License-Identifier: Apache-2.0
"""The part of numba's compiler that kernels need.

numba optimises and emits every function by itself, and again inside each function that calls it,
and runs passes for closures, `with` blocks, array expressions and the like. A kernel is a hundred
small functions without any of these. Here each is only translated; the one that Python calls then
takes them all, and LLVM sees them once.
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding as llvm
import numba
from numba.core import compiler_machinery, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase

__all__ = ["KernelLibrary", "KernelPipeline"]

_machinery: Any = compiler_machinery  # numba has no types
_entries: Any = vars(numba)["_dynfunc"]


class KernelLibrary(JITCodeLibrary):
    """Functions in LLVM's form that know which others they call."""

    def add_linking_library(self, library: Any) -> None:
        """Note a library that this one calls, but do not optimise and emit it by itself."""
        if isinstance(library, KernelLibrary):
            self._linking_libraries.append(library)
        else:  # numba's own
            add: Any = super().add_linking_library
            add(library)

    def linked(self) -> Any:
        """Return one optimised LLVM module with all that the functions call."""
        module = self._final_module
        for library in self._called():
            part = library._final_module
            if not isinstance(library, KernelLibrary):
                part = library._get_module_for_linking()
            part = part.clone()
            for function in part.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = llvm.Linkage.linkonce_odr  # not needed once it is inlined
            module.link_in(part)
        codegen: Any = self._codegen
        passes, builder = codegen._module_pass_manager()
        passes.run(module, builder)
        module.verify()
        return module

    def emit(self, module: Any) -> bytes:
        """Return the object file of an LLVM module."""
        return bytes(self._codegen._tm.emit_object(module))

    def _called(self) -> list[Any]:
        """Return the libraries that this one calls, and those that these call."""
        found: dict[int, Any] = {id(self): self}
        waiting = [self]
        while waiting:
            for library in waiting.pop()._linking_libraries:
                if id(library) not in found:
                    found[id(library)] = library
                    waiting.append(library)
        return list(found.values())[1:]


class _KernelLowering(typed_passes.NativeLowering):
    """Translate a typed function into LLVM's form, and go no further."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower a function, and let others call it though it has no machine code."""
        library: Any = KernelLibrary
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        lower: Any = super().run_pass
        lower(state)
        lowered = state["cr"]
        described = lowered.fndesc
        entry = _entries.make_function(
            described.lookup_module(), described.qualname, "", 0, lowered.env, (state.library,)
        )
        state.targetctx.insert_user_function(entry, described, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


_machinery.register_pass(mutates_CFG=False, analysis_only=True)(_KernelLowering)
_PASSES: Final = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    _KernelLowering,
    typed_passes.NoPythonBackend,
)


class KernelPipeline(CompilerBase):
    """numba's passes that a function of arrays and numbers needs."""

    def define_pipelines(self) -> list[Any]:
        """Return the one way to compile a kernel."""
        manager = _machinery.PassManager("kernel")
        for step in _PASSES:
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]
