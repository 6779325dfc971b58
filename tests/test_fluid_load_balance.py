# SPDX-License-Identifier: Apache-2.0
"""Hashed paths give the throughput that balls in bins give; max-min fair shares of leaf-spines.

Reference means of random derangements were computed by an independent program: every queue pair
picks a spine uniformly, all links are equal, rates are max-min fair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.fabric.schedule import ScheduleBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 100 * 10**9
SETTINGS = NetworkSettings(ack_every=0)


def leaf_spine(leaves: int, hosts: int, spines: int, *, cables: int = 1) -> Fabric:
    build = FabricBuilder("leaf-spine")
    wire = {"rate_bps": RATE, "delay_ps": 0, "model": LinkModel.ROCE_LOSSLESS}
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(leaves * hosts)
    ]
    leaf = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(leaves)]
    spine = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(spines)]
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaf[i // hosts], **wire)  # type: ignore[arg-type]
    for below in leaf:
        for above in spine:
            for _ in range(cables):
                build.add_cable(below, above, **wire)  # type: ignore[arg-type]
    return build.finish()


def shares(
    fabric: Fabric, target: NDArray[np.int64], *, seed: int, qps: int = 1, policy: str = "ecmp"
) -> NDArray[np.float64]:
    """Rate of each queue pair as a share of a link, shape (connections, qps), all being active."""
    env = FabricEnvironment()
    routing = Routing(fabric, policy=policy, seed=seed)
    engine = FluidEngine(env, fabric, routing, SETTINGS, qps=qps, memo=False)
    build = ScheduleBuilder(n_ranks=len(target))
    for src, dst in enumerate(target):
        build.transfer(src, int(dst), 10**8)
    engine.execute(build.finish(), [int(nic) for nic in fabric.nics])
    env.run(until=1)
    (group,) = engine._jobs
    slots = engine.state.slots_of(group)  # in the order of the transfers
    assert len(slots) == len(target) * qps
    return np.asarray(engine.state.slots.rate[slots].reshape(len(target), qps) / RATE)


def derangement(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    while True:
        target = rng.permutation(n)
        if not (target == np.arange(n)).any():
            return target


# ------------------------------------------------------------------ balls in bins
@pytest.mark.parametrize(("n", "leaves", "seeds", "expected"), [
    (16, 16, 13, 0.6439), (32, 8, 15, 0.6379),
])  # fmt: skip
def test_shift_by_one_leaf_is_balls_in_bins(
    n: int, leaves: int, seeds: int, expected: float
) -> None:
    assert 1 - (1 - 1 / n) ** n == pytest.approx(expected, abs=5e-5)
    fabric = leaf_spine(leaves, n, n)
    rng = np.random.default_rng(11)
    means, slowest = [], []
    for seed in range(1, seeds + 1):
        target = np.concatenate(
            [(leaf + 1) % leaves * n + rng.permutation(n) for leaf in range(leaves)]
        )
        got = shares(fabric, target, seed=seed).reshape(leaves, n)
        means.extend(got.mean(axis=1))
        slowest.extend(got.min(axis=1))
    assert len(means) >= 100
    assert np.mean(means) == pytest.approx(expected, rel=0.02)
    # The slowest flow of a leaf has 1/k of a link, k being the fullest uplink's number of flows.
    fullest = 1 / np.array(slowest)
    assert np.allclose(fullest, np.rint(fullest), rtol=1e-9)
    assert fullest.mean() == pytest.approx({16: 3.075, 32: 3.532}[n], rel=0.03)


# ------------------------------------------------------------------ random derangements
FIGURES = {  # (L, H, S): {q: (mean, tolerance)}
    (4, 4, 4): {1: 0.706, 2: 0.824, 4: 0.927},
    (16, 16, 16): {1: 0.555, 2: 0.707, 4: 0.844, 8: 0.933, 16: 0.977},
}
SLOWEST_QP = {2: 0.565, 4: 0.597, 8: 0.649, 16: 0.714}


@pytest.mark.parametrize(("shape", "samples"), [((4, 4, 4), 200), ((16, 16, 16), 20)])
def test_random_derangements_of_one_queue_pair(shape: tuple[int, int, int], samples: int) -> None:
    leaves, hosts, _ = shape
    fabric, rng = leaf_spine(*shape), np.random.default_rng(5)
    mean, cross, slow, full = [], [], [], []
    for seed in range(samples):
        target = derangement(rng, leaves * hosts)
        got = shares(fabric, target, seed=seed)[:, 0]
        away = target // hosts != np.arange(leaves * hosts) // hosts
        assert np.all(got[~away] == 1.0)  # inside a leaf nobody is in the way
        mean.append(got.mean())
        cross.append(got[away].mean())
        slow.append(got.min())
        full.append((got > 1 - 1e-9).mean())
    small = shape == (4, 4, 4)
    assert np.mean(mean) == pytest.approx(FIGURES[shape][1], rel=0.03)
    assert np.mean(cross) == pytest.approx(0.637 if small else 0.527, rel=0.03)
    assert np.mean(slow) == pytest.approx(0.406 if small else 0.218, rel=0.03)
    assert np.mean(full) == pytest.approx(0.455 if small else 0.222, rel=0.03)
    assert np.std(mean) == pytest.approx(0.097 if small else 0.020, rel=0.2)


@pytest.mark.parametrize(
    ("shape", "samples", "qps"),
    [((4, 4, 4), 200, 2), ((4, 4, 4), 200, 4)] + [((16, 16, 16), 20, q) for q in (2, 4, 8, 16)],
)
def test_random_derangements_of_several_queue_pairs(
    shape: tuple[int, int, int], samples: int, qps: int
) -> None:
    leaves, hosts, _ = shape
    fabric, rng = leaf_spine(*shape), np.random.default_rng(7)
    mean, split = [], []
    for seed in range(samples):
        got = shares(fabric, derangement(rng, leaves * hosts), seed=seed, qps=qps)
        mean.append(got.sum(axis=1).mean())
        split.append(qps * got.min(axis=1).mean())
    assert np.mean(mean) == pytest.approx(FIGURES[shape][qps], rel=0.03)
    if leaves == 16:  # a message split evenly ends with its slowest part
        assert np.mean(split) == pytest.approx(SLOWEST_QP[qps], rel=0.03)


def test_ideal_spraying_gives_everybody_the_full_rate() -> None:
    fabric, rng = leaf_spine(16, 16, 16), np.random.default_rng(3)
    got = shares(fabric, derangement(rng, 256), seed=1, policy="spray")
    assert got == pytest.approx(np.ones((256, 1)), rel=1e-9)


def test_destination_routing_carries_a_shift_at_full_rate() -> None:
    # d-mod-k: the hosts of a leaf climb by distinct spines, whatever leaf they go to.
    fabric = leaf_spine(4, 4, 4)
    target = (np.arange(16) + 4) % 16
    assert shares(fabric, target, seed=1, policy="rail") == pytest.approx(np.ones((16, 1)))


# ------------------------------------------------------------------ what should change a result
def test_seed_and_placement_change_hashed_rates() -> None:
    fabric = leaf_spine(8, 8, 8)
    rng = np.random.default_rng(1)
    target, other = derangement(rng, 64), derangement(rng, 64)
    base = shares(fabric, target, seed=1)
    assert np.array_equal(base, shares(fabric, target, seed=1))
    assert not np.array_equal(base, shares(fabric, target, seed=2))
    assert not np.array_equal(base, shares(fabric, other, seed=1))


def test_k_parallel_cables_carry_k_times_as_much() -> None:
    # 16 hosts cross two leaves by one spine: one link's worth over k parallel cables is k links'.
    target = (np.arange(32) + 16) % 32
    for k in (1, 2, 4):
        fabric = leaf_spine(2, 16, 1, cables=k)
        sprayed = shares(fabric, target, seed=1, policy="spray")
        assert sprayed == pytest.approx(np.full((32, 1), k / 16), rel=1e-9)
        hashed = shares(fabric, target, seed=1)
        # Both directions: each used uplink is full unless a downlink of its flows limits more.
        assert hashed.sum() <= 2 * k * (1 + 1e-9)
        assert hashed.sum() > 2 * (k - 1) or k == 1
