# SPDX-License-Identifier: Apache-2.0
"""Links and nodes that fail, slow down and come back while the fluid engine has work under way.

The fabric: two leaves of four hosts, two spines, every cable 100 Gb/s, no delays. A byte takes
80 ps; a path over a spine ends with the 128 B headers that three switches read before they forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.faults import Fault, links_of, plan_faults
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.fluid_faults import FaultyFluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.loops import expand
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import Schedule, ScheduleBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MS = 10**9
GB = 10**9  # 80 ms
RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)
TAIL = 3 * 128 * 80  # over a spine
NEAR = 128 * 80  # over one leaf


def leaf_spine(*, slow: int | None = None) -> Fabric:
    """Eight hosts on two leaves; links 2i up and 2i + 1 down of host i; spine ``slow`` has 25G."""
    build = FabricBuilder("leaf-spine")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(8)
    ]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(2)]

    def join(one: int, other: int, tier: str, rate: int = 100) -> None:
        build.add_cable(
            one, other, rate_bps=rate * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS, tier=tier
        )

    for i, nic in enumerate(nics):
        join(nic, leaf[i // 4], "host-leaf")
    for below in leaf:
        for i, above in enumerate(spine):
            join(below, above, "leaf-spine", 25 if i == slow else 100)
    return build.finish()


FABRIC = leaf_spine()


class Run:
    """An engine, faults by link number, and what they do to what is sent."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        fabric: Fabric = FABRIC,
        net: NetworkSettings = RAW,
        policy: str = "ecmp",
        detect: int = 10 * MS,
        **options: Any,
    ) -> None:
        self.plan = plan_faults(fabric, faults)
        self.env = FabricEnvironment()
        self.engine = FaultyFluidEngine(
            self.env, self.plan.fabric, Routing(self.plan.fabric, policy=policy, seed=3), net,
            changing=self.plan.changing, detection_delay_ps=detect, **options,
        )  # fmt: skip
        for change in self.plan.changes:
            self.at(change.at_ps, self._apply, change)

    def _apply(self, change: Any) -> None:
        self.engine.set_link(change.link, up=change.up, rate_bps=change.rate_bps)

    def at(self, when: int, what: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        if when == 0:
            what(*arguments, **more)
            return
        timer = self.env.timeout(when)
        timer.callbacks.append(lambda _: what(*arguments, **more))

    def send(self, src: int, dst: int, size: int, **more: Any) -> None:
        name = more.pop("name", f"{src}>{dst}")
        self.engine.send(Flow(id=name, src=src, dst=dst, size_bytes=size, **more))

    def ends(self) -> dict[str, int]:
        self.env.run()
        return {record.flow.id: record.end_ps for record in self.engine.records()}

    def carried(self, *names: str) -> list[int]:
        wire = self.engine.counters().wire_bytes
        fabric = self.engine.fabric
        return [int(wire[links_of(fabric, link=name)[0]]) for name in names]


def uplink(src: int, dst: int) -> tuple[str, str]:
    """Name the cable by which a flow leaves its leaf, and the spine that it goes to."""
    path = Routing(FABRIC, seed=3).routes([src], [dst]).path(0)
    return FABRIC.cable_name(path[1]), FABRIC.device_names[FABRIC.link_dst[path[1]]]


def other(spine: str) -> str:
    return "spine1" if spine == "spine0" else "spine0"


def way(leaf: str, spine: str) -> str:
    """Name the link from a leaf to a spine."""
    (link,) = np.flatnonzero(
        (FABRIC.link_src == FABRIC.device(leaf)) & (FABRIC.link_dst == FABRIC.device(spine))
    )
    return FABRIC.link_name(int(link))


CABLE, SPINE = uplink(0, 4)


# ------------------------------------------------------------------ one flow
def test_a_flow_stands_until_routing_notices_and_goes_on_by_the_other_spine() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)])
    run.send(0, 4, GB)
    seen: list[Any] = []
    run.at(17 * MS, lambda: seen.append((run.engine.waiting(), run.carried("h0/nic0:0>leaf0:0"))))
    assert run.ends() == {"0>4": 80 * MS + 10 * MS + TAIL}
    assert run.carried("h0/nic0:0>leaf0:0") == [GB]
    old, new = (way("leaf0", name) for name in (SPINE, other(SPINE)))
    assert run.carried(old, new) == [GB // 10, GB * 9 // 10]
    ((waiting, carried),) = seen
    assert carried == [GB // 10]
    assert len(waiting) == 1
    assert "which carries nothing" in waiting[0]
    (record,) = run.engine.records()
    assert record.bound_ps == 80 * MS + TAIL
    assert [run.engine.fabric.link_tier[link] for link in record.path] == [
        "host-leaf", "leaf-spine", "leaf-spine", "host-leaf",
    ]  # fmt: skip
    assert record.path[1] == links_of(FABRIC, link=new)[0]
    network = run.engine.network()
    assert network["reroutes"] == [
        {
            "at_ps": 18 * MS, "paths": 1, "messages": 1, "moved": ["flow 0>4"], "moved_count": 1,
            "without_route": 0,
        }
    ]  # fmt: skip
    assert network["stalls"] == {
        "count": 1,
        "longest_ps": 10 * MS,
        "by_name": [
            {
                "name": "flow 0>4", "count": 1, "total_ps": 10 * MS, "longest_ps": 10 * MS,
                "ended": True,
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize("lasts", [MS, 4 * MS, 10 * MS])
def test_a_link_that_is_back_within_the_delay_is_not_missed(lasts: int) -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE, for_ps=lasts)])
    run.send(0, 4, GB)
    assert run.ends() == {"0>4": 80 * MS + lasts + TAIL}
    assert run.engine.reroutes == []
    assert run.engine.network()["stalls"]["longest_ps"] == lasts


def test_a_link_that_comes_back_later_is_used_again_after_the_delay() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE, for_ps=22 * MS)])
    run.send(0, 4, GB)
    assert run.ends() == {"0>4": 90 * MS + TAIL}
    # 8 ms, then nothing for 10 ms, then the other spine from 18 ms to 30 ms + 10 ms.
    old, new = (way("leaf0", name) for name in (SPINE, other(SPINE)))
    assert run.carried(old, new) == [GB - 22 * 12_500_000, 22 * 12_500_000]
    assert [one.at_ps for one in run.engine.reroutes] == [18 * MS, 40 * MS]


