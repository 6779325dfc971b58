# SPDX-License-Identifier: Apache-2.0
"""What the script of a report works on, packed so that it fits into the page.

Everything is JSON, deflated (RFC 1951) and in base64, so that no byte of it can end the element
that holds it; a browser inflates it with its own `DecompressionStream`.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.fault_names import links_of
from railweave.tools.report.map_data import map_of
from railweave.tools.report.routes import flow_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.tools.report.run_data import FlowRow, Run

__all__ = ["MOST_FLOWS", "MOST_VALUES", "pack", "payload_of", "shown_flows"]

MOST_FLOWS: Final = 5_000
"""Most flows in a report, the longest; `flows.csv` has all."""
MOST_VALUES: Final = 2_000_000
"""Most values in the timeline of a report, a byte each; beyond, intervals are joined."""
_DEAREST: Final = 9


def pack(data: Any) -> str:
    """Return data as base64 of deflated JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packer = zlib.compressobj(_DEAREST, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()


def shown_flows(run: Run) -> list[FlowRow]:
    """Return the flows that a report has, in order of start."""
    flows = list(enumerate(run.flows))
    if len(flows) > MOST_FLOWS:
        span = run.span_ps
        lasted = [(one.end_ps if one.end_ps >= 0 else span) - one.start_ps for _, one in flows]
        flows.sort(key=lambda item: (-lasted[item[0]], item[0]))
        flows = sorted(flows[:MOST_FLOWS])
    return [flow for _, flow in flows]


def _share_bytes(shares: NDArray[np.float64]) -> str:
    """Return shares of 0 to 1 as base64 of a byte each: 255 is 1, and anything above 0 shows."""
    scaled = np.rint(np.minimum(shares, 1.0) * 255)
    scaled[(shares > 0) & (scaled == 0)] = 1
    return base64.b64encode(scaled.astype(np.uint8).tobytes()).decode()


def _timeline(run: Run) -> dict[str, Any] | None:
    line = run.timeline
    if line is None:
        return None
    measures = 2 if "paused_ps" in line.values else 1
    line = line.coarser(MOST_VALUES // max(1, measures * len(line.links)))
    paused = line.paused()
    found: dict[str, Any] = {
        "edges": line.edges_ps.tolist(),
        "links": line.links.tolist(),
        "load": _share_bytes(line.load(run.fabric)),
    }
    if paused is not None and paused.any():
        found["paused"] = _share_bytes(paused)
    return found


def _outages(run: Run) -> list[list[int]]:
    """Return what was down and when: link, first and last instant in ps, of faults in mid-run."""
    found: list[list[int]] = []
    if run.scenario is None:
        return found
    for fault in run.scenario.model.faults:
        if fault.do != "down" or fault.at == 0:
            continue
        end_ps = run.span_ps if fault.duration is None else fault.at + fault.duration
        for link in links_of(run.fabric, link=fault.link, node=fault.node):
            ended = [
                other.at
                for other in run.scenario.model.faults
                if other.do == "up"
                and other.at >= fault.at
                and (other.link, other.node) == (fault.link, fault.node)
            ]
            found.append([link, fault.at, min([end_ps, *ended])])
    return found


def _flows(run: Run, flows: Sequence[FlowRow]) -> dict[str, Any]:
    index = run.fabric.device_index
    tags = sorted({flow.tag for flow in flows})
    number = {tag: i for i, tag in enumerate(tags)}
    links = flow_links(run, flows)
    names = [name for name in (flows[0].counters if flows else ()) if name]
    return {
        "total": len(run.flows),
        "id": [flow.id for flow in flows],
        "src": [index.get(flow.src, -1) for flow in flows],
        "dst": [index.get(flow.dst, -1) for flow in flows],
        "size": [flow.size_bytes for flow in flows],
        "wire": [flow.wire_bytes for flow in flows],
        "start": [flow.start_ps for flow in flows],
        "end": [flow.end_ps for flow in flows],
        "bound": [flow.bound_ps for flow in flows],
        "tag": [number[flow.tag] for flow in flows],
        "tags": tags,
        "links": [list(found) for found in links],
        "shares": [
            [] if all(share == 1.0 for share in found.values()) else [*found.values()]
            for found in links
        ],
        "counters": {name: [flow.counters.get(name, "") for flow in flows] for name in names},
    }


def payload_of(run: Run, flows: Sequence[FlowRow]) -> dict[str, Any]:
    """Return everything that the page's script shows of a run.

    Links are directed and numbered as in the fabric; times are in ps.
    """
    fabric = run.fabric
    tiers = list(dict.fromkeys(fabric.link_tier))
    tier = {name: i for i, name in enumerate(tiers)}
    rates = sorted({int(rate) for rate in fabric.link_rate_bps})
    rate = {value: i for i, value in enumerate(rates)}
    return {
        "span": run.span_ps,
        "devices": list(fabric.device_names),
        "models": sorted(set(fabric.model)),
        "model": [sorted(set(fabric.model)).index(name) for name in fabric.model]
        if len(set(fabric.model)) < 64
        else [],
        "kind": fabric.kind.tolist(),
        "hostOf": fabric.host.tolist(),
        "hosts": list(fabric.host_names),
        "links": {
            "src": fabric.link_src.tolist(),
            "dst": fabric.link_dst.tolist(),
            "srcPort": fabric.link_src_port.tolist(),
            "dstPort": fabric.link_dst_port.tolist(),
            "rates": rates,
            "rate": [rate[value] for value in fabric.link_rate_bps.tolist()],
            "tiers": tiers,
            "tier": [tier[name] for name in fabric.link_tier],
            "down": np.flatnonzero(~fabric.link_up).tolist(),
            "network": np.flatnonzero(fabric.link_network[::2]).tolist(),
            "wire": run.wire_bytes.tolist(),
            "ack": run.ack_bytes.tolist(),
            "used": np.round(run.utilisation, 6).tolist(),
            "counters": {
                name: column.tolist() for name, column in run.counters.items() if column.any()
            },
        },
        "outages": _outages(run),
        "flows": _flows(run, flows),
        "timeline": _timeline(run),
        "map": map_of(fabric),
    }
