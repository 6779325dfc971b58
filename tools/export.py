# SPDX-License-Identifier: Apache-2.0
"""A fabric as JSON for other tools: NetworkX's node-link format with a schema number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["NODE_LINK_SCHEMA", "to_node_link"]

NODE_LINK_SCHEMA: Final = 1


def to_node_link(fabric: Fabric) -> str:
    """Return the fabric as node-link JSON text.

    ``networkx.node_link_graph(json.loads(text), edges="edges")`` gives `Fabric.graph` back. There
    is an edge per direction and per cable; rates are in bit/s, delays in ps.
    """
    import networkx as nx

    data = nx.node_link_data(fabric.graph, edges="edges")
    return json.dumps({"schema": NODE_LINK_SCHEMA, **data}, indent=1, allow_nan=False) + "\n"
