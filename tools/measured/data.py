# SPDX-License-Identifier: Apache-2.0
"""What readers of measurements return: data sets of rows, and what was left out or looks wrong."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DataSet", "Finding", "Row", "Skip", "Skips", "checked_time", "merge_repeats"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured time.

    Parameters
    ----------
    op
        ``torch.distributed``'s name of the operation, or ``rdma_write``.
    size_bytes
        The full logical buffer, as nccl-tests counts it.
    time_us
        Measured time.
    algorithm, protocol
        As NCCL names them, or ``auto``.
    launch
        One of `railweave.fabric.profiles.LAUNCH_MODES`.
    line
        1-based line of the file, 0 where the format has none.
    in_place
        Whether input and output were the same buffer.
    """

    op: str
    size_bytes: int
    time_us: float
    algorithm: str = "auto"
    protocol: str = "auto"
    launch: str = "nccl-tests"
    line: int = 0
    in_place: bool = False


@dataclass(frozen=True)
class Skip:
    """What was left out, and why; ``line`` is 0 where it is no line."""

    line: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about a data set that looks wrong.

    ``kind`` is ``duplicate``, ``unit``, ``outlier``, ``broken``, ``wrong-data`` or
    ``inconsistent``.
    """

    dataset: str
    kind: str
    line: int
    what: str


class Skips:
    """Gathers what is left out; the same reason again is counted, not repeated."""

    def __init__(self) -> None:
        self._found: dict[str, list[int]] = {}

    def add(self, line: int, why: str) -> None:
        """Note that a line is left out."""
        self._found.setdefault(why, []).append(line)

    def list(self) -> tuple[Skip, ...]:
        """Return one entry per reason, at its first line, with the number of lines if several."""
        return tuple(
            Skip(lines[0], why if len(lines) == 1 else f"{why} ({len(lines)} lines)")
            for why, lines in sorted(self._found.items(), key=lambda entry: entry[1][0])
        )


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Measurements of one box, or of several alike.

    Parameters
    ----------
    name
        Its name in the file, or the file's.
    hardware, link
        What the file says of GPUs and links, as written there; empty where it says nothing.
    nodes, gpus_per_node
        How many took part; 0 where the file does not say.
    backend
        ``nccl`` or ``gloo``.
    rows, skipped, findings
        Sound rows; what was left out; what looks wrong.
    facts
        What the file says of the machines (NICs, PCIe, modules, variables), for `normal`.
    """

    name: str
    hardware: str = ""
    link: str = ""
    nodes: int = 0
    gpus_per_node: int = 0
    backend: str = "nccl"
    rows: tuple[Row, ...] = ()
    skipped: tuple[Skip, ...] = ()
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node

    def with_ranks(self, *, nodes: int | None, gpus_per_node: int | None) -> DataSet:
        """Return the same with counts that a person gave."""
        return replace(
            self,
            nodes=nodes or self.nodes,
            gpus_per_node=gpus_per_node or self.gpus_per_node,
        )

    def finding(self, kind: str, line: int, what: str) -> Finding:
        """Return a finding about this set."""
        return Finding(dataset=self.name, kind=kind, line=line, what=what)


def merge_repeats(name: str, rows: Iterable[Row]) -> tuple[tuple[Row, ...], tuple[Finding, ...]]:
    """Return one row per operation, size, algorithm and launch: the median where there are several.

    In-place rows stand back behind out-of-place ones of the same key.
    """
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        key = (row.op, row.size_bytes, row.algorithm, row.protocol, row.launch)
        groups[key].append(row)
    kept: list[Row] = []
    findings: list[Finding] = []
    for found in groups.values():
        same = [row for row in found if not row.in_place] or found
        times = [row.time_us for row in same]
        if len(same) > 1:
            findings.append(
                Finding(
                    dataset=name,
                    kind="duplicate",
                    line=same[1].line,
                    what=f"{same[0].op} of {same[0].size_bytes} B stands {len(same)} times, "
                    f"{min(times):g} to {max(times):g} us: their median is taken",
                )
            )
        kept.append(replace(same[0], time_us=median(times)))
    order = sorted(kept, key=lambda row: (row.op, row.algorithm, row.protocol, row.size_bytes))
    return tuple(order), tuple(findings)


def checked_time(text: object, *, what: str = "time") -> float:
    """Return a positive, finite number; `InputError` says what else was there."""
    try:
        value = float(str(text))
    except ValueError:
        raise InputError(f"{what} '{text}' is not a number") from None
    if not 0 < value < 1e15:
        raise InputError(f"{what} {text} is not possible")
    return value
