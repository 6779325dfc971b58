# SPDX-License-Identifier: Apache-2.0
"""After every solve: rates are max-min fair, and equal those of an independent full computation.

A flow is max-min fairly served when it is at its cap or crosses a full link on which nobody has
more per weight (Bertsekas and Gallager, *Data Networks*, section 6.5.2). The check sees every link
of every path, also those that the engine leaves out of its computation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import RailweaveError
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Iterator

EPS = 2e-9  # relative: ties are taken within 1e-9
NEVER = 2**62

# ------------------------------------------------------------------ an independent computation


@dataclass
class Active:
    """A flow as the reference sees it: what it puts on each link per bit of its own."""

    rate: float
    weight: float
    cap: float
    on: dict[int, float] = field(default_factory=dict)


def progressive_filling(capacity: dict[int, float], flows: list[Active]) -> list[float]:
    """Raise all levels together until a link is full or a cap is met; freeze; go on."""
    rate: list[float | None] = [None] * len(flows)
    while True:
        open_ = [i for i, r in enumerate(rate) if r is None]
        if not open_:
            return [float(r) for r in rate if r is not None]
        best, level_of = np.inf, {}
        for link, room in capacity.items():
            taken = sum(f.on.get(link, 0.0) * r for f, r in zip(flows, rate, strict=True) if r)
            demand = sum(flows[i].on.get(link, 0.0) * flows[i].weight for i in open_)
            if demand > 0:
                level_of[link] = max(room - taken, 0.0) / demand
                best = min(best, level_of[link])
        best = min([best, *(flows[i].cap / flows[i].weight for i in open_)])
        assert np.isfinite(best), "a flow without a limit"
        within = best * (1 + 1e-12)
        frozen = 0
        for i in open_:
            flow = flows[i]
            if flow.cap / flow.weight <= within:
                rate[i], frozen = flow.cap, frozen + 1
            elif any(level_of.get(link, np.inf) <= within for link in flow.on):
                rate[i], frozen = best * flow.weight, frozen + 1
        assert frozen


# ------------------------------------------------------------------ watching an engine


class Watch:
    """Lets an engine take one instant at a time and checks the rates after each."""

    def __init__(self, engine: FluidEngine) -> None:
        self.engine = engine
        self.state = engine.state
        self.instants = 0
        self.most = 0
        self.advance = self.state.advance
        self.state.advance = self.step_by_step  # type: ignore[method-assign]
        self.up = engine.fabric.link_up.copy()
        self.rate_bps = engine.fabric.link_rate_bps.copy()

    def set_link(self, link: int, *, up: bool | None = None, rate_bps: int | None = None) -> None:
        self.engine.set_link(link, up=up, rate_bps=rate_bps)
        if up is not None:
            self.up[link] = up
        if rate_bps is not None:
            self.rate_bps[link] = rate_bps

    def step_by_step(self, limit_ps: int) -> list[int] | None:
        while True:
            at = self.state.next_ps
            if at > limit_ps or at >= NEVER:
                return None
            groups = self.advance(at)
            assert self.state.now_ps == at
            self.check()
            if groups:
                return groups

    def flows(self) -> list[Active]:
        state, table = self.state, self.engine.table
        fabric, efficiency = self.engine.fabric, self.engine.settings.efficiency()
        found = []
        for slot in (s for number in self.engine._jobs for s in state.slots_of(number)):
            row = state.slots[slot]
            group = state.groups[state.nodes[row.node].group]
            flow = Active(float(row.rate), float(group.weight), float(group.cap))
            path = int(state.nodes[row.node].path)
            span = slice(table.ptr[path], table.ptr[path + 1])
            framed = bool(fabric.link_network[table.link[span]].any())
            for link, share in zip(table.link[span], table.share[span], strict=True):
                inside = framed and not fabric.link_network[link]
                part = float(share) * (efficiency if inside else 1.0)
                flow.on[int(link)] = flow.on.get(int(link), 0.0) + part
            found.append(flow)
        return found

    def usable(self, flows: list[Active]) -> dict[int, float]:
        """Capacity of every link in use, less what acknowledgements of the other way need.

        The engine brings these up to date when a direction begins or ceases to carry data, and
        for the links that it solves for.
        """
        used = {link for flow in flows for link in flow.on}
        acks = self.engine.table.ack_share()
        usable = {}
        for link in used:
            room = float(self.rate_bps[link]) if self.up[link] else 0.0
            if acks[link] and self.engine.table.limiting(link):
                found = float(self.state.links.usable[link])
                most = acks[link] * self.engine.fabric.link_rate_bps[link ^ 1]
                acked = most if link ^ 1 in used else 0.0
                assert room - acked * (1 + EPS) <= found <= room
                usable[link] = max(found, 0.0)
            else:
                usable[link] = room
        return usable

    def check(self) -> None:
        self.instants += 1
        flows = self.flows()
        self.most = max(self.most, len(flows))
        usable = self.usable(flows)
        load = {link: sum(f.on.get(link, 0.0) * f.rate for f in flows) for link in usable}
        level: dict[int, float] = {}
        for flow in flows:
            for link in flow.on:
                level[link] = max(level.get(link, 0.0), flow.rate / flow.weight)
        for link, room in usable.items():
            assert load[link] <= room * (1 + EPS) + 1e-6, f"link {link} carries too much"
        for flow in flows:
            assert flow.rate <= flow.cap * (1 + EPS)
            if flow.rate >= flow.cap * (1 - EPS):
                continue
            assert any(
                load[link] >= usable[link] * (1 - EPS)
                and flow.rate / flow.weight >= level[link] * (1 - EPS)
                for link in flow.on
            ), f"{flow} could have more"
        for flow, rate in zip(flows, progressive_filling(usable, flows), strict=True):
            # A link's acknowledgements may move by less than its ties before anybody is solved
            # for anew; without them nothing is left open.
            slack = EPS * max(usable[link] for link in flow.on) if self.state.run.acks else 1e-3
            assert flow.rate == pytest.approx(rate, rel=1e-9, abs=slack)


# ------------------------------------------------------------------ scenarios


class Mesh:
    """A full mesh of switches with parallel cables; hosts with and without a GPU behind PCIe."""

    def __init__(self, draw: Any) -> None:
        rates = st.sampled_from([10, 25, 40, 97, 100, 100, 100, 200, 400, 800])
        build = FabricBuilder("mesh")
        self.fabric: Fabric
        n_switches = draw(st.integers(1, 4))
        switches = [build.add_device(f"s{i}", DeviceKind.SWITCH) for i in range(n_switches)]
        self.cables: dict[tuple[int, int], list[int]] = {}
        for i in range(n_switches):
            for j in range(i + 1, n_switches):
                for _ in range(draw(st.integers(1, 2))):
                    link = build.add_cable(
                        switches[i], switches[j], rate_bps=draw(rates) * 10**9,
                        delay_ps=draw(st.sampled_from([0, 1000])), model=LinkModel.ROCE_LOSSLESS,
                    )  # fmt: skip
                    self.cables.setdefault((i, j), []).append(link)
                    self.cables.setdefault((j, i), []).append(link ^ 1)
        self.ends: list[tuple[int, int, list[int], list[int]]] = []  # device, switch, way up, down
        for h in range(draw(st.integers(2, 6))):
            at = draw(st.integers(0, n_switches - 1))
            host = build.add_host(f"h{h}")
            nic = build.add_device(f"h{h}/nic0", DeviceKind.NIC, host=host)
            up = build.add_cable(
                nic, switches[at], rate_bps=draw(rates) * 10**9, delay_ps=0,
                model=LinkModel.ROCE_LOSSLESS,
            )  # fmt: skip
            self.ends.append((nic, at, [up], [up ^ 1]))
            if draw(st.booleans()):
                gpu = build.add_device(f"h{h}/gpu0", DeviceKind.GPU, host=host)
                build.set_affine_nic(gpu, nic)
                pcie = build.add_cable(
                    gpu, nic, rate_bps=draw(rates) * 10**9, delay_ps=0, model=LinkModel.PCIE,
                    tier="pcie",
                )  # fmt: skip
                self.ends.append((gpu, at, [pcie, up], [up ^ 1, pcie ^ 1]))
        self.fabric = build.finish()

    def walk(self, draw: Any, src: int, dst: int) -> tuple[int, ...]:
        """A path that may wander, and so cross a link more than once."""
        _, at, up, _ = self.ends[src]
        _, goal, _, down = self.ends[dst]
        path = list(up)
        for there in draw(st.lists(st.integers(0, 3), max_size=4)):
            if (at, there) in self.cables:
                path.append(draw(st.sampled_from(self.cables[at, there])))
                at = there
        if at != goal:
            path.append(draw(st.sampled_from(self.cables[at, goal])))
        return (*path, *down)


SIZES = st.sampled_from([0, 1, 4096, 65_537, 10**6, 10**6, 3 * 10**6, 10**7])
TIMES = st.one_of(st.just(0), st.integers(0, 2 * 10**9), st.sampled_from([10**8, 10**9]))


def scenario(data: st.DataObject, ack_every: int) -> Watch:
    draw = data.draw
    mesh = Mesh(draw)
    fabric = mesh.fabric
    net = NetworkSettings(
        ack_every=ack_every, mtu_bytes=draw(st.sampled_from([512, 4096])), host_latency_ps=0,
        switch_latency_ps=draw(st.sampled_from([0, 600_000])), cut_through=draw(st.booleans()),
    )  # fmt: skip
    env = FabricEnvironment()
    routing = Routing(fabric, policy=draw(st.sampled_from(["ecmp", "spray"])))
    qps = draw(st.sampled_from([1, 1, 2]))
    engine = FluidEngine(env, fabric, routing, net, qps=qps, memo=False)
    watch = Watch(engine)
    hosts = {device: fabric.host[device] for device, *_ in mesh.ends}

    def start(flow: Flow, at: int, stop: int | None) -> Iterator[Any]:
        yield env.timeout(at)
        done = engine.send(flow)
        done.defused = True
        if stop is not None:
            yield env.timeout(stop)
            if not done.triggered:
                engine.cancel(flow)

    for i in range(draw(st.integers(1, 12))):
        src, dst = draw(st.integers(0, len(mesh.ends) - 1)), draw(st.integers(0, 99))
        others = [e for e, (d, *_) in enumerate(mesh.ends) if hosts[d] != hosts[mesh.ends[src][0]]]
        dst = others[dst % len(others)]
        flow = Flow(
            id=str(i), src=mesh.ends[src][0], dst=mesh.ends[dst][0], size_bytes=draw(SIZES),
            weight=draw(st.sampled_from([1.0, 1.0, 1.0, 0.25, 2.0, 3.7])),
            cap_bps=draw(st.sampled_from([None, None, None, 10**9, 33 * 10**9])),
            path=mesh.walk(draw, src, dst) if draw(st.booleans()) else None,
        )  # fmt: skip
        stop = draw(st.one_of(st.none(), st.none(), st.integers(0, 10**9)))
        env.process(start(flow, draw(TIMES), stop))

    def change(link: int, at: int, up: bool | None, rate_bps: int | None) -> Iterator[Any]:
        yield env.timeout(at)
        watch.set_link(link, up=up, rate_bps=rate_bps)

    free = [link for link in range(fabric.n_links) if engine.table.limiting(link)]
    for _ in range(draw(st.integers(0, 4))):
        link = draw(st.sampled_from(free))
        rate = int(fabric.link_rate_bps[link]) * draw(st.integers(1, 8)) // 8
        at = draw(TIMES)
        if draw(st.booleans()):
            env.process(change(link, at, None, rate))
        else:
            env.process(change(link, at, False, None))
            env.process(change(link, at + draw(st.integers(0, 10**9)), True, None))
    if draw(st.booleans()):
        ranks = [device for device, *_ in mesh.ends if fabric.kind[device] == DeviceKind.NIC]
        schedule = plan(
            draw(st.sampled_from(["all_reduce", "all_to_all"])), ranks=len(ranks),
            size_bytes=draw(st.sampled_from([0, 1, 10**6])), algorithm="auto",
        )  # fmt: skip
        engine.execute(schedule, ranks, tag="c", repeat=draw(st.sampled_from([1, 2])))
    return watch


FEW = settings(
    derandomize=True, deadline=None, max_examples=70,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip


@FEW
@given(data=st.data())
def test_rates_are_max_min_fair_after_every_solve(data: st.DataObject) -> None:
    watch = scenario(data, ack_every=0)
    watch.engine.env.run()
    # Whoever is left is named; nobody else is under way.
    jobs = watch.engine._jobs
    assert bool(watch.engine.waiting()) == bool(jobs)
    assert all(watch.state.slots_of(group) for group in jobs)


@FEW
@given(data=st.data())
def test_rates_are_max_min_fair_with_acknowledgements(data: st.DataObject) -> None:
    watch = scenario(data, ack_every=data.draw(st.sampled_from([1, 4])))
    watch.engine.env.run()
    # Whoever is left is named; nobody else is under way.
    jobs = watch.engine._jobs
    assert bool(watch.engine.waiting()) == bool(jobs)
    assert all(watch.state.slots_of(group) for group in jobs)


# ------------------------------------------------------------------ larger, without hypothesis
@pytest.mark.parametrize("ack_every", [0, 1])
def test_a_busy_leaf_spine_stays_max_min_fair(ack_every: int) -> None:
    build = FabricBuilder("leaf-spine")
    wire: dict[str, Any] = {"rate_bps": 100 * 10**9, "delay_ps": 0}
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(16)
    ]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(4)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(3)]
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i // 4], model=LinkModel.ROCE_LOSSLESS, **wire)
    for below in leaf:
        for above in spine:
            build.add_cable(below, above, model=LinkModel.ROCE_LOSSLESS, **wire)
    fabric, env = build.finish(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=ack_every))
    watch, rng = Watch(engine), np.random.default_rng(2)

    def source(src: int) -> Iterator[Any]:
        for i in range(6):
            dst = nics[(nics.index(src) + int(rng.integers(1, 16))) % 16]
            size = int(rng.integers(1, 5 * 10**6))
            yield engine.send(
                Flow(id=f"{src}-{i}", src=src, dst=dst, size_bytes=size,
                     weight=float(rng.choice([0.5, 1.0, 2.0])))
            )  # fmt: skip
            yield env.timeout(int(rng.integers(0, 10**8)))

    for src in nics:
        env.process(source(src))
    env.run()
    assert all(r.end_ps > 0 for r in engine.records())
    assert len(engine.records()) == 96
    assert watch.instants >= 96
    assert watch.most >= 12
    # The point of re-solving only what a change reaches: far fewer than all flows every time.
    solves, solved = engine.state.solves
    assert solved < 0.8 * watch.most * solves


# ------------------------------------------------------------------ the checks can fail
def test_the_certificate_rejects_unfair_rates() -> None:
    build = FabricBuilder("star")
    switch = build.add_device("s", DeviceKind.SWITCH)
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(3)
    ]
    for nic in nics:
        build.add_cable(nic, switch, rate_bps=10**11, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    fabric, env = build.finish(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=0))
    watch = Watch(engine)
    for i in range(2):
        engine.send(Flow(id=str(i), src=nics[i], dst=nics[2], size_bytes=10**6))
    env.run(until=1)
    watch.check()
    slots = engine.state.slots
    for rates in ((60e9, 40e9), (40e9, 40e9), (60e9, 60e9)):
        slots.rate[:2] = rates
        with pytest.raises(AssertionError):
            watch.check()


def test_the_reference_agrees_with_hand_computed_shares() -> None:
    flows = [
        Active(0.0, 1.0, np.inf, {0: 1.0, 1: 1.0}), Active(0.0, 1.0, np.inf, {1: 1.0, 2: 1.0}),
        Active(0.0, 1.0, np.inf, {2: 1.0}), Active(0.0, 1.0, 20.0, {0: 1.0}),
    ]  # fmt: skip
    assert progressive_filling({0: 100.0, 1: 400.0, 2: 200.0}, flows) == [80, 100, 100, 20]
    # A link crossed twice counts twice: 2x + y = 90 with x = y.
    twice = [Active(0.0, 1.0, np.inf, {0: 2.0}), Active(0.0, 1.0, np.inf, {0: 1.0})]
    assert progressive_filling({0: 90.0}, twice) == [30, 30]


def test_cancelling_twice_is_refused() -> None:
    build = FabricBuilder("pair")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(2)
    ]
    build.add_cable(*nics, rate_bps=10**11, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    fabric, env = build.finish(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings())
    flow = Flow(id="f", src=nics[0], dst=nics[1], size_bytes=1)
    engine.send(flow).defused = True
    engine.cancel(flow)
    with pytest.raises(RailweaveError, match="not under way"):
        engine.cancel(flow)
    env.run()
    assert engine.records()[0].end_ps == -1


def test_one_flow_makes_room_that_another_must_share() -> None:
    # Three flows into one link of 100: by hosts of 30 and 29 and by one that takes the rest, 41.
    # In one instant the first falls to 5 and the second may rise: the link stays full throughout,
    # and yet the third's share is wrong unless it joins.
    build = FabricBuilder("star")
    switch = build.add_device("s", DeviceKind.SWITCH)
    nics = []
    for i in range(4):
        nics.append(build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}")))
        build.add_cable(
            nics[i], switch, rate_bps=100 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS
        )
    fabric, env = build.finish(), FabricEnvironment()
    engine = FluidEngine(env, fabric, Routing(fabric), NetworkSettings(ack_every=0))
    watch = Watch(engine)
    watch.set_link(0, rate_bps=30 * 10**9)
    watch.set_link(2, rate_bps=29 * 10**9)
    for i in range(3):
        engine.send(Flow(id=str(i), src=nics[i], dst=nics[3], size_bytes=10**8))
    env.run(until=10**6)
    assert engine.state.slots.rate[:3].tolist() == [30e9, 29e9, 41e9]
    watch.set_link(0, rate_bps=5 * 10**9)
    watch.set_link(2, rate_bps=100 * 10**9)
    env.run(until=10**6 + 1)
    assert engine.state.slots.rate[:3].tolist() == [5e9, 47.5e9, 47.5e9]
    env.run()
    assert all(r.end_ps > 0 for r in engine.records())
