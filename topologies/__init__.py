# SPDX-License-Identifier: Apache-2.0
"""Topologies: a parameter file becomes a fabric. One file per kind, and the shipped designs."""

from railweave.topologies.load import (
    TopologySpec,
    build_topology,
    load_topology,
    shipped_designs,
)

__all__ = ["TopologySpec", "build_topology", "load_topology", "shipped_designs"]