def test_without_a_delay_nothing_is_lost() -> None:
    run = Run(
        [Fault(at_ps=8 * MS, link=CABLE), Fault(at_ps=20 * MS, link=CABLE, do="up")], detect=0
    )
    run.send(0, 4, GB)
    assert run.ends() == {"0>4": 80 * MS + TAIL}
    assert run.engine.network()["stalls"]["count"] == 0
    assert run.carried(way("leaf0", other(SPINE))) == [12 * 12_500_000]


def test_a_degraded_link_changes_the_rate_and_no_route() -> None:
    fault = Fault(at_ps=8 * MS, link=CABLE, do="degrade", rate_bps=25 * 10**9, for_ps=20 * MS)
    run = Run([fault])
    run.send(0, 4, GB)
    # 100 MB by 8 ms, 62.5 MB by 28 ms, 837.5 MB in 67 ms.
    assert run.ends() == {"0>4": 95 * MS + TAIL}
    assert run.engine.reroutes == []
    assert run.engine.network()["stalls"]["count"] == 0
    assert run.engine.records()[0].bound_ps == 80 * MS + TAIL


def test_degraded_before_the_run_and_whole_in_its_middle() -> None:
    fault = Fault(link="h0/nic0:0-leaf0:0", do="degrade", rate_bps=50 * 10**9, for_ps=40 * MS)
    run = Run([fault])
    run.send(0, 4, GB)
    assert run.ends() == {"0>4": 40 * MS + 60 * MS + TAIL}
    assert run.engine.records()[0].bound_ps == 80 * MS + TAIL


def test_one_direction_alone() -> None:
    down = way("leaf0", SPINE)
    run = Run([Fault(at_ps=8 * MS, link=down)])
    run.send(0, 4, GB)
    run.send(4, 0, GB)
    back = Routing(FABRIC, seed=3).routes([4], [0]).path(0)
    crosses = down in [FABRIC.link_name(link) for link in back]
    assert not crosses
    assert run.ends() == {"0>4": 90 * MS + TAIL, "4>0": 80 * MS + TAIL}


