# SPDX-License-Identifier: Apache-2.0
"""Measure collectives and messages with torch.distributed; one file, standard library and PyTorch.

On one machine, on several under torchrun, or under Slurm::

    torchrun --nproc-per-node 8 run.py -o box.json
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        run.py -o pair.json
    srun --ntasks-per-node 8 --gpus-per-node 8 python run.py -o job.json

NCCL where there is CUDA, gloo elsewhere. The file that rank 0 writes holds the rows, the
environment, and what was skipped with the reason; it is complete JSON after every row. Sizes are
the whole logical buffer, as in nccl-tests (doc/PERFORMANCE.md), and ``1M`` means 1 MiB as there.
Needs Python 3.10 and PyTorch 2.4 or later.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

KIND: Final = "railweave-probe"
SCHEMA: Final = 1
OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
    "scatter",
    "gather",
)
PARTS: Final = ("collectives", "sweeps", "overlap", "rails", "pairs")
SHARDED: Final = ("all_gather", "reduce_scatter", "alltoall", "scatter", "gather")
ROOTED: Final = ("broadcast", "reduce", "scatter", "gather")
DTYPES: Final = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "int8": "int8"}
LEAST_ITERATIONS: Final = {"nccl": 5, "gloo": 20}  # processes on CPUs wait for their turn
BEAT_S: Final = 1.0
SILENT_S: Final = 20.0  # a rank without a sign of life for so long is taken for dead
TROUBLED_SILENT_S: Final = 4.0  # the same once some rank reported an error
WINDOW: Final = 8  # messages under way in a bandwidth sweep


class ProbeError(Exception):
    """What was asked for cannot be done; ``code`` is what the process exits with."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class Options:
    """What was asked for: sizes in bytes, times in seconds."""

    output: Path
    force: bool
    backend: str
    ops: tuple[str, ...]
    parts: tuple[str, ...]
    min_bytes: int
    max_bytes: int | None
    factor: int
    iterations: int
    warmup: int
    seconds: float
    timeout_s: float
    dtype: str
    root: int


def size_bytes(text: str) -> int:
    """Read a size as nccl-tests does: ``64``, ``8K``, ``1M``, ``2G`` (powers of 1024)."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 8, 64K or 1G")
    return int(match[1]) << (10 * " KMG".index(match[2].upper() or " "))


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        asked = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            raise argparse.ArgumentTypeError(
                f"'{unknown[0] if unknown else text}' is none of {', '.join(known)}"
            )
        return asked

    return read


def _at_least(least: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    return read


def read_options(arguments: Sequence[str]) -> Options:
    """Read the command line; what is wrong with it ends the process with code 2."""
    lines = argparse.ArgumentParser(
        prog="run.py", description="Measure collectives with torch.distributed."
    )
    add = lines.add_argument
    add("-o", "--output", type=Path, required=True, help="JSON file that rank 0 writes")
    add("--force", action="store_true", help="replace an existing file")
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="default: by device")
    add("--ops", type=_names(OPERATIONS), default=OPERATIONS, help="default: all")
    add("--parts", type=_names(PARTS), default=PARTS, help=f"default: {','.join(PARTS)}")
    add("-b", "--min-bytes", type=size_bytes, default=8, help="first size (default: 8)")
    add("-e", "--max-bytes", type=size_bytes, help="last size (default: 1G; gloo 64M)")
    add("-f", "--factor", type=_at_least(2, int), default=2, help="next size over size (2)")
    add("-n", "--iters", type=_at_least(1, int), default=100, help="at most (100)")
    add("-w", "--warmup", type=_at_least(1, int), default=5, help="runs that do not count (5)")
    add("--seconds", type=_at_least(1, float), default=300.0, help="time budget (default: 300)")
    add("--timeout", type=_at_least(5, float), default=60.0, help="of one operation (60 s)")
    add("--dtype", choices=tuple(DTYPES), default="float", help="default: float")
    add("-r", "--root", type=_at_least(0, int), default=0, help="of broadcast, reduce, ... (0)")
    found = lines.parse_args(arguments)
    if found.max_bytes is not None and found.max_bytes < found.min_bytes:
        lines.error(f"--max-bytes {found.max_bytes} is below --min-bytes {found.min_bytes}")
    return Options(
        output=found.output,
        force=found.force,
        backend=found.backend,
        ops=found.ops,
        parts=found.parts,
        min_bytes=found.min_bytes,
        max_bytes=found.max_bytes,
        factor=found.factor,
        iterations=found.iters,
        warmup=found.warmup,
        seconds=found.seconds,
        timeout_s=found.timeout,
        dtype=found.dtype,
        root=found.root,
    )


# ---------------------------------------------------------------- who and where


@dataclass(frozen=True)
class Launch:
    """Place of this process among the others, as its launcher said."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    node: str
    address: str
    port: int
    holds_store: bool
    run: str


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list such as ``gpu[001-004,9],x7``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist.strip())
    if not match:
        raise ProbeError(f"'{nodelist}' is not a Slurm node list")
    return match[1] + (match[2] or "") + (match[3] or "")


