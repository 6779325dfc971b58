# SPDX-License-Identifier: Apache-2.0
"""What runs inside the sandbox: builds the network and moves the bytes, told so by JSON lines.

``python -m railweave.tools.emulate.inside`` is process 1 of its own process, mount and network
namespaces. Requests come on standard input, one JSON object a line, each answered on standard
output by ``{"reply": n, ...}``; what happens later is told by ``{"event": ...}``. When standard
input ends it exits, and the kernel ends and removes everything below it: there is nothing to clean.

Standard library only: it starts in milliseconds and needs nothing from railweave's fabric.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railweave.tools.emulate.ending import die_with_parent
from railweave.tools.emulate.features import probe
from railweave.tools.emulate.graphs import Graphs
from railweave.tools.emulate.loop import Loop
from railweave.tools.emulate.priority import PRIORITY
from railweave.tools.emulate.shaping import ACK_CLASS
from railweave.tools.emulate.spaces import Refused, batches, build, run_batch
from railweave.tools.emulate.watch import Watch
from railweave.tools.emulate.wires import Wires

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inside"]

_CHUNK: Final = 1 << 16
_LIMIT_VARIABLE: Final = "RAILWEAVE_LIMIT_S"
_FOREVER_S: Final = 1e6
_COUNTS: Final = ("bytes", "packets", "drops")
_FAREWELL_S: Final = 0.5  # from SIGTERM to SIGKILL of the ranks' processes


class Inside:
    """Answers requests until its input ends."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.wires = Wires(self.loop)
        self.graphs = Graphs(self.loop, self.wires, self.tell)
        self.watch = Watch(self.loop)
        self._input = b""
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            "probe": probe,
            "build": build,
            "ip": partial(batches, "ip"),
            "tc": partial(batches, "tc"),
            "show": self._show,
            "open": self.wires.open,
            "close": self.wires.close,
            "start": self.graphs.start,
            "waiting": self.graphs.waiting,
            "watch": self.watch.begin,
            "watched": self.watch.end,
            "later": self._later,
            "spawn": self._spawn,
            "end_ranks": self._end_ranks,
        }

    def serve(self) -> None:
        """Answer requests until standard input ends."""
        limit_s = float(os.environ.get(_LIMIT_VARIABLE, "inf"))
        if limit_s < _FOREVER_S:
            self.loop.at(time.monotonic_ns() + int(limit_s * 1e9), self.loop.stop)
        os.set_blocking(0, False)
        self.loop.watch(0, selectors.EVENT_READ, self._read)
        self.loop.run()
        self._end_ranks()

    def tell(self, message: dict[str, Any]) -> None:
        """Write one line; a reader that is gone ends the loop."""
        try:
            sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.loop.stop()

    def _read(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.loop.stop()
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        number, name = request.pop("request"), request.pop("do")
        try:
            value = self._operations[name](**request)
        except Refused as error:
            self._refuse(number, name, str(error))
        except OSError as error:
            self._refuse(number, name, f"{name}: {error.strerror or error}")
        else:
            if number:
                self.tell({"reply": number, "value": value})

    def _refuse(self, number: int, name: str, why: str) -> None:
        """Say why a request was not met; 0 is the number of those that nobody waits for."""
        if number:
            self.tell({"reply": number, "refused": why})
        else:
            self.tell({"event": "failed", "name": name, "said": why})

    # ------------------------------------------------------------------ looking
    @staticmethod
    def _show(namespaces: list[str]) -> dict[str, Any]:
        """Return the root shaper's counters of each interface: namespace -> name -> counts.

        ``acks`` are the bytes of its class of acknowledgements.
        """
        found: dict[str, Any] = {}
        lines = {name: ["qdisc show"] for name in namespaces}
        for name, text in batches("tc", lines, as_json=True, counters=True).items():
            rows = [row for line in text.splitlines() if line for row in json.loads(line)]
            found[name] = {
                row["dev"]: {**{key: row.get(key, 0) for key in _COUNTS}, "acks": 0}
                for row in rows
                if row.get("root") and row["kind"] in ("htb", "tbf")
            }
            for row in rows:
                if row["handle"] == f"{ACK_CLASS:x}:":
                    found[name][row["dev"]]["acks"] = row.get("bytes", 0)
        return found

    # ------------------------------------------------------------------ later
    def _later(
        self, when_ns: int, name: str, ip: list[dict[str, list[str]]], tc: dict[str, list[str]]
    ) -> None:
        """Run batches at a time of the monotonic clock, stage after stage, then tell ``acted``."""
        stages = [[("ip", space, lines) for space, lines in stage.items()] for stage in ip]
        stages.append([("tc", space, lines) for space, lines in tc.items()])
        self.loop.at(when_ns, lambda: self._act(name, stages, time.monotonic_ns()))

    def _act(self, name: str, stages: list[list[tuple[str, str, list[str]]]], began: int) -> None:
        while stages and not stages[0]:
            stages.pop(0)
        if not stages:
            ended = time.monotonic_ns()
            self.tell({"event": "acted", "name": name, "began": began, "ended": ended})
            return
        running = [run_batch(tool, space, lines) for tool, space, lines in stages.pop(0)]
        left = len(running)

        def ended_one(process: subprocess.Popen[bytes]) -> None:
            nonlocal left
            left -= 1
            said = process.communicate()[1].decode(errors="replace").strip()
            if process.returncode:
                self.tell({"event": "failed", "name": name, "said": said})
            elif not left:
                self._act(name, stages, began)

        for process in running:
            self.loop.on_exit(process.pid, partial(ended_one, process))

    # ------------------------------------------------------------------ ranks
    def _spawn(self, rank: int, namespace: str, command: list[str], env: dict[str, str]) -> int:
        """Start a command in a namespace; its output comes back line by line."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 0)
        self._ranks[rank] = process
        for stream, pipe in (("out", process.stdout), ("err", process.stderr)):
            assert pipe is not None
            self._forward(rank, stream, pipe.fileno())
        self.loop.on_exit(process.pid, lambda: self._rank_ended(rank))
        return process.pid

    def _forward(self, rank: int, stream: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        kept = b""

        def read() -> None:
            nonlocal kept
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.loop.forget(descriptor)
            *lines, kept = (kept + data).split(b"\n")
            if not data and kept:
                lines, kept = [kept], b""
            for line in lines:
                text = line.decode(errors="replace")
                self.tell({"event": "said", "rank": rank, "stream": stream, "line": text})

        self.loop.watch(descriptor, selectors.EVENT_READ, read)

    def _rank_ended(self, rank: int) -> None:
        code = self._ranks[rank].wait()
        self.tell({"event": "exited", "rank": rank, "code": code})

    def _end_ranks(self) -> None:
        """End the ranks that still run, asking first."""
        running = [process for process in self._ranks.values() if process.poll() is None]
        for number in (15, 9):
            for process in running:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + _FAREWELL_S
            for process in running:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue


def main() -> int:
    """Prepare the sandbox, say so, and serve."""
    die_with_parent()
    with suppress(OSError):  # not permitted unprivileged: then it runs like any other process
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    # The names of namespaces are files below /run: on a file system of our own nobody else sees
    # them, and they vanish with it.
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "railweave", "/run"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(json.dumps({"event": "refused", "why": done.stderr.strip()}), flush=True)
        return errno.EPERM
    Path("/run/netns").mkdir()
    print(json.dumps({"event": "ready"}), flush=True)
    Inside().serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