# ------------------------------------------------------------------ no route left
def test_a_pair_without_a_route_waits_for_one_and_is_named() -> None:
    run = Run([Fault(at_ps=8 * MS, node="h4", for_ps=22 * MS)])
    run.send(0, 4, GB)
    run.send(1, 2, GB)
    seen: list[Any] = []
    for when in (12, 20, 35):
        run.at(when * MS, lambda: seen.append(run.engine.waiting()))
    # Back at 30 ms, routed at 40 ms, with 900 MB left.
    assert run.ends() == {"0>4": 112 * MS + TAIL, "1>2": 80 * MS + NEAR}
    gone = "flow '0>4' has no route from 'h0/nic0' to 'h4/nic0' since 8ms"
    assert seen[0] == [
        "flow '0>4' (h0/nic0 -> h4/nic0) waits for leaf1:0>h4/nic0:0, which carries nothing"
    ]
    assert seen[1] == [f"{gone}: no link of 'h4/nic0' is in service"]
    assert seen[2] == [gone]
    assert run.engine.network()["stalls"]["by_name"] == [
        {
            "name": "flow 0>4", "count": 1, "total_ps": 32 * MS, "longest_ps": 32 * MS,
            "ended": True,
        }
    ]  # fmt: skip
    assert [one.without_route for one in run.engine.reroutes] == [1, 0]
    assert run.carried("h0/nic0:0>leaf0:0", "leaf1:0>h4/nic0:0") == [GB, GB]


def test_a_flow_that_nothing_restores_never_ends() -> None:
    run = Run([Fault(at_ps=8 * MS, node="leaf1")])
    run.send(0, 4, GB)
    run.send(1, 2, GB)
    assert run.ends() == {"0>4": -1, "1>2": 80 * MS + NEAR}
    assert run.engine.waiting() == [
        "flow '0>4' has no route from 'h0/nic0' to 'h4/nic0' since 8ms: "
        "no link of 'h4/nic0' is in service"
    ]
    assert run.carried("h0/nic0:0>leaf0:0") == [GB // 10]
    assert run.engine.network()["stalls"]["by_name"][0]["ended"] is False


def test_a_flow_sent_while_there_is_no_route_waits_too() -> None:
    run = Run([Fault(at_ps=2 * MS, node="h4", for_ps=40 * MS)])
    run.at(20 * MS, run.send, 0, 4, GB)
    assert run.ends() == {"0>4": 52 * MS + 80 * MS + TAIL}
    (record,) = run.engine.records()
    assert record.bound_ps == 80 * MS + TAIL
    assert run.engine.network()["stalls"]["longest_ps"] == 32 * MS


def test_a_pair_that_never_had_a_route_is_refused() -> None:
    build = FabricBuilder("apart")
    for i in range(2):
        nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        leaf = build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1)
        build.add_cable(nic, leaf, rate_bps=10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    run = Run([Fault(at_ps=MS, link="h0/nic0:0-leaf0:0")], fabric=build.finish())
    with pytest.raises(UnreachableError, match="no cables in service join them"):
        run.send(0, 2, 1)


# ------------------------------------------------------------------ flows among others
def test_those_who_stay_and_those_who_come_share_what_is_left() -> None:
    pairs = [(src, dst) for src in range(4) for dst in range(4, 8)]
    a, x = next(pair for pair in pairs if uplink(*pair)[1] == "spine0")
    b, y = next(p for p in pairs if uplink(*p)[1] == "spine1" and p[0] != a and p[1] != x)
    run = Run([Fault(at_ps=8 * MS, node="spine0")])
    run.send(a, x, GB, name="lost")
    run.send(b, y, GB, name="kept")
    # From 18 ms both share one spine: 900 MB are left of one and 775 MB of the other.
    assert run.ends() == {"kept": 142 * MS + TAIL, "lost": 152 * MS + TAIL}
    assert [one.paths for one in run.engine.reroutes] == [1]


def test_a_flow_that_starts_before_routing_notices_stands_as_well() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)])
    run.at(12 * MS, run.send, 0, 4, GB, name="before")
    run.at(18 * MS, run.send, 1, 2, GB, name="beside")
    run.at(200 * MS, run.send, 0, 4, GB, name="after")
    assert run.ends() == {
        "before": 98 * MS + TAIL,
        "beside": 98 * MS + NEAR,
        "after": 280 * MS + TAIL,
    }
    assert run.engine.network()["stalls"]["longest_ps"] == 6 * MS


