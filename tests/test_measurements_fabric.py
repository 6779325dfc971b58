# SPDX-License-Identifier: Apache-2.0
"""What others published of fabrics: rails, hash collisions, pauses and losses, executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import railweave
from railweave.fabric.schedule import NodeKind, ScheduleBuilder
from railweave.runner import run_scenario
from railweave.tools.bench import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.fabric.schedule import Schedule

GIB = 2**30
HOSTS, GPUS, NICS = 2, 8, 4  # of two p5.48xlarge: 32 NICs of 100 Gb/s each


# ---------------------------------------------------------------- 9: rails
def nic(host: int, gpu: int, number: int) -> int:
    return (host * GPUS + gpu) * NICS + number


def writes(*, aligned: bool, per_peer: int, block: int, window: int, size_bytes: int) -> Schedule:
    """Return the writes of uccl-project/uccl ep/bench/alltoall (test_alltoall.cpp, .._rail.cpp).

    Each GPU writes to the eight GPUs of the other host in turn, or only to that of its rail. A
    peer's messages take the GPU's NICs in turn, ``block`` on each; whoever finds ``window`` under
    way on the NIC whose turn it is waits, and all later messages with it.
    """
    build = ScheduleBuilder(n_ranks=HOSTS * GPUS * NICS)
    for host in range(HOSTS):
        for gpu in range(GPUS):
            peers = [gpu] if aligned else list(range(GPUS))
            sent: list[list[int]] = [[] for _ in range(NICS)]
            posted: list[int] = []
            for message in range(per_peer * GPUS):
                number = message // len(peers) // block % NICS
                full = sent[number][-window:][:1] if len(sent[number]) >= window else []
                own = nic(host, gpu, number)
                posted = [build.work(own, 0, after=[*posted, *full], kind=NodeKind.BARRIER)]
                peer = nic(1 - host, peers[message % len(peers)], number)
                sent[number].append(build.transfer(own, peer, size_bytes, after=posted))
    return build.finish()


def test_rail_aligned_writes_over_crossing_ones() -> None:
    """Published at 4 MiB: 43.7 and 20.1 GB/s for each GPU, 2.2 times.

    With eight peers a block of 64 messages to each is more than a NIC's window of 256, so that two
    of the four NICs are busy; with one peer all are. Blocks and windows here are a quarter.
    """
    names = [f"h{i}" for i in range(HOSTS * GPUS * NICS)]
    links = [{"ends": [name, "s"], "rate": "100Gbps", "delay": "500ns"} for name in names]
    nodes = {**dict.fromkeys(names, "host"), "s": "switch"}
    fabric = railweave.build_topology(
        railweave.load_topology({"kind": "custom", "nodes": nodes, "links": links})
    )
    rate_GBps = {}
    for aligned in (True, False):
        schedule = writes(aligned=aligned, per_peer=256, block=16, window=64, size_bytes=4 * 2**20)
        env = railweave.FabricEnvironment()
        settings = railweave.NetworkSettings()
        engine = railweave.make_engine("fluid", env, fabric, railweave.Routing(fabric), settings)
        env.run(until=engine.execute(schedule, [int(gpu) for gpu in fabric.gpus]))
        rate_GBps[aligned] = schedule.total_bytes / (HOSTS * GPUS) / (env.now / 1e3)
    assert rate_GBps[True] == pytest.approx(43.7, rel=0.25)
    assert rate_GBps[False] == pytest.approx(20.1, rel=0.25)
    assert rate_GBps[True] / rate_GBps[False] == pytest.approx(43.7 / 20.1, rel=0.25)


RAILS = """\
schema: 1
name: two
kind: {kind}
hosts: {{count: 2, model: dgx-h100}}
group: 2
leaf: {{switch: spectrum-4}}
{spine}links:
  host-leaf: {{model: roce-lossless, rate: 400Gbps, length: 3m}}
{wire}network: {{mtu: 4096B}}
"""


def test_rails_alone_over_full_bisection(tmp_path: Path) -> None:
    """Blocks that change rails inside the host first: published 8 to 11 % more on rails alone."""
    many, only = tmp_path / "many.yaml", tmp_path / "only.yaml"
    spine = 'spine: {switch: spectrum-4, oversubscription: "1:1", count: 2}\n'
    wire = "  leaf-spine: {model: roce-lossless, rate: 400Gbps, length: 10m}\n"
    many.write_text(RAILS.format(kind="rail-optimized", spine=spine, wire=wire))
    only.write_text(RAILS.format(kind="rail-only", spine="", wire=""))
    size = 16 * 4 * 2**20  # 4 MiB to each peer

    def us(path: Path, algorithm: str, policy: str = "ecmp") -> float:
        bench = Bench(
            "alltoall", topology=str(path), algorithm=algorithm, policy=policy, profile="auto"
        )
        return bench.run(size).time_ps / 1e6

    aligned = us(many, "pxn")
    assert us(many, "direct") / aligned == pytest.approx(1.22, abs=0.01)  # ECMP of two spines
    assert us(only, "pxn") == pytest.approx(aligned)  # nothing crosses rails any more
    assert us(only, "pxn") / us(many, "direct", "spray") == pytest.approx(1.095, abs=0.025)


# ---------------------------------------------------------------- 10: collisions of hashed paths
def test_collisions_cost_and_queue_pairs_help(tmp_path: Path) -> None:
    """Rings over three hosts, each below a leaf of its own with eight uplinks.

    What queue pairs give that go on each by itself is in test_fluid_load_balance: 0.555 of the
    wires with one of them, 0.933 with 8, 0.977 with 16.
    """
    path = tmp_path / "tor.yaml"
    path.write_text(
        "schema: 1\nname: tor\nkind: leaf-spine\nhosts: {count: 3, model: dgx-h100}\n"
        "leaf: {switch: spectrum-4, hosts: 1}\n"
        'spine: {switch: spectrum-4, oversubscription: "1:1", count: 8}\n'
        "links:\n"
        "  host-leaf: {model: roce-lossless, rate: 400Gbps, length: 3m}\n"
        "  leaf-spine: {model: roce-lossless, rate: 400Gbps, length: 10m}\n"
    )

    def busbw(policy: str, qps: int) -> float:
        found = [
            Bench(
                "all_reduce", topology=str(path), algorithm="Ring", policy=policy, qps=qps,
                qp_mode="round-robin", seed=seed, profile="auto",
            ).run(GIB).bus_Bps
            for seed in (1, 2, 3)
        ]  # fmt: skip
        return sum(found) / len(found)

    spray = busbw("spray", 1)
    few = [busbw("ecmp", qps) / spray for qps in (1, 4, 16)]
    assert few == [pytest.approx(share, abs=0.01) for share in (0.39, 0.53, 0.72)]
    assert spray / 1e9 >= 0.93 * 372


# ---------------------------------------------------------------- 11: pauses, congestion, losses
def rates_Gbps(network: dict[str, Any], flows: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Return the mean rate of flows of 100 MB over two switches, by name."""
    senders = {"a": "s1", "b": "s1", "v": "s1", "lone": "s2"}
    cables = [*senders.items(), ("r1", "s2"), ("r2", "s2")]
    links = [{"ends": [*ends], "rate": "100Gbps", "delay": "500ns"} for ends in cables]
    links.append({"ends": ["s1", "s2"], "rate": "400Gbps", "delay": "500ns"})
    nodes = {**dict.fromkeys((*senders, "r1", "r2"), "host"), "s1": "switch", "s2": "switch"}
    scenario = {
        "schema": 1,
        "engine": "packet",
        "topology": {"kind": "custom", "nodes": nodes, "links": links},
        "network": network,
        "workload": {
            "kind": "flows",
            "flows": [
                {"id": name, "src": src, "dst": dst, "size": "100MB"}
                for name, (src, dst) in flows.items()
            ],
        },
    }
    result = run_scenario(scenario).raise_for_status()
    found = {record.flow.id: 0.8e9 / record.fct_ps * 1e3 for record in result.records}
    return {**found, "pauses": float(result.network["pause_frames"])}


