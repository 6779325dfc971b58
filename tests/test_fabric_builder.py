# SPDX-License-Identifier: Apache-2.0
"""Fabrics collected in bulk are those collected one by one; merged switches change no distance."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric._twins import merge_twins
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.routing import Routing
from railweave.topologies import build_topology, load_topology

WIRE = {"delay_ps": 1000, "model": LinkModel.ROCE_LOSSLESS}
ARRAYS = (
    *("kind", "host", "index", "tier", "group", "rail", "gpu_nic", "link_up"),
    *("link_src", "link_dst", "link_src_port", "link_dst_port"),
    *("link_rate_bps", "link_delay_ps", "link_model"),
)


def assert_same(one, other):
    for name in ARRAYS:
        mine, its = getattr(one, name), getattr(other, name)
        assert mine.dtype == its.dtype
        assert np.array_equal(mine, its), name
    for name in ("device_names", "host_names", "model", "link_tier"):
        assert getattr(one, name) == getattr(other, name), name


def switches(count):
    build = FabricBuilder("some")
    for i in range(count):
        build.add_device(f"s{i}", DeviceKind.SWITCH, tier=1)
    return build


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    cables=st.lists(
        st.tuples(*(st.integers(0, 5),) * 2, *(st.integers(0, 9),) * 2, st.integers(1, 9)),
        max_size=20,
    ),
    cuts=st.lists(st.integers(0, 20), max_size=3),
    last=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_many_cables_at_once_are_the_same_as_one_by_one(cables, cuts, last):
    singly, bulk = switches(6), switches(6)
    for a, b, a_port, b_port, rate in cables:
        singly.add_cable(a, b, a_port=a_port, b_port=b_port, rate_bps=rate, tier="x", **WIRE)
    bounds = [0, *sorted(min(cut, len(cables)) for cut in cuts), len(cables)]
    for start, stop in pairwise(bounds):
        columns = np.array(cables[start:stop], np.int64).reshape(-1, 5).T
        a, b, a_port, b_port, rate = columns
        bulk.add_cables(a, b, a_port=a_port, b_port=b_port, rate_bps=rate, tier="x", **WIRE)
    for build in (singly, bulk):  # ports count on from those in use
        assert build.add_cable(*last, rate_bps=7, **WIRE) == 2 * len(cables)
    assert_same(singly.finish(), bulk.finish())


def test_one_value_stands_for_all_cables():
    build = switches(4)
    build.add_cables(0, [1, 2, 3], a_port=[0, 1, 2], b_port=0, rate_bps=5, **WIRE)
    fabric = build.finish()
    assert [fabric.link_name(link) for link in (0, 2, 4)] == ["s0:0>s1:0", "s0:1>s2:0", "s0:2>s3:0"]
    assert set(fabric.link_rate_bps.tolist()) == {5}


def one_host(build, name, group=-1):
    host = build.add_host(name)
    gpu = build.add_device(f"{name}/gpu0", DeviceKind.GPU, host=host, group=group, model="h100")
    nic = build.add_device(
        f"{name}/nic0", DeviceKind.NIC, host=host, group=group, rail=2, model="connectx-7"
    )
    build.add_cable(gpu, nic, rate_bps=9, delay_ps=3, model=LinkModel.PCIE, tier="pcie", b_port=1)
    build.set_affine_nic(gpu, nic)
    return nic


def test_copies_of_a_host_are_as_if_added_by_hand():
    like = FabricBuilder("like")
    one_host(like, "h")
    by_hand, copied = FabricBuilder("f"), FabricBuilder("f")
    for build in (by_hand, copied):
        build.add_device("first", DeviceKind.SWITCH)
    nics = [one_host(by_hand, f"h{i}", group=i // 2) for i in range(5)]
    numbers = copied.add_copies(like.finish(), [f"h{i}" for i in range(5)], group=[0, 0, 1, 1, 2])
    assert numbers.shape == (5, 2)
    assert numbers[:, 1].tolist() == nics
    for build in (by_hand, copied):  # the free port of a NIC follows the one that is taken
        build.add_cable(0, nics[3], rate_bps=1, **WIRE)
    assert_same(by_hand.finish(), copied.finish())


def test_copies_of_several_hosts_and_what_is_between_them():
    like = FabricBuilder("rack")
    plane = like.add_device("rack/nvs0", DeviceKind.NVSWITCH, tier=0)
    for i in range(2):
        nic = one_host(like, f"h{i}")
        like.add_cable(nic - 1, plane, rate_bps=4, delay_ps=1, model=LinkModel.NVLINK)
    build = FabricBuilder("f")
    build.add_copies(like.finish(), ["rack0", "rack1"], hosts=["a", "b", "c", "d"], group=[5, 6])
    fabric = build.finish()
    assert fabric.device_names == (
        *("rack0/nvs0", "a/gpu0", "a/nic0", "b/gpu0", "b/nic0"),
        *("rack1/nvs0", "c/gpu0", "c/nic0", "d/gpu0", "d/nic0"),
    )
    assert fabric.host.tolist() == [-1, 0, 0, 1, 1, -1, 2, 2, 3, 3]
    assert fabric.group.tolist() == [5] * 5 + [6] * 5
    assert fabric.gpu_nic.tolist() == [-1, 2, -1, 4, -1, -1, 7, -1, 9, -1]
    assert "d/gpu0:1>rack1/nvs0:1" in {fabric.link_name(link) for link in range(fabric.n_links)}


def test_an_empty_fabric():
    fabric = FabricBuilder("nothing").finish()
    assert (fabric.n_devices, fabric.n_links) == (0, 0)
    assert fabric.link_src.dtype == np.int32


CABLE = {"rate": "400Gbps", "length": "10m"}
CORE = {
    "kind": "rail-optimized",
    "hosts": {"count": 8, "model": "dgx-h100"},
    "group": 4,
    "leaf": {"switch": "spectrum-4"},
    "spine": {"switch": "spectrum-4", "count": 8},
    "core": {"switch": "spectrum-4", "count": 8},
    "links": {tier: CABLE for tier in ("host-leaf", "leaf-spine", "spine-core")},
}


@pytest.mark.parametrize("broken", [0, 1, 9])
def test_merging_twins_changes_no_distance(broken):
    fabric = build_topology(load_topology(CORE))
    up = fabric.link_up.copy()
    upper = [i for i in range(0, fabric.n_links, 2) if fabric.link_tier[i][-4:] in ("pine", "core")]
    for cable in upper[7::11][:broken]:
        up[[cable, cable + 1]] = False
    fabric = fabric.with_links(up=up)
    merged, plain = Routing(fabric), Routing(fabric)
    twins = plain._tables.twins
    assert len(twins.into[0]) - 1 < len(fabric.switches)  # there is something to merge
    object.__setattr__(twins, "alone", np.zeros_like(twins.alone))
    rows = {name: routing._rows(np.arange(64)) for name, routing in (("m", merged), ("p", plain))}
    for nic in range(64):
        assert np.array_equal(merged._near[rows["m"][nic]], plain._near[rows["p"][nic]])


def test_a_switch_that_has_a_twin_can_be_the_destination():
    fabric = build_topology(load_topology(CORE))
    routing = Routing(fabric)
    one, other = fabric.device("core0"), fabric.device("core1")
    hops = routing.next_hops(fabric.device("spine0"), one)
    assert {int(fabric.link_dst[link]) for link in hops} == {one}
    assert routing.next_hops(one, one) == []
    assert routing.next_hops(one, other) == []  # a path never climbs again


def test_twins_are_those_with_equal_steps_and_no_nic():
    # 0 and 1 are leaves under 2, 3 (twins) and 4, which reaches 0 alone
    near = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4], np.int32)
    far = np.array([2, 3, 4, 2, 3, 0, 1, 0, 1, 0], np.int32)
    up = np.where(near < 2, 1, -1).astype(np.int32)
    homes = np.array([True, True, False, False, False])
    twins = merge_twins(near, far, up, homes=homes)
    assert twins.one.tolist() == [0, 1, 2, 2, 3]
    assert twins.alone.tolist() == [True, True, False, False, True]
    ptr, table = twins.into
    assert ptr.tolist() == [0, 2, 3, 5, 6]
    assert table[1].tolist() == [2, 3, 2, 0, 1, 0]  # into 0: from 2 and 3; into 1: from 2; ...
    assert table[2].tolist() == [-1, -1, -1, 1, 1, 1]
