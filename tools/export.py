# SPDX-License-Identifier: Apache-2.0
"""A fabric as JSON for other tools: NetworkX's node-link format with a schema number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.graph import DeviceKind, LinkModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from railweave.fabric.graph import Fabric

__all__ = ["NODE_LINK_SCHEMA", "to_node_link"]

NODE_LINK_SCHEMA: Final = 1


def to_node_link(fabric: Fabric) -> str:
    """Return the fabric as node-link JSON text, a line per node and per edge.

    ``networkx.node_link_graph(json.loads(text), edges="edges")`` gives `Fabric.graph` back. There
    is an edge per direction and per cable; rates are in bit/s, delays in ps.
    """
    head = {
        "schema": NODE_LINK_SCHEMA,
        "directed": True,
        "multigraph": True,
        "graph": {"name": fabric.name},
    }
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts.append(f' "nodes": [\n{_lines(_nodes(fabric))}\n ]')
    parts.append(f' "edges": [\n{_lines(_edges(fabric))}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    encode = json.JSONEncoder(allow_nan=False).encode
    return ",\n".join(f"  {encode(row)}" for row in rows)


def _nodes(fabric: Fabric) -> Iterator[dict[str, Any]]:
    """Yield what `Fabric.graph` says of each device; arrays become lists once, not item by item."""
    kinds = {kind.value: kind.name.lower() for kind in DeviceKind}
    hosts = (*fabric.host_names, None)  # [-1]: outside hosts
    columns = (fabric.kind, fabric.host, fabric.tier, fabric.group, fabric.rail)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for device, (kind, host, tier, group, rail) in enumerate(rows):
        yield {
            "device": device,
            "kind": kinds[kind],
            "host": hosts[host],
            "tier": tier,
            "group": group,
            "rail": rail,
            "model": fabric.model[device],
            "id": fabric.device_names[device],
        }


def _edges(fabric: Fabric) -> Iterator[dict[str, Any]]:
    """Yield what `Fabric.graph` says of each link, in order of links."""
    models = {model.value: model.label for model in LinkModel}
    columns = (
        fabric.link_src,
        fabric.link_dst,
        fabric.link_src_port,
        fabric.link_dst_port,
        fabric.link_rate_bps,
        fabric.link_delay_ps,
        fabric.link_model,
        fabric.link_up,
    )
    names = fabric.device_names
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for link, (src, dst, src_port, dst_port, rate, delay, model, up) in enumerate(rows):
        yield {
            "link": link,
            "rate_bps": rate,
            "delay_ps": delay,
            "model": models[model],
            "tier": fabric.link_tier[link],
            "up": up,
            "source": names[src],
            "target": names[dst],
            "key": f"{names[src]}:{src_port}>{names[dst]}:{dst_port}",
        }
