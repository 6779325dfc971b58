# SPDX-License-Identifier: Apache-2.0
"""Many plain flows as one piece of work, so that starting them costs next to nothing each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.flow import FlowRecord
from railweave.fabric.rerouted import least
from railweave.fabric.schedule import NodeKind, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.binding import Binder, BoundSchedule
    from railweave.fabric.flow import Flow

__all__ = ["Batch", "is_plain"]


def is_plain(flow: Flow) -> bool:
    """Tell whether nothing but its ends and its size sets a flow apart from others."""
    return (
        flow.path is None
        and flow.qps in (None, 1)
        and flow.cap_bps is None
        and flow.weight == 1.0
        and flow.src != flow.dst
        and flow.size_bytes >= 0
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """Plain flows with the time at which each starts.

    ``start_ps`` int64 (flows,), ``bound`` a node for each flow that waits for its time, ``before``
    the same on the paths that the flows had before they were rerouted.
    """

    flows: Sequence[Flow]
    start_ps: NDArray[np.int64]
    bound: BoundSchedule
    before: tuple[BoundSchedule, ...] = ()

    @cached_property
    def least_ps(self) -> NDArray[np.int64]:
        """Lower bound of each flow's time, int64."""
        return (least([*self.before, self.bound]) if self.before else self.bound).least_ps

    def rerouted(self, bound: BoundSchedule) -> Batch:
        """Return the batch with what it has left to send on other paths."""
        return replace(self, bound=bound, before=(*self.before, self.bound))

    @classmethod
    def of(
        cls, binder: Binder, flows: Sequence[Flow], start_ps: NDArray[np.int64], *, now_ps: int
    ) -> Batch:
        """Route flows that start at ``now_ps`` or later, over one queue pair each."""
        count = len(flows)
        ends = np.array([(flow.src, flow.dst) for flow in flows], np.int32)
        devices, rank = np.unique(ends, return_inverse=True)
        rank = rank.reshape(-1, 2).astype(np.int32)
        plan = Schedule(
            n_ranks=len(devices),
            kind=np.full(count, NodeKind.TRANSFER, np.int32),
            src=np.ascontiguousarray(rank[:, 0]),
            dst=np.ascontiguousarray(rank[:, 1]),
            size_bytes=np.array([flow.size_bytes for flow in flows], np.int64),
            delay_ps=start_ps - now_ps,
            n_deps=np.zeros(count, np.int32),
            succ_ptr=np.zeros(count + 1, np.int32),
            succ=np.zeros(0, np.int32),
        )
        return cls(flows, start_ps, binder.bind(plan, devices.astype(np.int32)))

    def early(self, end_ps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the flows that ended before their lower bound, beyond float rounding."""
        took, bound = end_ps - self.start_ps, self.least_ps
        return np.flatnonzero((end_ps >= 0) & (took < bound - 2 - bound * 1e-9))

    def records(self, end_ps: NDArray[np.int64]) -> Iterator[FlowRecord]:
        """Yield the record of each flow; ``end_ps`` is -1 where it has not ended."""
        bound, table = self.bound, self.bound.table
        links: dict[int, tuple[int, ...]] = {}
        columns = (self.start_ps, end_ps, self.least_ps, bound.wire_bytes, bound.path)
        for flow, start, end, bound_ps, wire, path in zip(
            self.flows, *(column.tolist() for column in columns), strict=True
        ):
            if path not in links:
                links[path] = tuple(table.links_of(path).tolist())
            yield FlowRecord(
                flow=flow, start_ps=start, end_ps=end, bound_ps=bound_ps, wire_bytes=wire,
                path=links[path],
            )  # fmt: skip
