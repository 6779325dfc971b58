# SPDX-License-Identifier: Apache-2.0
"""The sandbox that a network lives in, and the way to talk to it.

It is a process with process, mount and network namespaces of its own (and a user namespace where
one is not root): whatever is made inside is invisible outside, cannot collide with another run, and
is removed by the kernel when that process ends. It ends when it is told to, when its standard input
closes, when its parent dies however it dies (PR_SET_PDEATHSIG of prctl(2)), and at a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import MissingToolError, RailweaveError
from railweave.tools.emulate.records import RUN_VARIABLE, RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

__all__ = ["Sandbox", "SandboxError", "check_features", "check_tools", "missing_features"]

_START_S: Final = 15.0
_FAREWELL_S: Final = 3.0
_TOOLS: Final = {
    "ip": "apt-get install iproute2",
    "tc": "apt-get install iproute2",
    "unshare": "apt-get install util-linux",
    "setpriv": "apt-get install util-linux",
    "mount": "apt-get install mount",
}
LIMIT_VARIABLE: Final = "RAILWEAVE_LIMIT_S"


def check_tools() -> None:
    """Raise `MissingToolError` unless this is Linux with the tools that are needed."""
    if sys.platform != "linux":
        raise MissingToolError(
            f"emulation needs Linux with network namespaces; this is {sys.platform}"
        )
    for tool, install in _TOOLS.items():
        if shutil.which(tool) is None:
            raise MissingToolError(f"'{tool}' is not installed; install it: {install}")


class SandboxError(RailweaveError):
    """The inside refused something or is gone."""


class Sandbox:
    """A running sandbox; use it as a context manager.

    Parameters
    ----------
    limit_s
        It ends itself after this time, in s, whatever happens.
    as_user
        Use a user namespace even where one is root.

    Raises
    ------
    MissingToolError
        Not Linux, a tool is missing, or namespaces are not permitted; the reason is named.
    """

    def __init__(self, *, limit_s: float, as_user: bool = False) -> None:
        check_tools()
        self.run_id = secrets.token_hex(4)
        self.unprivileged = False
        self._events: deque[dict[str, Any]] = deque()
        self._replies: dict[int, dict[str, Any]] = {}
        self._requests = 0
        self._buffer = b""
        self._gone: str | None = None
        self._record = RunRecord(self.run_id)
        self._limit_s = limit_s
        refused = self._start(user=as_user or os.geteuid() != 0)
        if refused is not None and not self.unprivileged:
            refused = self._start(user=True)
        if refused is not None:
            self._record.remove()
            raise MissingToolError(
                f"network namespaces are not permitted here: {refused}; "
                "be root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
            )

    def _start(self, *, user: bool) -> str | None:
        """Start the inside; return why it cannot be, or None."""
        self.unprivileged = user
        command = ["setpriv", "--pdeathsig", "KILL", "unshare"]
        command += ["--user", "--map-root-user"] * user
        command += ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        command += [sys.executable, "-m", "railweave.tools.emulate.inside"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the process that the person sees
            env={
                **os.environ,
                RUN_VARIABLE: self.run_id,
                LIMIT_VARIABLE: str(self._limit_s),
            },
        )
        self._record.write(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        deadline = time.monotonic_ns() + int(_START_S * 1e9)
        while not self._events and time.monotonic_ns() < deadline:
            if not self._receive(deadline):
                break
        first = self._events.popleft() if self._events else {"why": self._last_words()}
        if first.get("event") == "ready":
            return None
        self._end()
        return str(first.get("why"))

    def _ended(self) -> SandboxError:
        if self._gone is None:
            self._gone = self._last_words()
        return SandboxError(f"the emulation has ended: {self._gone}")

    def _last_words(self) -> str:
        self._process.kill()
        said = self._process.communicate()[1].decode(errors="replace").strip()
        return said.split("\n")[-1] or f"the sandbox ended with {self._process.returncode}"

    # ------------------------------------------------------------------ talking
    def call(self, do: str, **arguments: Any) -> Any:
        """Have something done inside and return its value.

        Raises
        ------
        RailweaveError
            It was refused, or the sandbox is gone.
        """
        if self._gone is not None:
            raise self._ended()
        assert self._process.stdin is not None
        self._requests += 1
        number = self._requests
        request = json.dumps({"request": number, "do": do, **arguments}, separators=(",", ":"))
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        while number not in self._replies:
            if not self._receive(None):
                raise self._ended()
        reply = self._replies.pop(number)
        if "refused" in reply:
            raise SandboxError(str(reply["refused"]))
        return reply["value"]

    def post(self, do: str, **arguments: Any) -> None:
        """Have something done inside without waiting; a refusal comes as an event."""
        if self._gone is not None:
            raise self._ended()
        assert self._process.stdin is not None
        request = json.dumps({"request": 0, "do": do, **arguments}, separators=(",", ":"))
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def event(self, until_ns: int) -> dict[str, Any] | None:
        """Return the next event, or None at a time of the monotonic clock (ns)."""
        while not self._events:
            if time.monotonic_ns() >= until_ns:
                return None
            if not self._receive(until_ns):
                raise self._ended()
        return self._events.popleft()

    def _receive(self, until_ns: int | None) -> bool:
        """Read what is there, waiting until a time; False once the other side has closed."""
        patience = None if until_ns is None else max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
        if not self._selector.select(patience):
            return True
        data = os.read(self._out, 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "reply" in message:
                self._replies[message["reply"]] = message
            else:
                self._events.append(message)
        return bool(data)

    # ------------------------------------------------------------------ ending
    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._end()
        self._record.remove()

    def _end(self) -> None:
        process = self._process
        self._selector.close()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()  # takes its child along, and that one its whole process namespace
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def missing_features(found: Mapping[str, str | None]) -> list[str]:
    """Return ``name (why)`` of what a probed kernel lacks and an emulation needs."""
    congestion = {name for name in found if name.startswith("TCP ")}
    lacks = [f"{name} ({why})" for name, why in found.items() if why and name not in congestion]
    if congestion and all(found[name] for name in congestion):
        lacks += [f"{name} ({found[name]})" for name in sorted(congestion)]
    return lacks


def check_features(found: Mapping[str, str | None]) -> None:
    """Raise `MissingToolError` naming what the kernel lacks."""
    lacks = missing_features(found)
    if lacks:
        raise MissingToolError(
            "this kernel lacks what the emulation is made of: "
            + ", ".join(lacks)
            + "; use a kernel with CONFIG_NET_NS, CONFIG_VETH, CONFIG_NET_SCH_HTB, "
            "CONFIG_NET_SCH_TBF, CONFIG_NET_CLS_BPF and CONFIG_IP_ROUTE_MULTIPATH"
        )