def test_a_pinned_flow_keeps_its_path() -> None:
    path = Routing(FABRIC, seed=3).routes([0], [4]).path(0)
    run = Run([Fault(at_ps=8 * MS, link=CABLE, for_ps=100 * MS)])
    run.send(0, 4, GB, path=path)
    assert run.ends() == {"0>4": 180 * MS + TAIL}


def test_a_sprayed_flow_goes_on_over_the_paths_that_are_left() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)], policy="spray")
    run.send(0, 4, GB)
    assert run.ends() == {"0>4": 90 * MS + TAIL}
    old, new = (way("leaf0", name) for name in (SPINE, other(SPINE)))
    assert run.carried(old, new) == [GB // 20, GB * 19 // 20]
    assert run.carried("h0/nic0:0>leaf0:0", "leaf1:0>h4/nic0:0") == [GB, GB]


def test_queue_pairs_move_each_for_itself() -> None:
    run = Run([Fault(at_ps=8 * MS, node="spine0")], qps=4)
    run.send(0, 4, GB)
    qp = np.arange(4)
    found = Routing(FABRIC, seed=3).routes([0] * 4, [4] * 4, qp)
    on_first = sum("spine0" in FABRIC.link_name(found.path(i)[1]) for i in range(4))
    assert 0 < on_first < 4
    run.env.run()
    (reroute,) = run.engine.reroutes
    assert (reroute.paths, reroute.messages) == (on_first, on_first)
    assert run.carried("h0/nic0:0>leaf0:0", "leaf1:0>h4/nic0:0") == [GB, GB]
    lost, kept = (way("leaf0", name) for name in ("spine0", "spine1"))
    assert sum(run.carried(lost, kept)) == GB


def test_messages_that_wait_for_their_turn_move_with_the_one_before_them() -> None:
    build = ScheduleBuilder(n_ranks=2)
    for _ in range(4):
        build.transfer(0, 1, GB // 4)
    for memo in (True, False):
        run = Run([Fault(at_ps=8 * MS, link=CABLE)], memo=memo)
        run.engine.execute(build.finish(), [0, 4], tag="four")
        run.env.run()
        (record,) = run.engine.collectives()
        assert record.end_ps == 90 * MS + TAIL
        assert record.bound_ps == Run().engine.bound_ps(build.finish(), [0, 4])


def test_a_cancelled_flow_that_has_moved_leaves_what_it_sent() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)])
    sent = Flow(id="x", src=0, dst=4, size_bytes=GB)
    run.engine.send(sent).defused = True
    run.at(26 * MS, lambda: run.engine.cancel(sent))
    run.env.run()
    old, new = (way("leaf0", name) for name in (SPINE, other(SPINE)))
    assert run.carried(old, new) == [GB // 10, GB // 10]


def test_a_flow_that_leaves_a_slow_path_beats_the_bound_of_that_path_alone() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)], fabric=leaf_spine(slow=int(SPINE[-1])))
    run.send(0, 4, GB)
    assert run.engine.records()[0].bound_ps > 320 * MS
    # 25 MB by 8 ms, the rest from 18 ms on at 100 Gb/s.
    assert run.ends() == {"0>4": 18 * MS + 78 * MS + TAIL}
    (record,) = run.engine.records()
    assert record.bound_ps == 80 * MS + TAIL


