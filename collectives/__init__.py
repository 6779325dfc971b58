# SPDX-License-Identifier: Apache-2.0
"""Collective operations as schedules: graphs of chunk transfers that any engine can execute."""

from railweave.collectives.algorithm import algorithms
from railweave.collectives.busbw import (
    algorithm_bandwidth_Bps,
    bus_bandwidth_Bps,
    busbw_factor,
    closed_form_ps,
)
from railweave.collectives.operations import canonical_op
from railweave.collectives.planner import plan
from railweave.collectives.verify import verify

__all__ = [
    "algorithm_bandwidth_Bps",
    "algorithms",
    "bus_bandwidth_Bps",
    "busbw_factor",
    "canonical_op",
    "closed_form_ps",
    "plan",
    "verify",
]