def read_launch(env: Mapping[str, str], hostname: str) -> Launch:
    """Return this process's place: from torchrun's variables, else Slurm's, else Open MPI's."""

    def number(name: str) -> int:
        try:
            return int(env[name])
        except KeyError:
            raise ProbeError(f"the launcher did not set {name}") from None
        except ValueError:
            raise ProbeError(f"{name}={env[name]} is not a number") from None

    agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if "RANK" in env and "WORLD_SIZE" in env:
        launcher, rank, world, local = "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"
        node = env.get("GROUP_RANK", hostname)
        run = env.get("TORCHELASTIC_RUN_ID", "") + env.get("TORCHELASTIC_RESTART_COUNT", "")
    elif "SLURM_PROCID" in env:
        launcher, rank, world, local = "slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"
        node, run = env.get("SLURM_NODEID", hostname), env.get("SLURM_JOB_ID", "")
    elif "OMPI_COMM_WORLD_RANK" in env:
        launcher, rank, world = "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
        local, node, run = "OMPI_COMM_WORLD_LOCAL_RANK", hostname, ""
    else:
        raise ProbeError(
            "no launcher: start it with torchrun or srun, for example\n"
            "  torchrun --nproc-per-node 8 run.py -o box.json"
        )
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if address is None and launcher == "slurm":
        address = first_host(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    if address is None:
        raise ProbeError("MASTER_ADDR is not set: the host of rank 0")
    if port is None:  # two jobs on one host must not meet
        port = str(20_000 + number("SLURM_JOB_ID") % 20_000) if "SLURM_JOB_ID" in env else "29500"
    if not port.isdigit():
        raise ProbeError(f"MASTER_PORT={port} is not a number")
    launch = Launch(
        launcher=launcher,
        rank=number(rank),
        world=number(world),
        local_rank=number(local),
        node=node,
        address=address,
        port=int(port),
        holds_store=number(rank) == 0 and not agent,
        run=run,
    )
    if launch.world < 2:
        raise ProbeError("one rank has nobody to talk to; start at least 2")
    return launch


def said(*command: str, seconds: float = 15) -> str:
    """Return what a program printed, or nothing where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def nics(sys_class: Path) -> list[dict[str, str]]:
    """Return the network adapters under ``/sys/class``: RDMA ports, then Ethernet interfaces."""
    found = [
        {
            "name": port.parent.parent.name,
            "port": port.name,
            "rate": _line(port / "rate"),  # "400 Gb/sec (4X NDR)"
            "state": _line(port / "state"),
            "link_layer": _line(port / "link_layer"),
        }
        for port in sorted(sys_class.glob("infiniband/*/ports/*"))
    ]
    for card in sorted(sys_class.glob("net/*")):
        speed = _line(card / "speed")  # Mb/s; absent for lo and while the link is down
        if speed.isdigit():
            found.append(
                {"name": card.name, "rate": f"{speed} Mb/s", "state": _line(card / "operstate")}
            )
    return found


GPU_FIELDS: Final = (
    "name",
    "uuid",
    "driver_version",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_throttle_reasons.active",
)


def gpus(table: str) -> list[dict[str, str]]:
    """Read what ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` printed."""
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines()]
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)]


def host_facts(xml: Path | None) -> dict[str, Any]:
    """Return what one machine is: GPUs and their links, NICs, direct access to GPU memory."""
    query = ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
    modules = {line.split(" ")[0] for line in _line(Path("/proc/modules")).splitlines()}
    return {
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "gpus": gpus(said(*query)),
        "topology_matrix": said("nvidia-smi", "topo", "-m"),
        "nccl_topology_xml": _line(xml) if xml else "",
        "nics": nics(Path("/sys/class")),
        "gpu_direct_modules": sorted(modules & {"nvidia_peermem", "nv_peer_mem", "gdrdrv"}),
    }


# ---------------------------------------------------------------- what is written


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of ordered values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


class Ledger:
    """The output file: whole, valid JSON after every row; only rank 0 writes."""

    def __init__(self, path: Path, head: dict[str, Any], *, writes: bool) -> None:
        self.path, self.head, self.writes = path, head, writes
        self.rows: list[str] = []
        self.skipped: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row and put it on disk."""
        self.rows.append(json.dumps(row, allow_nan=False))
        self.write("running")

    def skip(self, what: str, why: str) -> None:
        """Note what is not measured, and why."""
        self.skipped.append({"what": what, "why": why})

    def write(self, status: str, message: str = "") -> None:
        """Write the file anew, whole or not at all."""
        if not self.writes:
            return
        with self._lock:
            seconds = round(time.monotonic() - self._start, 3)
            head = {**self.head, "status": status, "message": message, "seconds": seconds}
            text = json.dumps({**head, "skipped": self.skipped}, indent=1, allow_nan=False)
            rows = ",\n  ".join(self.rows)
            draft = self.path.with_name(f".{self.path.name}.part")
            draft.write_text(f'{text[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n')
            draft.replace(self.path)


# ---------------------------------------------------------------- who is alive


@dataclass
class Pulse:
    """What is known of one rank: its last sign of life, when that came, and how far it was."""

    beat: str = ""
    at: float = 0.0
    step: int = 0
    doing: str = ""


def judge(pulses: Sequence[Pulse], errors: Sequence[str], *, now: float, troubled: float) -> str:
    """Say which rank failed, or nothing as long as all is well or not yet clear.

    Parameters
    ----------
    pulses
        By rank.
    errors
        What ranks reported, in order of arrival.
    now, troubled
        The time, and when the first error came (infinite: none did), in seconds.
    """
    clear = now - troubled >= TROUBLED_SILENT_S
    limit = TROUBLED_SILENT_S - BEAT_S if clear else SILENT_S
    silent = [rank for rank, pulse in enumerate(pulses) if now - pulse.at > limit]
    if silent:
        names = ", ".join(str(rank) for rank in silent[:8])
        more = f" and {len(silent) - 8} more" if len(silent) > 8 else ""
        doing = pulses[silent[0]].doing
        return f"rank{'s' if len(silent) > 1 else ''} {names}{more} stopped answering in {doing}"
    if errors and clear:  # nobody is dead: the first error is the cause, the others follow from it
        return errors[0]
    return ""


def late(pulses: Sequence[Pulse]) -> str:
    """Say which ranks are behind the others when none moves any more."""
    ahead = max(pulse.step for pulse in pulses)
    behind = [rank for rank, pulse in enumerate(pulses) if pulse.step < ahead]
    if behind:
        names = ", ".join(str(rank) for rank in behind[:8])
        return f"rank {names} does not come: last in {pulses[behind[0]].doing}"
    return f"all ranks stand in {pulses[0].doing}"


class Watch(threading.Thread):
    """Signs of life of all ranks through the store; ends the process when some rank has failed.

    Every rank beats; rank 0 judges and tells the verdict; the others also watch rank 0. So a rank
    that hangs inside NCCL, where no exception ever comes, ends within `SILENT_S` of the failure.
    """

    def __init__(self, store: Any, launch: Launch, ledger: Ledger, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.store, self.launch, self.ledger, self.timeout_s = store, launch, ledger, timeout_s
        self.done = threading.Event()
        self._step, self._doing, self._moved = 0, "the start", time.monotonic()
        self._ending = threading.Lock()
        self._pulses = [Pulse(at=time.monotonic()) for _ in range(launch.world)]
        self._troubled = math.inf
        self._watched = range(launch.world) if launch.rank == 0 else (0,)

    def enter(self, doing: str) -> None:
        """Note what the main thread does next."""
        self._step, self._doing, self._moved = self._step + 1, doing, time.monotonic()

    def beat(self, number: int) -> None:
        """Send a sign of life."""
        self.store.set(f"alive/{self.launch.rank}", f"{number}|{self._step}|{self._doing}")

    def report(self, error: str) -> None:
        """Tell the others of an error of this rank, and wait for the verdict that ends all."""
        place = f"rank {self.launch.rank} on {socket.gethostname()}: {error}"
        with contextlib.suppress(Exception):  # the store may be what has gone
            self.store.set(f"error/{self.store.add('errors', 1)}", place)
        self._troubled = min(self._troubled, time.monotonic())
        time.sleep(3 * TROUBLED_SILENT_S)
        self.end(f"{place} (no verdict came)", 1)

    def signalled(self, number: int) -> None:
        """End on a signal; a launcher sends one when another rank has failed: say which."""
        self._troubled = min(self._troubled, time.monotonic())
        if number == signal.SIGTERM:
            time.sleep(2 * TROUBLED_SILENT_S)
        self.end(f"ended by {signal.Signals(number).name}", 128 + number, "interrupted")

    def end(self, message: str, code: int, status: str = "failed") -> None:
        """Keep the rows, say why, and end the process: its main thread may hang in a collective."""
        if not self._ending.acquire(blocking=False):
            return
        with contextlib.suppress(OSError):
            self.ledger.write(status, message)
        kept = f"; {len(self.ledger.rows)} rows are in {self.ledger.path}"
        print(
            f"probe: rank {self.launch.rank} ends: {message}{kept if self.ledger.writes else ''}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(code)

    def run(self) -> None:
        """Beat, look and judge, until told that all is done."""
        number = 0
        while not self.done.wait(BEAT_S):
            number += 1
            try:
                self.beat(number)
                verdict = self._look()
            except Exception as error:
                if not self.done.is_set():
                    text = str(error).splitlines()[0] if str(error) else type(error).__name__
                    self.end(
                        f"rank 0 or its launcher is gone, the store does not answer ({text})", 1
                    )
                return
            if verdict:
                if self.launch.holds_store:
                    time.sleep(3 * BEAT_S)  # the store goes with this rank: let the others read
                self.end(verdict, 1)

    def _look(self) -> str:
        if self.store.check(["verdict"]):
            return str(self.store.get("verdict").decode())
        now = time.monotonic()
        beats = self.store.multi_get([f"alive/{rank}" for rank in self._watched])
        for rank, raw in zip(self._watched, beats, strict=True):
            pulse, beat = self._pulses[rank], raw.decode()
            if beat != pulse.beat:
                pulse.beat, pulse.at = beat, now
                _, step, pulse.doing = beat.split("|", 2)
                pulse.step = int(step)
        errors = [
            self.store.get(f"error/{k + 1}").decode() for k in range(self.store.add("errors", 0))
        ]
        if errors:
            self._troubled = min(self._troubled, now)
        pulses = [self._pulses[rank] for rank in self._watched]
        if self.launch.rank:
            silent = judge(pulses, (), now=now, troubled=self._troubled)
            return silent and f"rank 0 stopped answering in {pulses[0].doing}"
        verdict = judge(pulses, errors, now=now, troubled=self._troubled)
        if not verdict and now - self._moved > self.timeout_s:
            verdict = f"nothing moved for {self.timeout_s:g} s: {late(pulses)}"
        if verdict:
            self.store.set("verdict", verdict)
        return verdict


# ---------------------------------------------------------------- the machinery of one rank


@dataclass
class Bench:
    """One rank, ready to measure: PyTorch, the buffers, the clock."""

    torch: Any
    launch: Launch
    options: Options
    ledger: Ledger
    watch: Watch
    device: Any
    statistic: str
    nodes: list[list[int]] = field(default_factory=list)
    send: Any = None
    recv: Any = None
    start: float = field(default_factory=time.monotonic)

    @property
    def dist(self) -> Any:
        """torch.distributed."""
        return self.torch.distributed

    @property
    def left(self) -> float:
        """Seconds of the budget that are left on this rank."""
        return self.options.seconds - (time.monotonic() - self.start)

    def agree(self, values: Sequence[float], how: str = "MAX") -> list[float]:
        """Return the largest (or smallest) of each value over all ranks."""
        row = self.torch.tensor(list(values), dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(row, op=getattr(self.dist.ReduceOp, how))
        return [float(value) for value in row.tolist()]

    def barrier(self) -> None:
        """Wait for all ranks, with nothing left on the device."""
        if self.device.type == "cuda":
            self.dist.barrier(device_ids=[self.device.index])
            self.torch.cuda.synchronize()
        else:
            self.dist.barrier()

    def times_us(self, run: Callable[[], None], iterations: int) -> list[float]:
        """Return what each of some runs in a row took: CUDA events, or the clock of the CPU."""
        if self.device.type == "cuda":
            marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
            marks[0].record()
            for mark in marks[1:]:
                run()
                mark.record()
            self.torch.cuda.synchronize()
            return [1e3 * a.elapsed_time(b) for a, b in pairwise(marks)]
        stamps = [time.perf_counter_ns()]
        for _ in range(iterations):
            run()
            stamps.append(time.perf_counter_ns())
        return [(b - a) / 1e3 for a, b in pairwise(stamps)]

    def measure(
        self, run: Callable[[], None], seconds: float, wrong: Callable[[], int] = lambda: 0
    ) -> dict[str, Any]:
        """Warm up, run as often as the time allows, and return the figures over ranks and runs.

        The number of runs is agreed on: every rank does as many. ``run`` does nothing on ranks
        that have no part in it. ``wrong`` counts wrong elements after the first run.
        """
        self.barrier()
        first = self.times_us(run, 1)[0]
        one_us, left, errors = self.agree([first, -self.left, wrong()])
        seconds = min(seconds, max(0.0, -left))
        warm = int(min(self.options.warmup - 1, 0.25e6 * seconds / max(one_us, 0.1)))
        if warm > 0:
            one_us = self.agree([sum(self.times_us(run, warm)) / warm])[0]
        wanted = int(0.75e6 * seconds / max(one_us, 0.1))
        wanted = max(LEAST_ITERATIONS[self.options.backend], wanted)
        iterations = min(self.options.iterations, wanted)
        self.barrier()
        return {**self.figures(self.times_us(run, iterations)), "wrong": int(errors)}

    def figures(self, mine: Sequence[float]) -> dict[str, Any]:
        """Return the figures of a series of runs, in us; ``mine`` is what this rank saw."""
        mean = sum(mine) / len(mine)
        everyone = [0.0] * self.launch.world
        everyone[self.launch.rank] = mean
        joined = self.agree([*mine, *everyone])
        slowest, means = sorted(joined[: len(mine)]), joined[len(mine) :]
        found = {
            "min_us": slowest[0],
            "p50_us": statistics.median(slowest),
            "p95_us": percentile(slowest, 0.95),
            "p99_us": percentile(slowest, 0.99),
            "max_us": slowest[-1],
            "stdev_us": statistics.pstdev(slowest),
            "mean_us": max(means),
        }
        time_us = found["p50_us"] if self.statistic == "p50" else found["mean_us"]
        figures: dict[str, Any] = {"time_us": round(time_us, 4)}
        figures |= {name: round(value, 4) for name, value in found.items()}
        slow = max(range(len(means)), key=means.__getitem__)
        return figures | {"iterations": len(mine), "slowest_rank": slow}


@dataclass(frozen=True)
class Form:
    """One way to run an operation: fill buffers, run, count the elements that came out wrong."""

    prepare: Callable[[], None]
    run: Callable[[], None]
    wrong: Callable[[], int]


def value_of(rank: int) -> int:
    """Return what a rank fills its buffers with: small, so that sums are exact in most types."""
    return rank % 3 + 1


def forms(bench: Bench, op: str, count: int) -> dict[str, Form]:
    """Return the ways to run an operation over ``count`` elements: out of place, in place."""
    torch, dist = bench.torch, bench.dist
    rank, world, root = bench.launch.rank, bench.launch.world, bench.options.root
    shard = count // world
    a, b = bench.send[:count], bench.recv[:count]
    mine, total = value_of(rank), sum(value_of(r) for r in range(world))
    slack = total * torch.finfo(a.dtype).eps * world if a.dtype.is_floating_point else 0

    def differs(tensor: Any, value: int) -> int:
        return int(((tensor - value).abs() > slack).sum().item())

    def shards(tensor: Any) -> list[Any]:
        return list(tensor.split(shard))

    def wrong_shards(tensor: Any) -> int:
        return sum(differs(part, value_of(r)) for r, part in enumerate(shards(tensor)))

    def filled(tensor: Any) -> Callable[[], None]:
        return lambda: tensor.fill_(mine)

    # PyTorch 2.13 gave both new names and warns about the old ones.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter_sums = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    own_a, own_b = a[rank * shard :][:shard], b[rank * shard :][:shard]
    at_root = rank == root
    if op == "all_reduce":
        run = lambda: dist.all_reduce(b)  # noqa: E731
        return {"in_place": Form(filled(b), run, lambda: differs(b, total))}
    if op == "broadcast":
        run = lambda: dist.broadcast(b, src=root)  # noqa: E731
        return {"in_place": Form(filled(b), run, lambda: differs(b, value_of(root)))}
    if op == "reduce":
        run = lambda: dist.reduce(b, dst=root)  # noqa: E731
        return {"in_place": Form(filled(b), run, lambda: differs(b, total) if at_root else 0)}
    if op == "all_gather":
        return {
            "out_of_place": Form(
                filled(own_a),
                lambda: all_gather(b, own_a),
                lambda: wrong_shards(b),
            ),
            "in_place": Form(
                filled(own_b),
                lambda: all_gather(b, own_b),
                lambda: wrong_shards(b),
            ),
        }
    if op == "reduce_scatter":
        return {
            "out_of_place": Form(
                filled(a),
                lambda: scatter_sums(own_b, a),
                lambda: differs(own_b, total),
            ),
            "in_place": Form(
                filled(a),
                lambda: scatter_sums(own_a, a),
                lambda: differs(own_a, total),
            ),
        }
    if op == "alltoall":
        run = lambda: dist.all_to_all_single(b, a)  # noqa: E731
        return {"out_of_place": Form(filled(a), run, lambda: wrong_shards(b))}
    if op == "gather":
        into = shards(b) if at_root else None
        run = lambda: dist.gather(own_a, into, dst=root)  # noqa: E731
        check = lambda: wrong_shards(b) if at_root else 0  # noqa: E731
        return {"out_of_place": Form(filled(own_a), run, check)}
    if op == "scatter":
        out_of = shards(a) if at_root else None
        run = lambda: dist.scatter(own_b, out_of, src=root)  # noqa: E731
        return {"out_of_place": Form(filled(a), run, lambda: differs(own_b, value_of(root)))}
    before, after = (rank - 1) % world, (rank + 1) % world
    run = lambda: exchange(bench, [(a, after)], [(b, before)])  # noqa: E731
    return {"out_of_place": Form(filled(a), run, lambda: differs(b, value_of(before)))}


def exchange(bench: Bench, out: Sequence[tuple[Any, int]], into: Sequence[tuple[Any, int]]) -> None:
    """Send and receive tensors, and wait for both; on NCCL all as one group of calls."""
    dist = bench.dist
    ops = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in out]
    ops += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in into]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def bus_factor(op: str, world: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2 * (world - 1) / world
    return (world - 1) / world if op in SHARDED else 1.0


def with_rates(figures: dict[str, Any], size: int, factor: float) -> dict[str, Any]:
    """Add algorithm and bus bandwidth in GB/s (1e9 bytes)."""
    rate = size / figures["time_us"] / 1e3 if figures["time_us"] > 0 else 0.0
    return {**figures, "algbw_GBps": round(rate, 6), "busbw_GBps": round(rate * factor, 6)}


# ---------------------------------------------------------------- what is measured


def ladder(options: Options, last: int) -> list[int]:
    """Return the sizes in bytes, each ``factor`` times the one before."""
    sizes = [options.min_bytes]
    while sizes[-1] * options.factor <= last:
        sizes.append(sizes[-1] * options.factor)
    return sizes


def element_count(op: str, size: int, element_bytes: int, world: int) -> int:
    """Return the elements of a buffer of ``size`` bytes, as many for each rank if sharded."""
    count = size // element_bytes
    return count - count % world if op in SHARDED else count


def collectives(bench: Bench, sizes: Sequence[int], seconds: float) -> None:
    """Measure every operation over every size."""
    world, element = bench.launch.world, bench.send.element_size()
    jobs: list[tuple[int, str, int]] = []
    for op in bench.options.ops:
        counts = {element_count(op, size, element, world): size for size in sizes}
        if counts.pop(0, None) is not None:
            bench.ledger.skip(op, f"sizes with less than one {bench.options.dtype} per rank")
        usable = supported(bench, op, min(counts)) if counts else False
        if usable:
            sorted_counts = sorted(counts, reverse=True)
            jobs += [(turn(k), op, count) for k, count in enumerate(sorted_counts)]
    jobs.sort(key=lambda job: job[0])
    end = time.monotonic() + seconds
    for done, (_, op, count) in enumerate(jobs):
        spare = bench.agree([end - time.monotonic()], "MIN")[0]
        if spare <= 0:
            for name in bench.options.ops:
                left = sorted(n * element for _, other, n in jobs[done:] if other == name)
                if left:
                    sizes_left = ", ".join(map(str, left))
                    bench.ledger.skip(f"{name} of {sizes_left} B", "out of time")
            return
        collective(bench, op, count, spare / (len(jobs) - done))


def turn(index: int) -> int:
    """Return when a size has its turn, the largest being 0: every fourth comes first.

    So little time still spans all sizes of all operations.
    """
    return (0, 2, 1, 2)[index % 4]


def supported(bench: Bench, op: str, count: int) -> bool:
    """Tell whether the backend has an operation, by trying it; all ranks agree."""
    bench.watch.enter(f"a trial of {op}")
    why = ""
    try:
        for form in forms(bench, op, count).values():
            form.run()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        why = str(error).splitlines()[0]
    able = bench.agree([0.0 if why else 1.0, 1.0 if why else 0.0])
    if able == [1.0, 1.0]:
        raise ProbeError(f"{op} fails on some ranks only{': ' + why if why else ''}", 1)
    if why:
        bench.ledger.skip(op, f"{bench.options.backend} does not do it: {why}")
    return not why


def collective(bench: Bench, op: str, count: int, seconds: float) -> None:
    """Measure one operation at one size, in the forms that torch.distributed has."""
    size = count * bench.send.element_size()
    row: dict[str, Any] = {
        "part": "collectives",
        "op": op,
        "size_bytes": size,
        "count": count,
        "dtype": bench.options.dtype,
        "root": bench.options.root if op in ROOTED else -1,
        "ranks": bench.launch.world,
        "out_of_place": None,
        "in_place": None,
    }
    ways = forms(bench, op, count)
    for name, form in ways.items():
        bench.watch.enter(f"{op} of {size} B")
        form.prepare()
        figures = bench.measure(form.run, seconds / len(ways), form.wrong)
        row[name] = with_rates(figures, size, bus_factor(op, bench.launch.world))
    bench.ledger.add(row)


def sweeps(bench: Bench, sizes: Sequence[int], seconds: float) -> None:
    """Measure latency and bandwidth over size from rank 0 to a peer in its host, and in another."""
    peers = {}
    here = next(node for node in bench.nodes if 0 in node)
    if len(here) > 1:
        peers["same host"] = here[1]
    others = [node for node in bench.nodes if node is not here]
    if others:
        peers["other host, same rail"] = others[0][0]
        if len(others[0]) > 1:
            peers["other host, other rail"] = others[0][1]
    element = bench.send.element_size()
    sizes = [size for size in sizes if size >= element]
    share = seconds / max(1, 2 * len(sizes) * len(peers))
    for where, peer in peers.items():
        for size in sizes:
            if bench.agree([bench.left], "MIN")[0] <= 0:
                bench.ledger.skip(f"sweep to rank {peer} from {size} B on", "out of time")
                break
            for kind in ("latency", "bandwidth"):
                message(bench, kind, 0, peer, size, share, {"part": "sweeps", "where": where})


def message(
    bench: Bench,
    kind: str,
    src: int,
    dst: int,
    size: int,
    seconds: float,
    about: dict[str, Any],
) -> None:
    """Measure one pair, while all other ranks wait.

    Latency is half of a round trip; bandwidth is a window of messages one way and one small answer.
    """
    count = size // bench.send.element_size()
    out, into, answer = bench.send[:count], bench.recv[:count], bench.recv[:1]
    window = WINDOW if kind == "bandwidth" else 1
    if kind == "latency":
        answer, back = into, out
    else:
        back = bench.send[:1]

    def run() -> None:
        if bench.launch.rank == src:
            exchange(bench, [(out, dst)] * window, [])
            exchange(bench, [], [(answer, dst)])
        elif bench.launch.rank == dst:
            exchange(bench, [], [(into, src)] * window)
            exchange(bench, [(back, src)], [])

    bench.watch.enter(f"{kind} from rank {src} to rank {dst} of {size} B")
    figures = bench.measure(run, seconds)
    parts = 2 if kind == "latency" else window
    for name in [name for name in figures if name.endswith("_us")]:
        figures[name] = round(figures[name] / parts, 4)
    size = count * bench.send.element_size()
    row = {**about, "op": "send", "kind": kind, "src": src, "dst": dst, "size_bytes": size}
    bench.ledger.add({**row, **with_rates(figures, size, 1.0)})


def overlap(bench: Bench, sizes: Sequence[int], seconds: float) -> None:
    """Measure all_reduce on two communicators at once, against one of them alone."""
    dist = bench.dist
    bench.watch.enter("two more communicators")
    groups = [dist.new_group(), dist.new_group()]
    chosen = sizes[-1:] if len(sizes) < 8 else [sizes[-8], sizes[-5], sizes[-1]]

    def both(count: int) -> None:
        works = [
            dist.all_reduce(tensor[:count], group=group, async_op=True)
            for tensor, group in zip((bench.send, bench.recv), groups, strict=True)
        ]
        for work in works:
            work.wait()

    for size in chosen:
        count = size // bench.send.element_size()
        if not count or bench.agree([bench.left], "MIN")[0] <= 0:
            bench.ledger.skip(f"overlap of {size} B", "out of time" if count else "no element")
            continue
        bench.watch.enter(f"two all_reduces of {size} B at once")
        tensor = bench.send[:count]

        def alone(tensor: Any = tensor) -> None:
            dist.all_reduce(tensor, group=groups[0])

        share = seconds / len(chosen) / 2
        once = bench.measure(alone, share)
        twice = bench.measure(lambda count=count: both(count), share)  # type: ignore[misc]
        bench.ledger.add(
            {
                "part": "overlap",
                "op": "all_reduce",
                "size_bytes": count * bench.send.element_size(),
                "alone": once,
                "together": twice,
            }
        )


def rails(bench: Bench, size: int, seconds: float) -> None:
    """Measure all ranks sending to the next host at once: on their rail, then across rails."""
    width = {len(node) for node in bench.nodes}
    if len(bench.nodes) < 2 or len(width) > 1:
        why = "hosts with unlike numbers of ranks" if len(width) > 1 else "only one host"
        bench.ledger.skip("rails", why)
        return
    count = size // bench.send.element_size()
    here = next(k for k, node in enumerate(bench.nodes) if bench.launch.rank in node)
    rail = bench.nodes[here].index(bench.launch.rank)
    ranks = width.pop()
    for shift in (0, 1) if ranks > 1 else (0,):
        ahead, behind = bench.nodes[(here + 1) % len(bench.nodes)], bench.nodes[here - 1]
        out = [(bench.send[:count], ahead[(rail + shift) % ranks])]
        into = [(bench.recv[:count], behind[(rail - shift) % ranks])]
        bench.watch.enter(f"rails, shift {shift}")
        figures = bench.measure(lambda o=out, i=into: exchange(bench, o, i), seconds / 2)  # type: ignore[misc]
        mine = [0.0] * ranks  # the slowest host of each rail, from runs of their own
        again = bench.times_us(lambda o=out, i=into: exchange(bench, o, i), 5)  # type: ignore[misc]
        mine[rail] = statistics.median(again)
        by_rail = bench.agree(mine)
        sent = count * bench.send.element_size()
        row = {"part": "rails", "op": "send", "shift": shift, "size_bytes": sent}
        rates = [round(sent / us / 1e3, 6) for us in by_rail]
        bench.ledger.add({**row, **with_rates(figures, sent, 1.0), "rail_GBps": rates})


def pairs(bench: Bench, size: int, seconds: float) -> None:
    """Measure every pair of ranks one after the other: latency, and bandwidth both ways."""
    world = bench.launch.world
    every = [(a, (a + step) % world) for step in range(1, world) for a in range(world)]
    small = max(8, bench.send.element_size())
    end = time.monotonic() + seconds
    for done, (src, dst) in enumerate(every):
        spare = bench.agree([end - time.monotonic()], "MIN")[0]
        if spare <= 0:
            bench.ledger.skip(f"{len(every) - done} of {len(every)} pairs", "out of time")
            return
        share = spare / (len(every) - done) / 2
        if src < dst:
            message(bench, "latency", src, dst, small, share, {"part": "pairs"})
        message(bench, "bandwidth", src, dst, size, share, {"part": "pairs"})


# ---------------------------------------------------------------- the whole


def backend_of(torch: Any, asked: str, launch: Launch) -> str:
    """Return the backend to use; refuse one that cannot work here."""
    cuda = torch.cuda.is_available()
    backend = asked if asked != "auto" else "nccl" if cuda else "gloo"
    if backend == "nccl" and not cuda:
        raise ProbeError("--backend nccl needs CUDA, and PyTorch sees none here; use gloo")
    if backend == "nccl" and launch.local_rank >= torch.cuda.device_count():
        raise ProbeError(
            f"rank {launch.rank} has no GPU of its own: local rank {launch.local_rank} of "
            f"{torch.cuda.device_count()} GPUs"
        )
    return backend


def software(torch: Any, backend: str) -> dict[str, Any]:
    """Return versions and the variables that change what is measured."""
    prefixes = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_", "CUDA_VISIBLE", "OMP_NUM")
    nccl = ""
    if backend == "nccl":
        with contextlib.suppress(Exception):
            nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(prefixes)},
    }


def fit_buffers(bench: Bench, last: int) -> int:
    """Make the two buffers, half as large until every rank has room; return their bytes."""
    torch = bench.torch
    dtype = getattr(torch, DTYPES[bench.options.dtype])
    wanted = last
    while last >= bench.options.min_bytes:
        room = 1.0
        try:
            count = max(1, last // dtype.itemsize)
            bench.send = torch.ones(count, dtype=dtype, device=bench.device)
            bench.recv = torch.ones(count, dtype=dtype, device=bench.device)
        except RuntimeError:  # out of memory
            room, bench.send, bench.recv = 0.0, None, None
        if bench.agree([room], "MIN")[0] > 0:
            if last < wanted:
                bench.ledger.skip(f"sizes above {last} B", "no room for two buffers on some rank")
            return last
        last //= 2
    raise ProbeError(f"no room for two buffers of {bench.options.min_bytes} B", 1)


def catch_signals(watch: Watch) -> None:
    """Let a thread wait for signals: the main thread may be inside a collective for long."""

    def wait() -> None:
        watch.signalled(signal.sigwait({signal.SIGTERM, signal.SIGINT}))

    threading.Thread(target=wait, daemon=True).start()


def meet(torch: Any, launch: Launch, options: Options) -> tuple[Any, Any]:
    """Return two clients of the store: one for PyTorch, one for the signs of life."""
    dist = torch.distributed
    wait = timedelta(seconds=options.timeout_s)

    def client(holds: bool) -> Any:
        return dist.TCPStore(
            launch.address,
            launch.port,
            launch.world,
            is_master=holds,
            timeout=wait,
            wait_for_workers=False,
        )

    try:
        first, second = client(launch.holds_store), client(False)
    except Exception as error:
        text = str(error).splitlines()[0]
        raise ProbeError(
            f"rank {launch.rank} finds no store at {launch.address}:{launch.port}: {text}", 1
        ) from None
    prefix = f"{KIND}/{launch.run}"
    return dist.PrefixStore(f"{prefix}/torch", first), dist.PrefixStore(f"{prefix}/watch", second)


def check_output(store: Any, launch: Launch, options: Options) -> None:
    """Let rank 0 look at the output file, and all ranks end alike if it will not do."""
    if launch.rank == 0:
        path, why = options.output, ""
        if path.exists() and not options.force:
            why = f"{path} exists already; take another name, or --force to replace it"
        elif not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            why = f"{path.parent} is no folder that can be written to"
        elif options.root >= launch.world:
            why = f"--root {options.root} is not below the {launch.world} ranks"
        store.set("output", why)
    refusal = store.get("output").decode()
    if refusal:
        if launch.rank == 0:
            store.wait([f"heard/{rank}" for rank in range(1, launch.world)])
            raise ProbeError(refusal)
        store.set(f"heard/{launch.rank}", "")
        sys.exit(2)


def gather_facts(bench: Bench, store: Any, xml: Path | None) -> None:
    """Put who and where all ranks are, and what their hosts are, into the head of the file."""
    launch, torch = bench.launch, bench.torch
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu"
    mine: dict[str, Any] = {
        "rank": launch.rank,
        "node": launch.node,
        "hostname": socket.gethostname(),
        "local_rank": launch.local_rank,
        "device": name,
    }
    facts = host_facts(xml) if launch.local_rank == 0 else None
    store.set(f"who/{launch.rank}", json.dumps([mine, facts]))
    told = [json.loads(store.get(f"who/{rank}")) for rank in range(launch.world)]
    ranks = [one for one, _ in told]
    by_node: dict[str, list[int]] = {}
    for one in ranks:
        by_node.setdefault(one["node"], []).append(one["rank"])
    bench.nodes = list(by_node.values())
    bench.ledger.head |= {
        "world_size": launch.world,
        "nodes": len(bench.nodes),
        "ranks_per_node": [len(node) for node in bench.nodes],
        "device": ranks[0]["device"],
        "ranks": ranks,
        "hosts": [{"node": one["node"], **about} for one, about in told if about],
    }


def probe(torch: Any, launch: Launch, options: Options) -> None:
    """Join the other ranks, measure, and end with them."""
    dist = torch.distributed
    backend = backend_of(torch, options.backend, launch)
    store, alive = meet(torch, launch, options)
    check_output(alive, launch, options)
    options = Options(**{**options.__dict__, "backend": backend})
    head = {
        "schema": SCHEMA,
        "kind": KIND,
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017
        "launcher": launch.launcher,
        "backend": backend,
        "statistic": "mean" if backend == "nccl" else "p50",
        "options": {k: v for k, v in asdict(options).items() if k not in ("output", "force")},
    }
    ledger = Ledger(options.output, head, writes=launch.rank == 0)
    watch = Watch(alive, launch, ledger, options.timeout_s)
    watch.beat(0)
    alive.wait([f"alive/{rank}" for rank in range(launch.world)])
    catch_signals(watch)
    watch.start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            measure_all(torch, launch, options, ledger, watch, store, Path(folder))
    except BaseException as error:
        first = (str(error).splitlines() or [""])[0]
        watch.report(first if isinstance(error, ProbeError) else f"{type(error).__name__}: {first}")
    watch.done.set()
    watch.join()
    alive.add("bye", 1)
    deadline = time.monotonic() + 10
    while launch.rank == 0 and alive.add("bye", 0) < launch.world and time.monotonic() < deadline:
        time.sleep(0.02)  # the store goes with rank 0
    dist.destroy_process_group()


def measure_all(
    torch: Any,
    launch: Launch,
    options: Options,
    ledger: Ledger,
    watch: Watch,
    store: Any,
    folder: Path,
) -> None:
    """Measure every part that was asked for."""
    cuda = options.backend == "nccl"
    extra: dict[str, Any] = {}
    xml = None
    if cuda:
        torch.cuda.set_device(launch.local_rank)
        extra["device_id"] = torch.device("cuda", launch.local_rank)
        xml = Path(os.environ.setdefault("NCCL_TOPO_DUMP_FILE", str(folder / "topology.xml")))
    else:
        torch.set_num_threads(1)
        if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == launch.world and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ledger.head["software"] = software(torch, options.backend)
    watch.enter("the first meeting")
    torch.distributed.init_process_group(
        options.backend,
        store=store,
        rank=launch.rank,
        world_size=launch.world,
        timeout=timedelta(seconds=options.timeout_s),
        **extra,
    )
    device = extra.get("device_id", torch.device("cpu"))
    statistic = ledger.head["statistic"]
    bench = Bench(torch, launch, options, ledger, watch, device, statistic)
    bench.barrier()
    gather_facts(bench, watch.store, xml)
    asked = options.max_bytes or (2**30 if cuda else 2**26)
    last = fit_buffers(bench, asked)
    bench.start = time.monotonic()
    sizes = ladder(options, last)
    for part, seconds in shares(options):
        watch.enter(part)
        if part == "collectives":
            collectives(bench, sizes, seconds)
        elif part == "sweeps":
            sweeps(bench, sizes, seconds)
        elif part == "overlap":
            overlap(bench, sizes, seconds)
        else:
            middle = min(last, 2**26 if cuda else 2**20)
            (rails if part == "rails" else pairs)(bench, middle, seconds)
    watch.enter("the end")
    bench.barrier()
    short = any(skip["why"] == "out of time" for skip in ledger.skipped)
    ledger.write("out-of-time" if short else "complete")
    if launch.rank == 0:
        print(f"probe: {len(ledger.rows)} rows in {options.output}", file=sys.stderr)
        for skip in ledger.skipped:
            print(f"probe: not measured: {skip['what']}: {skip['why']}", file=sys.stderr)


def shares(options: Options) -> Iterator[tuple[str, float]]:
    """Yield the parts with the seconds that each may take."""
    weight = {"collectives": 14, "sweeps": 2, "overlap": 1, "rails": 1, "pairs": 2}
    total = sum(weight[part] for part in options.parts)
    for part in PARTS:
        if part in options.parts:
            yield part, 0.95 * options.seconds * weight[part] / total


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probe as one of its ranks and return the exit code."""
    options = read_options(sys.argv[1:] if arguments is None else arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no pages of frames when a peer dies
    try:
        launch = read_launch(os.environ, socket.gethostname())
        try:
            import torch
            import torch.distributed
        except ImportError as error:
            raise ProbeError(
                f"PyTorch cannot be imported ({error}); pip install torch", 3
            ) from None
        probe(torch, launch, options)
    except ProbeError as error:
        print(f"probe: {error}", file=sys.stderr, flush=True)
        return error.code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of PyTorch sometimes outlive it and crash at exit
