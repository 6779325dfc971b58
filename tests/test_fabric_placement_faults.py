# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.placement import place
from railweave.topologies import build_topology, load_topology
from railweave.topologies.checks import check, unreachable_pairs
from railweave.topologies.summary import bisection_bps, oversubscription


@pytest.fixture(scope="module")
def lab():
    return build_topology(load_topology("h100-rail-8"))


def test_packed_fills_hosts_in_order(lab):
    names = [lab.device_names[gpu] for gpu in place(lab, "packed", 10)]
    assert names == [*(f"h0/gpu{i}" for i in range(8)), "h1/gpu0", "h1/gpu1"]
    rest = place(lab, "packed", None, taken=lab.gpus[:60])
    assert [lab.device_names[gpu] for gpu in rest] == [f"h7/gpu{i}" for i in range(4, 8)]


def test_random_is_a_permutation_fixed_by_the_seed(lab):
    one = place(lab, "random", 64, seed=7)
    assert sorted(one) == lab.gpus.tolist()
    assert np.array_equal(one, place(lab, "random", 64, seed=7))
    assert not np.array_equal(one, place(lab, "random", 64, seed=8))
    assert not np.array_equal(one, place(lab, "random", 64, seed=7, stream=1))
    assert np.array_equal(one[:5], place(lab, "random", 5, seed=7))
    order = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(7, spawn_key=(5, 2**31)))
    ).permutation(lab.gpus)
    assert np.array_equal(one, order)


def test_lists_name_gpus_or_hosts(lab):
    chosen = place(lab, "list", None, gpus=["h3/gpu5", "h1"])
    names = [lab.device_names[gpu] for gpu in chosen]
    assert names == ["h3/gpu5", *(f"h1/gpu{i}" for i in range(8))]


@pytest.mark.parametrize(
    ("policy", "n", "more", "field", "part"),
    [
        ("packed", 65, {}, "ranks", "65 ranks, but there are 64 GPUs"),
        ("random", 57, {"taken": "h0"}, "ranks", "57 ranks, but there are 56 free GPUs"),
        ("list", 3, {"gpus": ["h0/gpu0"]}, "ranks", "3 ranks, but the list has 1 GPU"),
        ("pakced", 1, {}, "policy", "did you mean 'packed'?"),
        ("list", 1, {}, "gpus", "it is missing"),
        ("packed", 1, {"gpus": ["h0/gpu0"]}, "gpus", "takes no list"),
        ("list", 1, {"gpus": ["h0/gup0"]}, "gpus.0", "did you mean 'h0/gpu0'?"),
        ("list", 1, {"gpus": ["h0/gpu1", "h0/nic1"]}, "gpus.1", "is not a GPU"),
        ("list", 1, {"gpus": ["h0", "h0/gpu1"]}, "gpus.1", "'h0/gpu1' is named twice"),
        ("list", 1, {"gpus": ["h0/gpu1"], "taken": [1]}, "gpus.0", "taken by another workload"),
    ],
)
def test_bad_placements(lab, policy, n, more, field, part):
    if more.get("taken") == "h0":
        more = {"taken": lab.gpus[:8].tolist()}
    with pytest.raises(InputError) as caught:
        place(lab, policy, n, **more)
    assert caught.value.field == field
    assert part in str(caught.value)


def test_a_cable_goes_down_in_both_directions(lab):
    broken = apply_faults(lab, [Fault(link="leaf0.r0:8-spine0:0")])
    down = [lab.link_name(link) for link in np.flatnonzero(~broken.link_up)]
    assert down == ["leaf0.r0:8>spine0:0", "spine0:0>leaf0.r0:8"]
    again = apply_faults(lab, [Fault(link="spine0:0-leaf0.r0:8")])
    assert np.array_equal(again.link_up, broken.link_up)
    one_way = apply_faults(lab, [Fault(link="spine0:0>leaf0.r0:8")])
    assert [lab.link_name(link) for link in np.flatnonzero(~one_way.link_up)] == down[1:]
    assert lab.link_up.all()
    healed = apply_faults(broken, [Fault(link="leaf0.r0:8-spine0:0", do="up")])
    assert healed.link_up.all()


def test_a_lost_spine_halves_the_uplinks(lab):
    broken = apply_faults(lab, [Fault(node="spine1")])
    assert (~broken.link_up).sum() == 2 * 32
    assert oversubscription(broken)["leaf"] == 2
    assert unreachable_pairs(broken) == (0, None)
    (found,) = check(broken)
    assert (found.rule, found.message) == ("unused-switch", "no link ends on spine1")
    assert "oversubscription: leaf: declared 1:1, built 2:1" in found.consequences


def test_a_lost_leaf_takes_one_gpu_of_every_host(lab):
    broken = apply_faults(lab, [Fault(node="leaf0.r3")])
    # 8 GPUs of rail 3 against the 56 of other rails in other hosts, and among themselves
    pairs = 2 * 8 * 49 + 8 * 7
    assert unreachable_pairs(broken) == (pairs, ("h0/gpu0", "h1/gpu3"))
    assert bisection_bps(broken) == bisection_bps(lab) * 7 // 8


def test_a_lost_host(lab):
    broken = apply_faults(lab, [Fault(node="h2")])
    touched = np.isin(lab.link_src, np.flatnonzero(lab.host == 2))
    assert not broken.link_up[touched].any()
    assert (~broken.link_up).sum() == 2 * touched.sum() - sum(
        lab.link_tier[link] in ("nvlink", "pcie") for link in np.flatnonzero(touched)
    )


def test_degraded_links_keep_their_place(lab):
    slow = apply_faults(lab, [Fault(link="h0/nic0:0-leaf0.r0:0", do="degrade", rate_bps=10**11)])
    assert slow.link_up.all()
    changed = np.flatnonzero(slow.link_rate_bps != lab.link_rate_bps)
    assert slow.link_rate_bps[changed].tolist() == [10**11, 10**11]


@pytest.mark.parametrize(
    ("fault", "field", "part"),
    [
        (Fault(node="spine9"), "node", "did you mean 'spine"),
        (Fault(link="leaf0.r0:8-spine0:9"), "link", "did you mean 'leaf0.r0:8-spine0:0'?"),
        (Fault(link="leaf0.r0"), "link", "A:port-B:port"),
        (Fault(node="spine0", at_ps=2 * 10**9), "at", "begins or ends at a time (2ms)"),
        (Fault(node="spine0", for_ps=10**9), "for", "begins or ends at a time (1ms)"),
        (Fault(node="spine0", do="dwon"), "do", "did you mean 'down'?"),
        (Fault(node="spine0", do="pause-storm"), "node", "sends no pauses from a host"),
        (Fault(node="spine0", do="degrade"), "rate", "needs a rate"),
        (Fault(node="spine0", do="degrade", rate_bps=10**12), "rate", "at most 400Gbps"),
        (Fault(node="spine0", do="down", rate_bps=1), "rate", "no rate"),
        (Fault(), "link", "either link or node"),
        (Fault(link="a:1-b:1", node="spine0"), "link", "either link or node"),
    ],
)
def test_bad_faults(lab, fault, field, part):
    with pytest.raises(InputError) as caught:
        apply_faults(lab, [Fault(node="spine1"), fault])
    assert caught.value.field == f"faults.1.{field}"
    assert part in str(caught.value)
