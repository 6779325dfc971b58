# SPDX-License-Identifier: Apache-2.0
"""After every kind of ending namespaces, links and processes are as before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from railweave.fabric.errors import MissingToolError
from railweave.tools.cli import run_command_line
from railweave.tools.emulate.records import RUN_VARIABLE, clean_up
from railweave.tools.emulate.sandbox import Sandbox, check_features

SCENARIO = {
    "schema": 1,
    "topology": {
        "kind": "custom",
        "nodes": {"h0": "host", "h1": "host", "s0": "switch"},
        "links": [{"ends": [h, "s0"], "rate": "400Gbps", "delay": "0s"} for h in ("h0", "h1")],
    },
    "workload": {"kind": "flows", "flows": [{"src": "h0", "dst": "h1", "size": "SIZE"}]},
}
INSIDE = "railweave.tools.emulate.inside"
MAIN = "import sys; from railweave.__main__ import main; sys.exit(main())"


@pytest.fixture(autouse=True, scope="module")
def permitted() -> None:
    try:
        with Sandbox(limit_s=30) as sandbox:
            check_features(sandbox.call("probe"))
    except MissingToolError as error:
        pytest.skip(f"no networks can be emulated here: {error}")


def written(folder: Path, size: str, name: str = "pair") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(SCENARIO).replace("SIZE", size))
    return str(path)


def processes() -> set[str]:
    """Processes that belong to any emulation."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"{RUN_VARIABLE}=".encode() in (entry / "environ").read_bytes()
            ):
                found.add(entry.name)
        except OSError:
            continue
    return found


def machine() -> tuple[str, str, set[str], bool]:
    """What an emulation could leave behind."""
    shown = [
        subprocess.run(["ip", *words], capture_output=True, text=True, check=False).stdout
        for words in (["netns", "list"], ["-o", "link"])
    ]
    return shown[0], shown[1], processes(), Path("/run/netns").exists()


def settled(before: tuple[str, str, set[str], bool]) -> None:
    """Wait a moment for the kernel to end killed processes, then compare."""
    deadline = time.monotonic() + 10
    while machine() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert machine() == before


def started(path: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "emulate", path, "-o", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not transferring(process.pid) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def transferring(owner: int) -> bool:
    """Whether the inside of an emulation holds the sockets of its transfer."""
    for number in processes():
        try:
            holds = [str(one.readlink()) for one in Path(f"/proc/{number}/fd").iterdir()]
        except OSError:
            continue
        if sum(name.startswith("socket:") for name in holds) >= 2 and owner in ancestors(number):
            return True
    return False


def ancestors(number: str) -> list[int]:
    found = []
    here = int(number)
    while here > 1:
        try:
            text = Path(f"/proc/{here}/stat").read_text()
        except OSError:
            break
        here = int(text.rpartition(")")[2].split()[1])
        found.append(here)
    return found


def command_of(number: str) -> list[str]:
    try:
        return Path(f"/proc/{number}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def test_success_and_errors_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = machine()
    code = run_command_line(
        ["emulate", written(tmp_path, "100kB"), "-q", "-o", str(tmp_path / "r")]
    )
    assert code == 0 or "not valid" in capsys.readouterr().err
    settled(before)
    assert run_command_line(["emulate", written(tmp_path, "90GB"), "-o", str(tmp_path / "x")]) == 2
    assert "the emulation would take" in capsys.readouterr().err
    settled(before)
    failing = [
        "emulate",
        written(tmp_path, "1kB"),
        "--",
        sys.executable,
        "-c",
        "raise SystemExit(3)",
    ]
    assert run_command_line(failing) == 1
    settled(before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_signals_end_it_in_order(tmp_path: Path, number: int, code: int) -> None:
    before = machine()
    process = started(written(tmp_path, "500MB"), tmp_path / "run")
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    settled(before)
    # Partial results are kept, unless Ctrl-C came before the first byte.
    kept = (tmp_path / "run" / "result.json").exists()
    assert kept == ("partial results are in" in err)
    assert number == signal.SIGINT or not kept


def test_kill_9_takes_everything_along_and_cleanup_removes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = machine()
    records = tmp_path / f"railweave-emulate-{os.geteuid()}"
    killed = started(written(tmp_path, "500MB"), tmp_path / "run")
    (record,) = records.iterdir()
    process = started(written(tmp_path, "400MB", "other"), tmp_path / "run2")
    killed.kill()
    killed.communicate(timeout=30)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        assert record.exists()
        assert clean_up() == [record.stem]  # and not the other run
        assert not record.exists()
        assert process.poll() is None
        assert transferring(process.pid)
        process.terminate()
        process.communicate(timeout=30)
        settled(before)
        assert clean_up() == []
    assert not records.exists()


def test_a_killed_sandbox_is_an_error_in_words(tmp_path: Path) -> None:
    before = machine()
    process = started(written(tmp_path, "500MB"), tmp_path / "run")
    ours = [one for one in processes() - before[2] if process.pid in ancestors(one)]
    (inside,) = (one for one in ours if command_of(one)[1:] == ["-m", INSIDE])
    os.kill(int(inside), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert "the emulation has ended" in err
    assert "Traceback" not in err
    settled(before)


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    before = machine()
    path = written(tmp_path, "2MB")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MAIN, "emulate", path, "-q", "-o", str(tmp_path / f"run{k}")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    for k, process in enumerate(running):
        _, err = process.communicate(timeout=60)
        if process.returncode:
            assert "not valid" in err, err
        else:
            assert (tmp_path / f"run{k}" / "comparison.json").exists()
    settled(before)


def test_a_limit_of_time_is_kept(tmp_path: Path) -> None:
    before = machine()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    began = time.monotonic()
    path = written(tmp_path, "1kB")
    assert run_command_line(["emulate", path, "--limit", "1", "--", *sleeper]) == 1
    assert time.monotonic() - began < 20
    settled(before)


def test_without_iproute2_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    for tool in ("unshare", "setpriv", "mount"):
        found = shutil.which(tool)
        assert found is not None
        (only / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(only))
    assert run_command_line(["emulate", written(tmp_path, "1kB")]) == 3
    assert capsys.readouterr().err == (
        "error: 'ip' is not installed; install it: apt-get install iproute2\n"
    )


def test_where_namespaces_are_forbidden_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = machine()
    only = tmp_path / "bin"
    only.mkdir()
    for tool in ("ip", "tc", "setpriv", "mount"):
        found = shutil.which(tool)
        assert found is not None
        (only / tool).symlink_to(found)
    forbidden = only / "unshare"
    forbidden.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    forbidden.chmod(0o755)
    monkeypatch.setenv("PATH", f"{only}:/bin")
    monkeypatch.setattr("shutil.which", lambda tool: str(only / tool))
    assert run_command_line(["emulate", written(tmp_path, "1kB")]) == 3
    assert capsys.readouterr().err == (
        "error: network namespaces are not permitted here: "
        "unshare failed: Operation not permitted; "
        "be root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)\n"
    )
    settled(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "fare"], "did you mean 'fair'"),
        (["--paths", "collidee"], "did you mean 'collide'"),
        (["--scale", "0"], "greater than or equal to 1"),
        (["--reroute", "5"], "reroute: '5' has no unit"),
        (["--", "no-such-program"], "there is no program 'no-such-program'"),
    ],
)
def test_bad_options_name_what_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_command_line(["emulate", written(tmp_path, "1kB"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_it_needs_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["emulate"]) == 2
    assert "SCENARIO" in capsys.readouterr().err
