# SPDX-License-Identifier: Apache-2.0
"""From an operation of a step to what its ranks send: schedules, and bytes by rank and link class.

The schedules are those that an emulated step executes; the bytes are counted from them, rank by
rank, so that a table of traffic and a run agree to the byte.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from railweave.collectives import plan as plan_collective
from railweave.fabric.beside import beside
from railweave.fabric.chain import parallel
from railweave.fabric.errors import InputError
from railweave.fabric.loops import expand
from railweave.fabric.schedule import NodeKind
from railweave.workloads.ops import op_groups

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.schedule import Schedule
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan

Pairs: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]"

_REMEMBERED: Final = 512  # schedules whose pairs are kept

__all__ = ["LinkBytes", "bytes_between", "group_schedule", "link_bytes", "op_schedule", "packed"]


@dataclass(frozen=True, eq=False)
class LinkBytes:
    """Bytes that each rank sends, by the class of link they leave on: int64 (ranks,) each.

    ``nvlink`` stays within a host (or an NVLink domain), ``network`` leaves it.
    """

    nvlink: NDArray[np.int64]
    network: NDArray[np.int64]

    @property
    def total(self) -> NDArray[np.int64]:
        """Bytes that each rank sends."""
        return self.nvlink + self.network


def packed(n_ranks: int, gpus_per_host: int) -> list[int]:
    """Return the host of each rank where ranks fill hosts in order.

    Raises
    ------
    InputError
        ``gpus_per_host`` is less than one.
    """
    if gpus_per_host < 1:
        raise InputError(
            f"{gpus_per_host} is too few", field="gpus_per_host", expected="at least 1"
        )
    return [rank // gpus_per_host for rank in range(n_ranks)]


def group_schedule(op: TrafficOp, hosts: Sequence[int]) -> Schedule:
    """Return what one group does in one of the operations.

    Parameters
    ----------
    op
        The operation.
    hosts
        Host of each rank of the group, which decides the algorithm of a collective.
    """
    n = len(hosts)
    if op.op == "send":
        return parallel(n, ((0, 1),), (op.size_bytes,))
    if op.matrix is not None:
        src, dst = np.nonzero(op.matrix)
        apart = src != dst
        src, dst = src[apart], dst[apart]
        order = np.lexsort((src, (dst - src) % n))  # by distance, as an even all_to_all
        pairs = tuple((int(src[i]), int(dst[i])) for i in order)
        sizes = tuple(int(op.matrix[pair]) for pair in pairs)
        return parallel(n, pairs, sizes, op="all_to_all")
    return plan_collective(op.op, ranks=n, size_bytes=op.size_bytes, hosts=tuple(hosts))


def _grouped(
    op: TrafficOp, plan: ParallelismPlan, hosts: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Schedule]]:
    """Yield each group and what it does; groups that lie alike on their hosts share a schedule."""
    known: dict[tuple[int, ...], Schedule] = {}
    for group in op_groups(op, plan):
        number: dict[int, int] = {}
        pattern = tuple(number.setdefault(hosts[rank], len(number)) for rank in group)
        if pattern not in known:
            known[pattern] = group_schedule(op, pattern)
        yield group, known[pattern]


def op_schedule(
    op: TrafficOp,
    plan: ParallelismPlan,
    ranks: Sequence[int],
    hosts: Sequence[int],
) -> Schedule | None:
    """Return what the groups among some ranks do at once; None if none of them is in a group.

    Parameters
    ----------
    op, plan
        The operation, and how the model is divided.
    ranks
        The ranks of the schedule: its rank i is ``ranks[i]``. Groups are in or out as a whole.
    hosts
        Host of every rank of the plan.
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    parts = []
    for group, schedule in _grouped(op, plan, hosts):
        if group[0] in place:
            parts.append((schedule, tuple(place[rank] for rank in group)))
    return beside(parts, n_ranks=len(ranks), op=op.op) if parts else None


_PAIRS: Final[OrderedDict[Hashable, Pairs]] = OrderedDict()


def _pairs(schedule: Schedule) -> Pairs:
    """Return source, destination and bytes of all transfers of a schedule, its loops run out."""
    known = _PAIRS.get(schedule.key) if schedule.key is not None else None
    if known is not None:
        return known
    whole = expand(schedule)
    moving = whole.kind == NodeKind.TRANSFER
    n = whole.n_ranks
    code = whole.src[moving].astype(np.int64) * n + whole.dst[moving]
    used, row = np.unique(code, return_inverse=True)
    size = np.zeros(len(used), np.int64)
    np.add.at(size, row, whole.size_bytes[moving])
    found = (used // n, used % n, size)
    if schedule.key is not None:
        _PAIRS[schedule.key] = found
        if len(_PAIRS) > _REMEMBERED:
            _PAIRS.popitem(last=False)
    return found


def bytes_between(op: TrafficOp, plan: ParallelismPlan, hosts: Sequence[int]) -> Pairs:
    """Return who sends how much to whom in all ``count`` operations, of all groups.

    Parameters
    ----------
    op, plan
        The operation, and how the model is divided.
    hosts
        Host of every rank of the plan.

    Returns
    -------
    Three int64 arrays, shape (pairs,): sending rank, receiving rank, payload bytes.
    """
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for group, schedule in _grouped(op, plan, hosts):
        src, dst, size = _pairs(schedule)
        at = np.array(group, np.int64)
        columns.append((at[src], at[dst], size * op.count))
    if not columns:
        none = np.zeros(0, np.int64)
        return none, none, none
    src, dst, size = (np.concatenate(column) for column in zip(*columns, strict=True))
    return src, dst, size


def link_bytes(ops: Iterable[TrafficOp], plan: ParallelismPlan, hosts: Sequence[int]) -> LinkBytes:
    """Return what each rank sends in all operations, by class of link.

    Parameters
    ----------
    ops, plan
        What `step_ops` or `training_ops` returned, and for which plan.
    hosts
        Host of every rank (`packed`, or as placed on a fabric).
    """
    home = np.array(hosts, np.int64)
    sent = np.zeros((2, plan.n_ranks), np.int64)
    for op in ops:
        src, dst, size = bytes_between(op, plan, hosts)
        leaves = (home[src] != home[dst]).astype(np.int64)
        np.add.at(sent, (leaves, src), size)
    return LinkBytes(nvlink=sent[0], network=sent[1])
