# SPDX-License-Identifier: Apache-2.0
"""One workload on one design under several transports, packet by packet, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from railweave.result import Result

__all__ = ["TRANSPORTS", "TransportRun", "packet_hops", "transport_runs"]

_LOSSY: Final = {"network.pfc": {"enabled": False}, "network.retries": 1000}
_DCQCN: Final = {"network.cc": {"kind": "dcqcn"}}
_PLAIN: Final = {"network.cc": {"kind": "none"}, "network.ecn": {"enabled": False}}

TRANSPORTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "lossless: PFC, ECN, DCQCN": _DCQCN,
    "lossless: PFC alone": _PLAIN,
    "loss-tolerant: selective repeat, DCQCN": {
        **_LOSSY, **_DCQCN, "network.recovery": "selective-repeat",
    },
    "loss-tolerant: go-back-N, DCQCN": {**_LOSSY, **_DCQCN, "network.recovery": "go-back-n"},
    "trimming, spray, credit": {
        **_LOSSY, "network.recovery": "trim", "routing.policy": "spray",
    },
}  # fmt: skip
"""Keys of a scenario that make each: f, g and h of the alternatives that architects compare."""

_MOST_HOPS: Final = 200_000_000
"""Packets times links that one run may take: about a minute of emulation (measured: 3 to 10
million a second, docs/packet.md)."""


@dataclass(frozen=True, kw_only=True)
class TransportRun:
    """How a workload fared under a transport.

    Parameters
    ----------
    workload, transport
        Names.
    time_ps, p99_ps
        Until all was done, and of the flows; None where it did not end, or has no flows.
    pause_frames, paused_ps, victims
        Pauses sent, time that links stood paused, flows held up that do not cross the congestion.
    drops, trims, timeouts, resent_bytes
        Packets lost to full buffers, cut to headers, timers that ran out, bytes sent again.
    headroom_bytes
        Buffer that pauses take away from queues.
    said, run
        Why it did not end; the digest of the resolved scenario.
    scenario
        That scenario.
    """

    workload: str
    transport: str
    time_ps: int | None = None
    p99_ps: int | None = None
    pause_frames: int = 0
    paused_ps: int = 0
    victims: int = 0
    drops: int = 0
    trims: int = 0
    timeouts: int = 0
    resent_bytes: int = 0
    headroom_bytes: int = 0
    said: str = ""
    run: str = ""
    scenario: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: value for name, value in vars(self).items() if name != "scenario"}


def packet_hops(result: Result, mtu_bytes: int) -> int:
    """Return how many packets times network links a result's bytes make."""
    links = result.links
    carried = links.wire_bytes[links.fabric.link_network]
    return int(carried.sum()) // mtu_bytes


def transport_runs(
    workload: str,
    scenario: Path,
    topology: str | None,
    healthy: Result | None,
    names: Iterable[str] = TRANSPORTS,
) -> list[TransportRun]:
    """Run a workload under each transport on the packet engine.

    Parameters
    ----------
    workload, scenario, topology
        The workload's name, its scenario, and what it runs on instead of its own topology.
    healthy
        What a run on another engine gave: it tells how long a packet run would take. None: it
        cannot run.
    names
        Of `TRANSPORTS`.
    """
    from railweave.fabric.kinds import LinkModel
    from railweave.tools.job_time import load_on, result_on

    names = list(names)
    if healthy is None:
        return []
    fabric = healthy.links.fabric
    models = fabric.link_model[fabric.link_network]
    if (models == LinkModel.INFINIBAND).any():
        why = "the links are InfiniBand: lossless by credit, and nothing else"
        return [TransportRun(workload=workload, transport=name, said=why) for name in names]
    mtu = load_on(scenario, topology).settings.mtu_bytes
    hops = packet_hops(healthy, mtu)
    if hops > _MOST_HOPS:
        why = (
            f"not run: {hops / 1e6:,.0f} million packet hops are more than "
            f"{_MOST_HOPS / 1e6:,.0f} million; give a smaller workload for this table"
        )
        return [TransportRun(workload=workload, transport=name, said=why) for name in names]
    found = []
    for name in names:
        keys = {"engine": "packet", **TRANSPORTS[name]}
        job, result = result_on(scenario, topology, overrides=keys)
        net: Mapping[str, Any] = result.network if result is not None else {}
        found.append(
            TransportRun(
                workload=workload,
                transport=name,
                time_ps=job.time_ps,
                p99_ps=result.flows.fct_p99_ps if result is not None else None,
                pause_frames=int(net.get("pause_frames", 0)),
                paused_ps=int(net.get("paused_ps_total", 0)),
                victims=int(net.get("victim_count", 0)),
                drops=int(net.get("drops", {}).get("buffer", 0)),
                trims=int(net.get("trims", 0)),
                timeouts=int(net.get("timeouts", 0)),
                resent_bytes=int(net.get("retransmitted_bytes", 0)),
                headroom_bytes=int(net.get("headroom_bytes", 0)),
                said=job.said,
                run=job.run,
                scenario=job.scenario,
            )
        )
    return found
