# SPDX-License-Identifier: Apache-2.0
"""Namespaces from the inside: building them by batches, and opening sockets in them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Refused", "batches", "build", "entered", "run_batch"]

_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_AT_ONCE: Final = 4
_HOSTS: Final = Path("/run/railweave-hosts")


class Refused(Exception):
    """The kernel or a tool refused something; the text says what."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _descriptor(namespace: str | None) -> int:
    path = "/proc/self/ns/net" if namespace is None else f"/run/netns/{namespace}"
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _enter(namespace: str | None) -> None:
    if _libc().setns(_descriptor(namespace), _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"{namespace}: {os.strerror(number)}")


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Be in a network namespace for a while (this thread)."""
    _descriptor(None)  # the way back, before we are away
    _enter(namespace)
    try:
        yield
    finally:
        _enter(None)


def run_batch(
    tool: str,
    namespace: str | None,
    lines: Sequence[str],
    *,
    as_json: bool = False,
    counters: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ``ip`` or ``tc`` on lines of a batch, in a namespace or outside of all."""
    command = [tool]
    if namespace is not None:
        command += ["-n", namespace]
    command += ["-s"] * counters + ["-j"] * as_json + ["-batch", "-"]
    lines_file = os.memfd_create("batch", os.MFD_CLOEXEC)
    try:
        with os.fdopen(lines_file, "w", closefd=False) as file:
            file.writelines(f"{line}\n" for line in lines)
        os.lseek(lines_file, 0, os.SEEK_SET)
        return subprocess.Popen(
            command, stdin=lines_file, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    finally:
        os.close(lines_file)


def _collect(tool: str, where: str, process: subprocess.Popen[bytes]) -> str:
    out, err = process.communicate()
    if process.returncode:
        said = "; ".join(err.decode(errors="replace").split("\n")[:3]).strip()
        raise Refused(f"{tool} in {where}: {said}")
    return out.decode()


def batches(
    tool: str,
    namespaces: Mapping[str, Sequence[str]],
    *,
    as_json: bool = False,
    counters: bool = False,
) -> dict[str, str]:
    """Run a batch in each namespace, a few at once, and return what each printed.

    Raises
    ------
    Refused
        A line failed; the first words of the tool are in the text.
    """
    waiting, said = list(namespaces.items()), {}
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            name, lines = waiting.pop(0)
            running.append((name, run_batch(tool, name, lines, as_json=as_json, counters=counters)))
        name, process = running.pop(0)
        said[name] = _collect(tool, name, process)
    return said


def build(
    namespaces: Sequence[str],
    sysctls: Mapping[str, Mapping[str, Any]],
    cables: Sequence[str],
    first: Mapping[str, Sequence[str]],
    tc: Mapping[str, Sequence[str]],
    then: Mapping[str, Sequence[str]],
    hosts: str,
) -> None:
    """Make the namespaces, cables, shapers and routes; see `railweave.tools.emulate.batches`."""
    _collect("ip", "the sandbox", run_batch("ip", None, [f"netns add {n}" for n in namespaces]))
    for name, settings in sysctls.items():
        with entered(name):
            for path, value in settings.items():
                try:
                    Path("/proc/sys", path).write_text(str(value), encoding="ascii")
                except OSError as error:
                    raise Refused(f"sysctl {path}: {error.strerror}") from error
    _collect("ip", "the sandbox", run_batch("ip", None, cables))
    batches("ip", first)
    batches("tc", tc)
    batches("ip", then)
    _HOSTS.write_text(hosts, encoding="ascii")
    done = subprocess.run(
        ["mount", "--bind", str(_HOSTS), "/etc/hosts"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise Refused(f"names inside: {done.stderr.strip()}")
