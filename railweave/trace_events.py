# SPDX-License-Identifier: Apache-2.0
"""A run as a timeline that Perfetto and chrome://tracing open.

Trace Event Format (Google, "Trace Event Format", JSON object form): flows and collectives are
nestable async events, a process per host, since flows of one device may overlap. Times are in
microseconds of simulated time. Perfetto opens the file gzipped as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.engine import SERIES

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric
    from railweave.result import Result

__all__ = ["MAX_EVENTS", "trace_events"]

MAX_EVENTS: Final = 50_000
"""Most flows in a timeline (about 15 MB of JSON): beyond it the shortest are left out."""

_PS_PER_US: Final = 10**6
_COLLECTIVES_PID: Final = 0


def _us(time_ps: int) -> float:
    return time_ps / _PS_PER_US


def _pid(fabric: Fabric, device: int) -> int:
    host = int(fabric.host[device])
    return host + 1 if host >= 0 else len(fabric.host_names) + 1 + device


def _process(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def _span(
    *,
    name: str,
    category: str,
    identity: str,
    pid: int,
    start_ps: int,
    end_ps: int,
    args: dict[str, Any],
) -> list[dict[str, Any]]:
    common = {"name": name, "cat": category, "id": identity, "pid": pid, "tid": 0}
    return [
        {"ph": "b", **common, "ts": _us(start_ps), "args": args},
        {"ph": "e", **common, "ts": _us(end_ps)},
    ]


def _instants(result: Result) -> list[dict[str, Any]]:
    """Return a mark across the timeline for each fault, each end of one, and each reroute."""
    marks = [
        (row["at_ps"], f"{row['what']} {row['did']}", "fault")
        for row in result.network.get("faults", ())
    ] + [
        (row["at_ps"], f"{row['paths']} routes changed", "reroute")
        for row in result.network.get("reroutes", ())
    ]
    if not marks:
        return []
    fabric = result.fabric
    pid = len(fabric.host_names) + 1 + fabric.n_devices  # after those of hosts and devices
    return [_process(pid, "faults")] + [
        {"ph": "i", "s": "g", "name": name, "cat": category, "pid": pid, "tid": 0, "ts": _us(at)}
        for at, name, category in sorted(marks)
    ]


def _counters(result: Result) -> list[dict[str, Any]]:
    """Return counter tracks of sampled ports: the queue, and the share of time paused."""
    if not result.port_series:
        return []
    fabric = result.fabric
    pid = len(fabric.host_names) + 2 + fabric.n_devices
    queue, paused = 2 + SERIES.index("queue_bytes"), 2 + SERIES.index("paused_ps")
    events = [_process(pid, "ports")]
    before: dict[str, tuple[int, int]] = {}
    for row in result.port_series:
        at, port = row[0], row[1]
        last_at, last_paused = before.get(port, (0, 0))
        share = (row[paused] - last_paused) / max(at - last_at, 1)
        before[port] = at, row[paused]
        common = {"ph": "C", "pid": pid, "tid": 0, "ts": _us(at)}
        events += [
            {**common, "name": f"queue {port}", "args": {"bytes": row[queue]}},
            {**common, "name": f"paused {port}", "args": {"share": round(share, 6)}},
        ]
    return events


def _tracks(result: Result) -> list[dict[str, Any]]:
    """Return what workloads did on tracks of their own, such as the steps of a replica."""
    first = len(result.fabric.host_names) + 3 + result.fabric.n_devices  # after the ports
    pids = {name: first + i for i, name in enumerate(dict.fromkeys(s.track for s in result.tracks))}
    events = [_process(pid, name) for name, pid in pids.items()]
    for number, span in enumerate(result.tracks):
        events += _span(
            name=span.name,
            category="step",
            identity=f"t{number}",
            pid=pids[span.track],
            start_ps=span.start_ps,
            end_ps=span.end_ps,
            args=dict(span.args),
        )
    return events


def trace_events(result: Result) -> dict[str, Any]:
    """Return the trace object of a run.

    Flows that had not ended reach to the end of the run and say so. Beyond `MAX_EVENTS` flows the
    longest are kept and ``otherData`` tells how many were left out. Faults and reroutes are
    instants across all processes.
    """
    fabric, end_ps = result.fabric, result.sim_time_ps
    flows = [(i, r, r.end_ps if r.end_ps >= 0 else end_ps) for i, r in enumerate(result.records)]
    if len(flows) > MAX_EVENTS:
        flows.sort(key=lambda item: (item[1].start_ps - item[2], item[0]))
        flows = sorted(flows[:MAX_EVENTS], key=lambda item: item[0])
    pids = {_pid(fabric, record.flow.src): record.flow.src for _, record, _ in flows}
    events = [
        _process(
            pid,
            fabric.host_names[pid - 1]
            if pid <= len(fabric.host_names)
            else fabric.device_names[device],
        )
        for pid, device in sorted(pids.items())
    ]
    if result.executed:
        events.insert(0, _process(_COLLECTIVES_PID, "collectives"))
    for number, collective in enumerate(result.executed):
        events += _span(
            name=collective.tag or "collective",
            category="collective",
            identity=f"c{number}",
            pid=_COLLECTIVES_PID,
            start_ps=collective.start_ps,
            end_ps=collective.end_ps,
            args={
                "ranks": collective.ranks,
                "transfers": collective.transfers,
                "size_bytes": collective.size_bytes,
                "repeat": collective.repeat,
                "bound_us": _us(collective.bound_ps),
            },
        )
    for number, record, shown_end_ps in flows:
        flow = record.flow
        events += _span(
            name=flow.id,
            category=flow.tag or "flow",
            identity=f"f{number}",
            pid=_pid(fabric, flow.src),
            start_ps=record.start_ps,
            end_ps=shown_end_ps,
            args={
                "src": fabric.device_names[flow.src],
                "dst": fabric.device_names[flow.dst],
                "size_bytes": flow.size_bytes,
                "bound_us": _us(record.bound_ps),
                "ended": record.end_ps >= 0,
            },
        )
    events += _instants(result) + _counters(result) + _tracks(result)
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "railweave": result.provenance.version,
            "engine": result.engine,
            "status": result.status,
            "flows_left_out": len(result.records) - len(flows),
        },
        "traceEvents": events,
    }
