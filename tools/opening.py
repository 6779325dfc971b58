# SPDX-License-Identifier: Apache-2.0
"""Open what a command was given: a topology by its file or its name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = ["open_topology"]


def open_topology(source: str) -> "tuple[TopologySpec, Fabric]":
    """Load and build a topology file or a shipped design."""
    from railweave.topologies.load import build_topology, load_topology

    spec = load_topology(source)
    return spec, build_topology(spec)