def test_a_flow_that_moves_to_a_slow_path_has_the_bound_of_the_fast_one() -> None:
    run = Run([Fault(at_ps=8 * MS, link=CABLE)], fabric=leaf_spine(slow=1 - int(SPINE[-1])))
    run.send(0, 4, GB)
    slow_tail = (80 + 320 + 80) * 128
    assert run.ends() == {"0>4": 18 * MS + 288 * MS + slow_tail}
    assert run.engine.records()[0].bound_ps == 80 * MS + TAIL


# ------------------------------------------------------------------ links in series, hosts
def nvlinked() -> Fabric:
    """Two GPUs of one host, joined by NVLink of 200 Gb/s, each with a NIC of its own."""
    build = FabricBuilder("nvlinked")
    host = build.add_host("h0")
    leaf = build.add_device("leaf0", DeviceKind.SWITCH, tier=1)
    nvs = build.add_device("h0/nvs0", DeviceKind.NVSWITCH, host=host)
    for i in range(2):
        gpu = build.add_device(f"h0/gpu{i}", DeviceKind.GPU, host=host)
        nic = build.add_device(f"h0/nic{i}", DeviceKind.NIC, host=host)
        build.set_affine_nic(gpu, nic)
        build.add_cable(gpu, nvs, rate_bps=200 * 10**9, delay_ps=0, model=LinkModel.NVLINK)
        build.add_cable(gpu, nic, rate_bps=400 * 10**9, delay_ps=0, model=LinkModel.PCIE)
        build.add_cable(nic, leaf, rate_bps=100 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    return build.finish()


def test_gpus_that_lose_nvlink_go_on_over_their_nics_with_headers() -> None:
    net = NetworkSettings(ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True)
    run = Run([Fault(at_ps=10 * MS, node="h0/nvs0")], fabric=nvlinked(), net=net)
    gpus = [int(gpu) for gpu in run.engine.fabric.gpus]
    run.send(*gpus, GB, name="x")
    (end,) = run.ends().values()
    (record,) = run.engine.records()
    # 1 GB takes 40 ms by NVLink: a quarter is sent when it fails, the rest is framed from 20 ms on.
    assert record.wire_bytes == GB + -(-GB // 4096) * 82 + 16
    left = record.wire_bytes * 3 // 4
    assert abs(end - 20 * MS - left * 80 - NEAR) <= 80
    nvlink, leaf = run.carried("h0/gpu0:0>h0/nvs0:0", "h0/nic0:1>leaf0:0")
    assert (nvlink, leaf) == (GB // 4, record.wire_bytes - round(record.wire_bytes / 4))
    assert run.carried("h0/gpu0:1>h0/nic0:0") == [GB * 3 // 4]
    assert record.bound_ps <= 40 * MS + NEAR


def behind_pcie() -> Fabric:
    """Two GPUs, each over 400 Gb/s of PCIe behind a NIC of 100 Gb/s."""
    build = FabricBuilder("pcie")
    leaf = build.add_device("leaf0", DeviceKind.SWITCH, tier=1)
    for i in range(2):
        host = build.add_host(f"h{i}")
        gpu = build.add_device(f"h{i}/gpu0", DeviceKind.GPU, host=host)
        nic = build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=host)
        build.set_affine_nic(gpu, nic)
        build.add_cable(gpu, nic, rate_bps=400 * 10**9, delay_ps=0, model=LinkModel.PCIE)
        build.add_cable(nic, leaf, rate_bps=100 * 10**9, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    return build.finish()


def test_a_link_that_limits_nobody_as_built_does_when_it_slows_down() -> None:
    fabric = behind_pcie()
    name = "h0/gpu0:0-h0/nic0:0"
    plain = FluidEngine(FabricEnvironment(), fabric, Routing(fabric), RAW)
    with pytest.raises(InputError, match="cannot change during a run"):
        plain.set_link(links_of(fabric, link=name)[0], rate_bps=50 * 10**9)
    fault = Fault(at_ps=8 * MS, link=name, do="degrade", rate_bps=50 * 10**9, for_ps=40 * MS)
    run = Run([fault], fabric=fabric)
    run.send(1, 3, GB)
    assert run.ends() == {"1>3": 8 * MS + 40 * MS + 52 * MS + NEAR}


def test_a_gpu_that_is_down_stops_its_flows_and_is_named() -> None:
    run = Run([Fault(at_ps=8 * MS, node="h1/gpu0")], fabric=behind_pcie())
    run.send(1, 3, GB)
    assert run.ends() == {"1>3": -1}
    assert run.engine.waiting() == [
        "flow '1>3' has no route from 'h0/gpu0' to 'h1/gpu0' since 8ms: "
        "no link of 'h1/gpu0' is in service"
    ]


# ------------------------------------------------------------------ collectives
def ring(size: int, *, ranks: int = 8, repeat: int = 1) -> tuple[Schedule, int]:
    return plan("all_reduce", ranks=ranks, size_bytes=size, algorithm="ring"), repeat


def collective(
    schedule: Schedule, faults: Sequence[Fault], *, repeat: int = 1, **options: Any
) -> tuple[Any, ...]:
    run = Run(faults, **options)
    run.engine.execute(
        schedule, [0, 4, 1, 5, 2, 6, 3, 7][: schedule.n_ranks], tag="c", repeat=repeat
    )
    run.env.run()
    counters = run.engine.counters()
    return (
        [(one.end_ps, one.bound_ps) for one in run.engine.collectives()],
        counters.wire_bytes.tolist(),
        counters.ack_bytes.tolist(),
        run.engine.waiting(),
        run.engine.network()["stalls"],
    )


LOSSES = {
    "uplink": [Fault(at_ps=3 * MS, link=CABLE)],
    "uplink for a while": [Fault(at_ps=3 * MS, link=CABLE, for_ps=9 * MS)],
    "spine": [Fault(at_ps=3 * MS + 7, node="spine1", for_ps=12 * MS)],
    "host": [Fault(at_ps=3 * MS, node="h5", for_ps=5 * MS)],
    "slow": [Fault(at_ps=3 * MS, node="leaf1", do="degrade", rate_bps=30 * 10**9, for_ps=4 * MS)],
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ack_every", [0, 4])
def test_a_ring_as_loops_and_written_out_and_remembered(loss: str, ack_every: int) -> None:
    net = NetworkSettings(ack_every=ack_every)
    schedule, _ = ring(64_000_000)
    faults = LOSSES[loss]
    seen = [
        collective(one, faults, net=net, memo=memo, detect=2 * MS)
        for one, memo in ((schedule, True), (schedule, False), (expand(schedule), False))
    ]
    assert len(seen[0][0]) == 1
    assert seen[0] == seen[1]
    bounds = [one[0][0][1] for one in seen]
    assert max(bounds) <= seen[0][0][0][0]
    assert seen[1][0][0][0] == seen[2][0][0][0]
    assert seen[1][1:] == seen[2][1:]
    calm = collective(schedule, [], net=net)
    assert calm[0][0][0] < seen[0][0][0][0]
    # Every host sends and receives the same bytes, whatever happened on the way.
    assert calm[1][:16] == seen[0][1][:16]
    assert sum(calm[1]) == sum(seen[0][1])


def test_a_repeated_collective_fails_in_its_second_run() -> None:
    schedule, _ = ring(8_000_000)
    faults = [Fault(at_ps=4 * MS, node="spine0", for_ps=6 * MS)]
    seen = [collective(schedule, faults, repeat=12, memo=memo, detect=MS) for memo in (True, False)]
    assert seen[0] == seen[1]
    once = collective(schedule, [])
    assert seen[0][1][:16] == [12 * carried for carried in once[1][:16]]


def test_a_flow_that_comes_wakes_a_remembered_collective() -> None:
    kept = other(SPINE)
    ranks = next(
        [a, b]
        for a in range(1, 4)
        for b in range(5, 8)
        if uplink(a, b)[1] == uplink(b, a)[1] == kept
    )
    schedule = plan("all_reduce", ranks=2, size_bytes=400_000_000, algorithm="ring")
    seen = []
    for memo in (True, False):
        run = Run([Fault(at_ps=8 * MS, node=SPINE)], memo=memo)
        run.engine.execute(schedule, ranks, tag="c")
        run.send(0, 4, GB)
        remembered: list[bool] = []
        for when in (17, 19):
            run.at(when * MS, lambda run=run, to=remembered: to.append(bool(run.engine._ends)))
        assert run.ends()["0>4"] > 90 * MS + TAIL
        assert remembered == [memo, False]
        (record,) = run.engine.collectives()
        seen.append((run.ends(), record, run.engine.counters().wire_bytes.tolist()))
    assert seen[0] == seen[1]


def test_work_that_ended_is_forgotten_and_new_work_takes_the_new_routes() -> None:
    schedule, _ = ring(8_000_000)
    run = Run([Fault(at_ps=20 * MS, node="spine0")], detect=0)
    ranks = [0, 4, 1, 5, 2, 6, 3, 7]
    for when in (0, 30 * MS):
        run.at(when, run.engine.execute, schedule, ranks)
    run.env.run()
    first, second = run.engine.collectives()
    assert second.end_ps - second.start_ps > first.end_ps - first.start_ps
    assert run.engine.network()["reroutes"][0]["messages"] == 0


# ------------------------------------------------------------------ flows sent together
@pytest.mark.parametrize("policy", ["ecmp", "spray"])
def test_flows_sent_together_fare_as_if_each_were_sent_alone(policy: str) -> None:
    faults = [
        Fault(at_ps=3 * MS, node="spine0", for_ps=9 * MS),
        Fault(at_ps=6 * MS, node="h5", for_ps=4 * MS),
        Fault(at_ps=14 * MS, node="leaf0", do="degrade", rate_bps=40 * 10**9, for_ps=5 * MS),
    ]
    rng = np.random.default_rng(5)
    times = rng.integers(0, 20 * MS, 60).tolist()
    flows = [
        Flow(id=f"f{i}", src=int(src), dst=int(dst), size_bytes=int(rng.integers(0, 20_000_000)))
        for i, (src, dst) in enumerate(rng.permuted([range(8)] * 60, axis=1)[:, :2])
    ]
    together, alone = (Run(faults, detect=2 * MS, policy=policy) for _ in range(2))
    seen: list[list[str]] = [[], []]
    together.engine.send_all(flows, start_ps=times)
    alone.engine.prepare(flows)
    for flow, at in zip(flows, times, strict=True):
        alone.at(at, alone.engine.send, flow)
    for run, lines in zip((together, alone), seen, strict=True):
        for when in (5, 9, 11, 13):
            run.at(when * MS + 1, lambda run=run, lines=lines: lines.extend(run.engine.waiting()))
        run.env.run()
    one, other = ({r.flow.id: r for r in run.engine.records()} for run in (together, alone))
    assert one == other
    assert all(record.end_ps > 0 for record in one.values())
    assert together.engine.network() == alone.engine.network()
    assert together.engine.network()["stalls"]["count"] > 5
    assert sorted(seen[0]) == sorted(seen[1])
    assert len(seen[0]) > 5
    wire = [run.engine.counters().wire_bytes.tolist() for run in (together, alone)]
    assert wire[0] == wire[1]


# ------------------------------------------------------------------ anything that may happen
PLACES = (
    *({"link": FABRIC.cable_name(link)} for link in range(0, FABRIC.n_links, 2)),
    *({"node": name} for name in ("spine0", "spine1", "leaf0", "h0", "h5")),
)
TIMES = st.integers(0, 200).map(lambda tenth: tenth * MS // 10)
FAULTS = st.lists(
    st.builds(
        lambda at, place, do, lasts, rate: Fault(
            at_ps=at + 1, do=do, for_ps=lasts + 1, **place,
            rate_bps=rate * 10**9 if do == "degrade" else None,
        ),
        TIMES, st.sampled_from(PLACES), st.sampled_from(["down", "down", "degrade"]), TIMES,
        st.integers(1, 100),
    ),
    max_size=6,
)  # fmt: skip
FLOWS = st.lists(
    st.tuples(TIMES, st.permutations(range(8)), st.integers(0, 60_000_000)), max_size=8
)
DETECT = st.sampled_from([0, 1, MS // 3, 3 * MS])


def certified(run: Run) -> None:
    """Check that rates are max-min fair: at a full link of a flow's path nobody has more."""
    state, table = run.engine.state, run.engine.table
    up, rate = run.engine._link_up, run.engine._link_rate_bps
    load, top = np.zeros(FABRIC.n_links), np.zeros(FABRIC.n_links)
    flows = []
    for slot in state.ends.slot[: state.run.active].tolist():
        row = state.slots[slot]
        links = table.links_of(int(row.path))
        share = table.share[table.ptr[row.path] : table.ptr[row.path + 1]]
        load[links] += share * row.rate
        top[links] = np.maximum(top[links], row.rate)
        flows.append((row, links))
    capacity = np.where(up, rate, 0)
    assert (load <= capacity * (1 + 2e-9)).all()
    for row, links in flows:
        if int(row.bottleneck) == table.nowhere:
            assert row.rate == 0
            continue
        full = load[links] >= capacity[links] * (1 - 2e-9)
        assert (full & (row.rate >= top[links] * (1 - 2e-9))).any()


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    FAULTS, FLOWS, st.integers(0, 20_000_000), DETECT, st.sampled_from(["ecmp", "rail", "spray"]),
    st.sampled_from([1, 1, 3]),
)  # fmt: skip
def test_whatever_fails_bytes_are_kept_and_no_bound_is_beaten(
    faults: list[Fault], flows: list[Any], size: int, detect: int, policy: str, qps: int
) -> None:
    schedule = plan("all_reduce", ranks=6, size_bytes=size, algorithm="ring")
    shown: list[Any] = []
    whole = Run().engine
    whole.execute(schedule, [0, 5, 1, 4, 2, 6])
    whole.env.run()
    ring_bytes = whole.counters().wire_bytes
    for memo in (True, False, False):
        run = Run(faults, detect=detect, policy=policy, memo=memo, qps=qps)
        seen: list[Any] = []

        def look(run: Run = run, seen: list[Any] = seen) -> None:
            seen.append(run.engine.counters().wire_bytes.tolist())
            seen.append(run.engine.waiting())
            run.env.timeout(0).callbacks.append(lambda _: certified(run))

        run.at(2 * MS, run.engine.execute, schedule, [0, 5, 1, 4, 2, 6], tag="ring")
        for i, (at, ends, amount) in enumerate(flows):
            run.at(at, run.send, ends[0], ends[1], amount, name=f"f{i}")
        for when in (5 * MS, 9 * MS, 14 * MS):
            run.at(when + 1, look)
        run.env.run()
        records, (record,) = run.engine.records(), run.engine.collectives()
        wire = run.engine.counters().wire_bytes
        shown.append(
            (
                [(one.flow.id, one.end_ps, one.bound_ps, one.path) for one in records],
                (record.end_ps, record.bound_ps),
                wire.tolist(),
                seen,
                run.engine.waiting(),
                run.engine.network(),
            )
        )
        # All faults end, so all work does, no earlier than its bound (or the engine raises).
        assert all(one.fct_ps >= one.bound_ps - 2 for one in records)
        earlier = np.array([seen[i] for i in range(0, len(seen), 2)] + [wire.tolist()])
        assert (np.diff(earlier, axis=0) >= -run.engine.rounded_bytes - 8).all()
        sent, taken, between = np.zeros(8, np.int64), np.zeros(8, np.int64), 0
        moved = [(0, 5), (5, 1), (1, 4), (4, 2), (2, 6), (6, 0)]
        sent += ring_bytes[0:16:2]
        taken += ring_bytes[1:16:2]
        between += int(sum(ring_bytes[2 * a] for a, b in moved if (a < 4) != (b < 4)))
        for one in records:
            src, dst = one.flow.src, one.flow.dst
            sent[src] += one.flow.size_bytes
            taken[dst] += one.flow.size_bytes
            between += one.flow.size_bytes * ((src < 4) != (dst < 4))
        assert wire[0:16:2].tolist() == sent.tolist()
        assert wire[1:16:2].tolist() == taken.tolist()
        up, down = wire[16::2], wire[17::2]
        slack = 16 if policy == "spray" else 0
        assert abs(int(up.sum()) - between) <= slack
        assert abs(int(down.sum()) - between) <= slack
    assert shown[0] == shown[1] == shown[2]
