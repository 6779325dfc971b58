# SPDX-License-Identifier: Apache-2.0
"""What a packet run shows beside times, under the names that vendors give their counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.packet.victims import MOST_VICTIMS, victims

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.packet.engine import PacketEngine

__all__ = ["flow_columns", "flow_counts", "link_columns", "network_totals"]


def network_totals(engine: PacketEngine) -> dict[str, Any]:
    """Return totals over the whole network, for ``result.json``."""
    state = engine.state
    run, egress = state.run, state.egress
    paused = state.paused_ps(engine.now_ps)
    slowed = victims(engine, paused.reshape(engine.fabric.n_links, -1).sum(axis=1))
    return {
        "pause_frames": int(state.ingress.sent.sum()),
        "resume_frames": int(state.ports.pauses.sum() - state.ingress.sent.sum()),
        "paused_ps_total": int(paused.sum()),
        "ecn_marked": int(egress.marked.sum()),
        "cnps": int(run.cnps),
        "acks": int(run.acks),
        "naks": int(run.naks),
        "drops": {
            "buffer": int(run.drops_buffer - run.violations),
            "lossless_violation": int(run.violations),
            "random": int(run.drops_random),
            "link_down": int(run.drops_down),
            "watchdog": int(run.drops_watchdog),
        },
        "trims": int(run.trims),
        "pulls": int(run.pulls),
        "timeouts": int(run.timeouts),
        "retransmitted_bytes": int(run.resent),
        "out_of_sequence": int(run.late),
        "deadlock": [
            {"link": engine.fabric.link_name(link), "priority": priority}
            for link, priority in engine.cycle
        ],
        "headroom_bytes": int(state.ingress.room[state.ingress.kind == 1].sum()),
        "victim_count": len(slowed),
        "victims": slowed[:MOST_VICTIMS],
        **_quantum(engine),
    }


def _quantum(engine: PacketEngine) -> dict[str, Any]:
    """Return how many packets went as one, and what share of all packet-hops did."""
    packets, run = engine.packet.quantum, engine.state.run
    if packets == 1:
        return {}
    share = int(run.train_hops) / int(run.hops) if run.hops else 0.0
    return {"quantum": {"packets": packets, "share": round(share, 6)}}


def link_columns(engine: PacketEngine) -> dict[str, list[int]]:
    """Return further columns of ``links.csv``, a row per link.

    Where data has several priorities, what is counted by priority stands once more for each, with
    ``_p3`` and the like after its name.
    """
    state = engine.state
    classes, links = len(state.priorities), engine.fabric.n_links
    egress, ingress = state.egress, state.ingress

    def per_link(values: Any) -> Any:
        return np.asarray(values).reshape(links, classes)

    back = np.arange(links) ^ 1
    by_class = {
        "pause_frames_sent": per_link(ingress.sent)[back],
        "pause_frames_received": per_link(egress.pauses),
        "paused_ps": per_link(state.paused_ps(engine.now_ps)),
        "ecn_marked": per_link(egress.marked),
        "dropped": per_link(egress.dropped + ingress.dropped),
        "lost": per_link(egress.lost),
        "trimmed": per_link(egress.trimmed),
        "peak_queue_bytes": per_link(egress.peak),
        "peak_ingress_bytes": per_link(ingress.peak),
    }
    data = {
        name: rows.max(axis=1) if name.startswith("peak") else rows.sum(axis=1)
        for name, rows in by_class.items()
    }
    ends = state.kept + state.end_counts(np.arange(state.n_qps))
    data |= dict(zip(("cnps", "retransmitted_bytes", "out_of_sequence"), ends, strict=True))
    if engine.sampler is not None:
        data |= engine.sampler.percentiles()
    if classes > 2:
        for klass, priority in enumerate(state.priorities[:-1]):
            data |= {f"{name}_p{priority}": rows[:, klass] for name, rows in by_class.items()}
    return {name: [int(value) for value in column] for name, column in data.items()}


FLOW_COUNTS: Final = (
    *("ecn_marked", "cnps", "naks", "timeouts", "retransmitted_bytes", "out_of_sequence"),
)
"""Counters of ``flows.csv``; marks at the receiver, notifications at the sender."""


def flow_counts(engine: PacketEngine, pairs: list[int]) -> NDArray[np.int64]:
    """Sum the counters of a flow over its queue pairs, int64 (`FLOW_COUNTS`,)."""
    qps, rates = engine.state.qps, engine.state.rates
    columns = (qps.marks, rates.cnps, qps.naks, qps.timeouts, qps.resent, qps.late)
    return np.array([column[pairs].sum() for column in columns], np.int64)


def flow_columns(engine: PacketEngine) -> dict[str, list[Any]]:
    """Return further columns of ``flows.csv``, a row per flow."""
    counts = np.array([engine.counts_of(i) for i in range(len(engine.records()))], np.int64)
    counts = counts.reshape(-1, len(FLOW_COUNTS))
    columns: dict[str, list[Any]] = {
        name: counts[:, i].tolist() for i, name in enumerate(FLOW_COUNTS)
    }
    name_of = engine.fabric.link_name
    columns["path"] = [" ".join(map(name_of, record.path)) for record in engine.records()]
    return columns