INCAST = {"a": ("a", "r1"), "b": ("b", "r1"), "lone": ("lone", "r1"), "victim": ("v", "r2")}


def test_pauses_make_a_victim_and_favour_the_lone_port() -> None:
    found = rates_Gbps(
        {
            "cc": {"kind": "none"},
            "ecn": {"enabled": False},
            "buffer": {"mode": "static", "xoff": "100kB", "xon": "90kB", "headroom": "1MB"},
        },
        INCAST,
    )
    assert found["victim"] <= 0.5 * 98  # its own path is idle
    assert found["lone"] > 1.3 * 98 / 3  # half of the port, where a third would be fair
    assert found["pauses"] > 1000


def test_dcqcn_shares_fairly_and_frees_the_victim() -> None:
    found = rates_Gbps({"cc": {"kind": "dcqcn", "profile": "nic"}}, INCAST)
    shares = [found[name] for name in ("a", "b", "lone")]
    assert shares == [pytest.approx(98 / 3, rel=0.10)] * 3
    assert sum(shares) ** 2 / (3 * sum(share**2 for share in shares)) >= 0.95  # Jain
    assert found["victim"] >= 0.8 * 98
    assert found["pauses"] == 0


@pytest.mark.parametrize(("recovery", "least", "most"), [
    ("go-back-n", 0.25, 0.30), ("selective-repeat", 0.85, 1.0),
])  # fmt: skip
def test_losses_of_four_in_a_thousand(recovery: str, least: float, most: float) -> None:
    """Two cables lose p = 0.8 %, 100 us there and back are W = 300 frames: of go-back-N remains
    (1 - p) / (1 - p + p W) = 0.29, less what lost news of losses costs.
    """
    links = [{"ends": [end, "s"], "rate": "100Gbps", "delay": "25us", "model": "roce-lossy"}
             for end in ("a", "b")]  # fmt: skip
    scenario = {
        "schema": 1,
        "engine": "packet",
        "topology": {
            "kind": "custom",
            "nodes": {"a": "host", "b": "host", "s": "switch"},
            "links": links,
        },
        "network": {"cc": {"kind": "none"}, "recovery": recovery, "loss": {"rate": 0.004}},
        "workload": {"kind": "flows", "flows": [{"src": "a", "dst": "b", "size": "50MB"}]},
    }
    (record,) = run_scenario(scenario).raise_for_status().records
    assert least <= 0.4e9 / record.fct_ps * 1e3 / 98 <= most


@pytest.mark.parametrize("aligned", [True, False])
def test_order_of_writes(aligned: bool) -> None:
    schedule = writes(aligned=aligned, per_peer=8, block=2, window=4, size_bytes=1)
    schedule.check()
    moving = schedule.kind == NodeKind.TRANSFER
    away = schedule.src[moving] // (GPUS * NICS) != schedule.dst[moving] // (GPUS * NICS)
    assert away.all()
    assert len(away) == HOSTS * GPUS * GPUS * 8
