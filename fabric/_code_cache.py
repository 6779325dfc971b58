# SPDX-License-Identifier: Apache-2.0
"""The machine code of kernels on disk, found by the content it was made from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._machine_code import Code, NativeFunction
from railweave.fabric.jit import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

__all__ = ["kept_function", "native_function"]

_FORMAT = 2


def native_function(kernel: Kernel, arguments: Sequence[Any]) -> NativeFunction:
    """Return a kernel's machine code for some arguments, from the disk or compiled now."""
    kept = kept_function(kernel, arguments)
    if kept is not None:
        return kept
    from railweave.fabric._compile import compile_kernel

    code = compile_kernel(kernel, arguments)
    for folder in _folders(kernel):
        if _write(folder / _name(kernel, arguments), code):
            break
    return NativeFunction(code, arguments)


def kept_function(kernel: Kernel, arguments: Sequence[Any]) -> NativeFunction | None:
    """Return a kernel's machine code for some arguments from the disk, None if it is not there."""
    name = _name(kernel, arguments)
    for folder in _folders(kernel):
        code = _read(folder / name)
        if code is not None:
            return NativeFunction(code, arguments)
    return None


# ------------------------------------------------------------------ where
def _name(kernel: Kernel, arguments: Sequence[Any]) -> str:
    function = kernel.function
    module = function.__module__.rpartition(".")[2]
    return f"{module}.{function.__name__}-{_digest(kernel, arguments)}.o"


def _folders(kernel: Kernel) -> Iterator[Path]:
    """Yield the folders that may hold the code, in numba's order."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        yield Path(chosen)
        return
    file = Path(kernel.function.__code__.co_filename)
    if file.is_file():
        yield file.parent / "__pycache__"
    if sys.platform == "darwin":
        caches = Path("~/Library/Caches")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        yield caches.expanduser() / "railweave"
    except RuntimeError:  # nobody's home is known
        return


def _read(file: Path) -> Code | None:
    """Return what a file holds; None if it is absent, unreadable or damaged."""
    try:
        head, _, machine_code = file.read_bytes().partition(b"\n")
        said = json.loads(head)
        if hashlib.blake2b(machine_code).hexdigest() != said["blake2b"]:
            return None
        return Code(symbol=said["symbol"], returns=said["returns"], machine_code=machine_code)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, code: Code) -> bool:
    """Write a file as a whole or not at all; return whether it worked."""
    checksum = hashlib.blake2b(code.machine_code).hexdigest()
    head = {"symbol": code.symbol, "returns": code.returns, "blake2b": checksum}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(json.dumps(head).encode() + b"\n" + code.machine_code)
        Path(part.name).replace(file)
    except OSError:
        return False
    return True


# ------------------------------------------------------------------ what it depends on
@cache
def _surroundings() -> str:
    """Return all that machine code depends on beside the kernel and its arguments."""
    import llvmlite.binding as llvm

    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    )
    parts = (
        str(_FORMAT), sys.version, platform.machine(), sys.platform,
        version("numba"), version("llvmlite"), np.__version__,
        llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), *settings,
    )  # fmt: skip
    return "\n".join(parts)


def _digest(kernel: Kernel, arguments: Sequence[Any]) -> str:
    digest = hashlib.blake2b(_surroundings().encode(), digest_size=16)
    for argument in arguments:
        digest.update(_type_name(argument).encode())
    _add(digest, kernel, set())
    return digest.hexdigest()


def _type_name(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return f"{argument.ndim}{_layout(argument.dtype)};"
    if isinstance(argument, np.void):
        return f"record{_layout(argument.dtype)};"
    if isinstance(argument, np.uint64):
        return "u;"
    return "f;" if isinstance(argument, float | np.floating) else "i;"


def _layout(dtype: np.dtype[Any]) -> str:
    if dtype.fields is None:
        return dtype.str
    return str([(name, *map(str, dtype.fields[name][:2])) for name in dtype.names or ()])


def _add(digest: Any, kernel: Kernel, seen: set[str]) -> None:
    """Add a kernel, the constants it names and the kernels it calls."""
    function = kernel.function
    name = f"{function.__module__}.{function.__qualname__}"
    if name in seen:
        return
    seen.add(name)
    digest.update(f"{name} {kernel.inline}".encode())
    for code in _codes(function.__code__):
        constants = [c for c in code.co_consts if not hasattr(c, "co_code")]
        digest.update(code.co_code)
        digest.update(repr(constants[1:] if function.__doc__ else constants).encode())
        digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
        for used in code.co_names:
            value = function.__globals__.get(used)
            if isinstance(value, Kernel):
                _add(digest, value, seen)
            elif isinstance(value, int | float | np.generic | tuple):
                digest.update(f"{used}={value!r}".encode())


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _codes(constant)
