# SPDX-License-Identifier: Apache-2.0
"""What links carry: every byte once per link, whatever the routes; and what parallel cables add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import Framing, NetworkSettings
from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.jobs import JobEngine

G = 10**9
NET = NetworkSettings(ack_every=4)


def clos(
    *, leaves: int = 2, hosts: int = 4, spines: int = 2, cables: int = 1, rate_bps: int = 100 * G,
    model: LinkModel = LinkModel.ROCE_LOSSLESS, delay_ps: int = 1_000,
) -> Fabric:  # fmt: skip
    """GPUs behind PCIe and NIC on leaves; devices gpu, nic, gpu, nic, ..., leaves, spines."""
    build = FabricBuilder("clos")
    wire: dict[str, Any] = {"rate_bps": rate_bps, "delay_ps": delay_ps, "model": model}
    nics = []
    for i in range(leaves * hosts):
        host = build.add_host(f"h{i}")
        gpu = build.add_device(f"h{i}/gpu0", DeviceKind.GPU, host=host)
        nics.append(build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=host))
        build.set_affine_nic(gpu, nics[-1])
        build.add_cable(
            gpu, nics[-1], rate_bps=437 * G, delay_ps=150, model=LinkModel.PCIE, tier="pcie"
        )
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(leaves)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(spines)]
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i // hosts], tier="host-leaf", **wire)
    for below in leaf:
        for above in spine:
            for _ in range(cables):
                build.add_cable(below, above, tier="leaf-spine", **wire)
    return build.finish()


def start(
    fabric: Fabric, kind: str = "fluid", *, net: NetworkSettings = NET, policy: str = "ecmp",
    seed: int = 1, **options: Any,
) -> JobEngine:  # fmt: skip
    routing = Routing(fabric, policy=policy, seed=seed)
    return make_engine(kind, FabricEnvironment(), fabric, routing, net, **options)


def on_tier(fabric: Fabric, values: np.ndarray[Any, Any], tier: str) -> np.ndarray[Any, Any]:
    return values[[i for i, name in enumerate(fabric.link_tier) if name == tier]]


# ------------------------------------------------------------------ conservation
@pytest.mark.parametrize("kind", ["fluid", "analytic"])
@pytest.mark.parametrize("policy", ["ecmp", "rail", "spray"])
@pytest.mark.parametrize("qps", [1, 3])
def test_every_link_of_a_flow_carries_it_once(kind: str, policy: str, qps: int) -> None:
    fabric = clos(spines=4)
    engine = start(fabric, kind, policy=policy, qps=qps)
    size = 1_000_003
    engine.send(
        Flow(id="f", src=fabric.device("h0/gpu0"), dst=fabric.device("h7/gpu0"), size_bytes=size)
    )
    engine.env.run()
    parts = [size // qps + (i < size % qps) for i in range(qps)]
    wire = sum(NET.wire_bytes(part) for part in parts)
    acks = sum(-(-NET.packets(part) // 4) * 86 for part in parts)
    assert engine.records()[0].wire_bytes == wire
    counted = engine.counters()
    up = on_tier(fabric, counted.wire_bytes, "host-leaf")
    assert (up.sum(), (up > 0).sum(), up.max()) == (2 * wire, 2, wire)
    inside = on_tier(fabric, counted.wire_bytes, "pcie")
    assert (inside.sum(), (inside > 0).sum()) == (2 * size, 2)
    # Up to one spine or to all of them and down again; shares are rounded to whole bytes.
    middle = on_tier(fabric, counted.wire_bytes, "leaf-spine")
    ways = 4 if policy == "spray" else len({p for p in np.flatnonzero(middle) // 8})
    assert abs(int(middle.sum()) - 2 * wire) <= (8 if policy == "spray" else 0)
    if policy == "spray":
        assert np.count_nonzero(middle) == 2 * ways
        assert middle.max() - middle[middle > 0].min() <= 1
    # Acknowledgements go the other way of every network link.
    back = counted.ack_bytes[np.arange(fabric.n_links) ^ 1]
    assert on_tier(fabric, counted.ack_bytes, "pcie").sum() == 0
    assert on_tier(fabric, back, "host-leaf").tolist() == np.where(up > 0, acks, 0).tolist()
    assert abs(int(on_tier(fabric, back, "leaf-spine").sum()) - 2 * acks) <= 8


@pytest.mark.parametrize("kind", ["fluid", "analytic"])
@pytest.mark.parametrize("model", [LinkModel.ROCE_LOSSLESS, LinkModel.INFINIBAND])
def test_collectives_put_their_closed_forms_on_links(kind: str, model: LinkModel) -> None:
    fabric = clos(hosts=4, model=model)
    framing = Framing.INFINIBAND if model == LinkModel.INFINIBAND else Framing.ETHERNET
    gpus = [int(g) for g in fabric.gpus]
    n, chunk = 8, 250_000
    for op, messages in (("all_reduce", 2 * (n - 1)), ("all_gather", n - 1),
                         ("all_to_all", n - 1)):  # fmt: skip
        engine = start(fabric, kind)
        algorithm = "direct" if op == "all_to_all" else "ring"
        schedule = plan(op, ranks=n, size_bytes=n * chunk, algorithm=algorithm)
        engine.execute(schedule, gpus, repeat=3)
        engine.env.run()
        counted = engine.counters()
        wire = 3 * messages * NET.wire_bytes(chunk, framing)
        per_ack = NET.ack_wire_bytes(framing)
        acks = 3 * messages * -(-NET.packets(chunk) // 4) * per_ack
        access = on_tier(fabric, counted.wire_bytes, "host-leaf")
        assert access.tolist() == [wire] * (2 * n)  # each rank sends and receives as much
        assert on_tier(fabric, counted.wire_bytes, "pcie").tolist() == [3 * messages * chunk] * 16
        assert on_tier(fabric, counted.ack_bytes, "host-leaf").tolist() == [acks] * (2 * n)
        crossing = 2 if algorithm == "ring" else 2 * 4 * 4
        total = on_tier(fabric, counted.wire_bytes, "leaf-spine").sum()
        each = wire // messages * (messages if algorithm == "ring" else 1)
        assert total == 2 * crossing * each


@pytest.mark.parametrize("memo", [True, False])
@pytest.mark.parametrize("policy", ["ecmp", "spray"])
def test_counters_grow_steadily_and_end_at_the_sum(memo: bool, policy: str) -> None:
    fabric = clos()
    net = NetworkSettings(ack_every=1)
    engine = start(fabric, policy=policy, net=net, memo=memo)
    gpus = [int(g) for g in fabric.gpus]
    engine.execute(plan("all_reduce", ranks=4, size_bytes=10**6), gpus[::2], repeat=2)
    engine.send(Flow(id="x", src=gpus[1], dst=gpus[7], size_bytes=3 * 10**6))
    seen = []
    for at in range(10**6, 400 * 10**6, 7 * 10**6 + 1):
        engine.env.run(until=at)
        counted = engine.counters()
        seen.append(np.concatenate((counted.wire_bytes, counted.ack_bytes)))
    engine.env.run()
    counted = engine.counters()
    seen.append(np.concatenate((counted.wire_bytes, counted.ack_bytes)))
    steps = np.diff(np.array(seen), axis=0)
    # Whole bytes of many parts: a sum of parts rounded down may fall by one where a part ends.
    assert steps.min() >= -2
    assert steps.max() > 10**4
    # What a link carried never exceeds what it could carry.
    most = (7 * 10**6 + 1) * 100 * G / 8e12
    assert steps[:-1, : fabric.n_links][:, fabric.link_network].max() <= most + 100


def test_a_cancelled_flow_leaves_what_it_moved() -> None:
    fabric = clos()
    engine = start(fabric, net=NetworkSettings(ack_every=0, frame_overhead_bytes=0))
    gone = Flow(id="gone", src=fabric.device("h0/nic0"), dst=fabric.device("h1/nic0"),
                size_bytes=10**9)  # fmt: skip
    engine.send(gone).defused = True

    def stop() -> Iterator[Any]:
        yield engine.env.timeout(8 * 10**9)
        engine.cancel(gone)

    engine.env.process(stop())
    engine.env.run()
    carried = engine.counters().wire_bytes
    assert carried.sum() == 2 * 10**8
    assert engine.records()[0].end_ps == -1


# ------------------------------------------------------------------ acknowledgements take capacity
@pytest.mark.parametrize(("mtu", "loss"), [(4096, 0.0206), (1024, 0.0778)])
def test_a_saturated_way_back_loses_what_acknowledgements_take(mtu: int, loss: float) -> None:
    build = FabricBuilder("pair")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(2)
    ]
    build.add_cable(*nics, rate_bps=100 * G, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    fabric = build.finish()
    took = {}
    for every in (0, 1):
        engine = start(fabric, net=NetworkSettings(mtu_bytes=mtu, ack_every=every))
        for i in range(2):
            engine.send(Flow(id=str(i), src=nics[i], dst=nics[1 - i], size_bytes=10**8))
        engine.env.run()
        ends = [r.end_ps for r in engine.records()]
        assert ends[0] == pytest.approx(ends[1], rel=0.001)
        took[every] = max(ends)
    # Both ways are full of data and of the other way's acknowledgements: 1 / (1 + loss) is left.
    assert took[1] / took[0] - 1 == pytest.approx(loss, rel=0.1)
    one_way = start(fabric, net=NetworkSettings(mtu_bytes=mtu, ack_every=1))
    one_way.send(Flow(id="alone", src=nics[0], dst=nics[1], size_bytes=10**8))
    one_way.env.run()
    assert one_way.records()[0].end_ps == took[0]


# ------------------------------------------------------------------ parallel cables
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_k_cables_carry_k_times_as_much(k: int) -> None:
    # One spine; eight flows cross. Sprayed, they fill k cables evenly.
    fabric = clos(hosts=8, spines=1, cables=k, delay_ps=0)
    net = NetworkSettings(ack_every=0, frame_overhead_bytes=0, switch_latency_ps=0,
                          host_latency_ps=0, cut_through=True)  # fmt: skip
    size = 8 * 10**7

    def last_end(policy: str, seed: int = 1) -> int:
        engine = start(fabric, policy=policy, net=net, seed=seed)
        for i in range(8):
            engine.send(
                Flow(id=str(i), src=int(fabric.nics[i]), dst=int(fabric.nics[8 + i]),
                     size_bytes=size)
            )  # fmt: skip
        engine.env.run()
        return max(r.end_ps for r in engine.records())

    sprayed = last_end("spray")
    assert sprayed == pytest.approx(8 * size * 80 / k, rel=1e-4)
    hashed = {last_end("ecmp", seed) for seed in range(6)}
    # The fullest cable carries a whole number of flows, at least 8 / k.
    loads = {round(end / (size * 80), 3) for end in hashed}
    assert all(load == pytest.approx(round(load), abs=2e-3) for load in loads)
    assert min(loads) >= -(-8 // k) - 2e-3
    if k == 1:
        assert loads == {8.0}
    else:
        assert len(loads) > 1  # seeds matter
        assert max(loads) < 8.0
    gpus = (int(fabric.nics[0]), int(fabric.nics[8]))
    assert len(Routing(fabric).equal_cost_paths(*gpus)) == k * k
    assert fabric.link_tier.count("leaf-spine") == 2 * 2 * k


# ------------------------------------------------------------------ results that should differ
def test_topology_rate_placement_and_seed_change_results() -> None:
    def took(
        fabric: Fabric, *, op: str = "all_to_all", ranks: list[int] | None = None, **options: Any
    ) -> int:
        engine = start(fabric, **options)
        gpus = [int(fabric.gpus[r]) for r in ranks or range(16)]
        engine.execute(plan(op, ranks=len(gpus), size_bytes=16 * 10**5), gpus)
        engine.env.run()
        return engine.collectives()[0].end_ps

    base = {"leaves": 4, "hosts": 4, "spines": 4}
    reference = took(clos(**base))
    assert took(clos(**base)) == reference
    changed = {
        "spines": took(clos(**{**base, "spines": 2})),
        "cables": took(clos(**base, cables=2)),
        "rate": took(clos(**base, rate_bps=200 * G)),
        "model": took(clos(**base, model=LinkModel.INFINIBAND)),
        "delay": took(clos(**base, delay_ps=5_000)),
        "seed": took(clos(**base), seed=2),
        "policy": took(clos(**base), policy="spray"),
        "queue pairs": took(clos(**base), qps=4),
        "frames": took(clos(**base), net=NetworkSettings(mtu_bytes=1024)),
        "acks": took(clos(**base), net=NetworkSettings(ack_every=1)),
    }  # fmt: skip
    assert [name for name, ps in changed.items() if ps == reference] == []
    assert changed["spines"] > reference > changed["cables"]
    assert changed["policy"] < reference
    # A ring that crosses leaves at every step takes longer than one that crosses four times.
    apart = [leaf * 4 + i for i in range(4) for leaf in range(4)]
    assert took(clos(**base), op="all_reduce", ranks=apart) > took(clos(**base), op="all_reduce")
    assert changed["rate"] == pytest.approx(reference / 2, rel=0.02)


def test_round_robin_queue_pairs_take_turns() -> None:
    fabric = clos(spines=8)
    used = set()
    engine = start(fabric, qps=4, qp_mode="round-robin")
    gpus = [int(fabric.gpus[0]), int(fabric.gpus[7])]
    for i in range(8):
        engine.send(Flow(id=str(i), src=gpus[0], dst=gpus[1], size_bytes=10**5))
    engine.env.run()
    paths = [r.path for r in engine.records()]
    used = set(paths)
    assert 1 < len(used) <= 4
    assert paths[:4] == paths[4:]
    single = start(fabric, qps=1)
    for i in range(3):
        single.send(Flow(id=str(i), src=gpus[0], dst=gpus[1], size_bytes=10**5))
    single.env.run()
    assert {r.path for r in single.records()} == {paths[0]}
