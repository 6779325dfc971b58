# SPDX-License-Identifier: Apache-2.0
"""A fabric as a NetworkX graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

from railweave.fabric.kinds import DeviceKind, LinkModel

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["frozen_graph"]


def frozen_graph(fabric: Fabric) -> nx.MultiDiGraph:
    """Return the graph that `Fabric.graph` describes."""
    graph = nx.MultiDiGraph(name=fabric.name)
    for i, name in enumerate(fabric.device_names):
        host = int(fabric.host[i])
        graph.add_node(
            name,
            device=i,
            kind=DeviceKind(int(fabric.kind[i])).name.lower(),
            host=fabric.host_names[host] if host >= 0 else None,
            tier=int(fabric.tier[i]),
            group=int(fabric.group[i]),
            rail=int(fabric.rail[i]),
            model=fabric.model[i],
        )
    for link in range(fabric.n_links):
        graph.add_edge(
            fabric.device_names[fabric.link_src[link]],
            fabric.device_names[fabric.link_dst[link]],
            key=fabric.link_name(link),
            link=link,
            rate_bps=int(fabric.link_rate_bps[link]),
            delay_ps=int(fabric.link_delay_ps[link]),
            model=LinkModel(int(fabric.link_model[link])).label,
            tier=fabric.link_tier[link],
            up=bool(fabric.link_up[link]),
        )
    return nx.freeze(graph)
