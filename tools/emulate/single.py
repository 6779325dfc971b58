# SPDX-License-Identifier: Apache-2.0
"""A schedule of one transfer over a known path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.binding import BoundSchedule
from railweave.fabric.schedule import ScheduleBuilder

if TYPE_CHECKING:
    from railweave.fabric.paths import PathTable

__all__ = ["single_transfer"]


def single_transfer(table: PathTable, path: int, size_bytes: int) -> BoundSchedule:
    """Return the bound schedule of one transfer of ``size_bytes`` over path number ``path``."""
    build = ScheduleBuilder(n_ranks=2)
    build.transfer(0, 1, size_bytes)
    plan, numbers = build.finish(), np.array([path], np.int32)
    return BoundSchedule(plan, table, numbers, table.wire_bytes(numbers, plan.size_bytes))
