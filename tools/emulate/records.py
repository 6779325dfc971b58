# SPDX-License-Identifier: Apache-2.0
"""Who is emulating: a small file per run, so that what a killed run left can be found and removed.

Processes of a run carry its id in their environment (`RUN_VARIABLE`); the networks themselves live
in namespaces of those processes and go with them.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["RUN_VARIABLE", "RunRecord", "clean_up"]

RUN_VARIABLE: Final = "RAILWEAVE_RUN"


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"railweave-emulate-{os.geteuid()}"


def _born(process: int) -> str | None:
    """Return when a process started, in ticks since boot (field 22 of proc_pid_stat(5))."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


class RunRecord:
    """The file of one run: its owner and its sandbox."""

    def __init__(self, run_id: str) -> None:
        self._path = _folder() / f"{run_id}.json"

    def write(self, sandbox: int) -> None:
        """Note the process id of the sandbox, and of this process, its owner."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            return  # someone else's folder: nothing of ours is written there
        owner = os.getpid()
        data = {"owner": owner, "owner_born": _born(owner), "sandbox": sandbox}
        self._path.write_text(json.dumps(data), encoding="ascii")

    def remove(self) -> None:
        """Remove the file, and the folder with the last one."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._path.parent.rmdir()


def _processes_of(run_id: str) -> list[int]:
    """Return the processes that carry a run's id and that this user may look at."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def clean_up() -> list[str]:
    """End and remove what runs without an owner left behind; return their ids.

    Runs whose owner lives are left alone.
    """
    cleaned = []
    folder = _folder()
    if not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        return []
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # being written, or cut off
            data = {}
        owner, born = data.get("owner"), data.get("owner_born")
        if owner is not None and born is not None and _born(owner) == born:
            continue
        for process in _processes_of(path.stem):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        RunRecord(path.stem).remove()
        cleaned.append(path.stem)
    return cleaned
