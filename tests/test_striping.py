# SPDX-License-Identifier: Apache-2.0
"""GPUs with several NICs: queue pairs and channels use them in turn."""

from __future__ import annotations

import pytest

from railweave.collectives import plan
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing

G = 10**9
RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)


def hosts(nics: list[int], *, gpus: int = 2) -> Fabric:
    """Hosts whose GPUs and NICs hang on one PCIe switch; NIC i is on rail i."""
    build = FabricBuilder("nics")
    rails = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(max(nics))]
    for h, count in enumerate(nics):
        host = build.add_host(f"h{h}")
        tree = build.add_device(f"h{h}/pcie0", DeviceKind.PCIE_SWITCH, host=host)
        center = build.add_device(f"h{h}/nvs0", DeviceKind.NVSWITCH, host=host)
        cards = [
            build.add_device(f"h{h}/nic{i}", DeviceKind.NIC, host=host, index=i, rail=i)
            for i in range(count)
        ]
        for i in range(gpus):
            gpu = build.add_device(f"h{h}/gpu{i}", DeviceKind.GPU, host=host, index=i)
            build.set_affine_nic(gpu, cards[i % count])
            for part, model in ((tree, LinkModel.PCIE), (center, LinkModel.NVLINK)):
                build.add_cable(gpu, part, rate_bps=1600 * G, delay_ps=0, model=model)
        for card, rail in zip(cards, rails, strict=False):
            build.add_cable(card, tree, rate_bps=800 * G, delay_ps=0, model=LinkModel.PCIE)
            build.add_cable(card, rail, rate_bps=100 * G, delay_ps=0, model=LinkModel.ROCE_LOSSLESS)
    return build.finish()


def nics_of(fabric: Fabric, src: str, dst: str, qp: int) -> list[str]:
    routes = Routing(fabric).routes([fabric.device(src)], [fabric.device(dst)], qp)
    crossed = {int(fabric.link_src[link]) for link in routes.path(0)}
    crossed |= {int(fabric.link_dst[link]) for link in routes.path(0)}
    return sorted(fabric.device_names[d] for d in crossed if fabric.kind[d] == DeviceKind.NIC)


def test_queue_pairs_take_the_nics_of_a_gpu_in_turn() -> None:
    fabric = hosts([6, 6])
    # NICs 0 and 1 are the affine ones of the two GPUs; 2 and 4, 3 and 5 are dealt to them.
    used = [nics_of(fabric, "h0/gpu0", "h1/gpu0", qp) for qp in range(4)]
    assert used == [[f"h0/nic{i}", f"h1/nic{i}"] for i in (0, 2, 4, 0)]
    used = [nics_of(fabric, "h1/gpu1", "h0/gpu1", qp) for qp in range(4)]
    assert used == [[f"h0/nic{i}", f"h1/nic{i}"] for i in (1, 3, 5, 1)]


def test_nics_that_cannot_be_shared_evenly_are_left_over() -> None:
    fabric = hosts([3, 3])
    assert {tuple(nics_of(fabric, "h0/gpu0", "h1/gpu0", qp)) for qp in range(8)} == {
        ("h0/nic0", "h1/nic0")
    }


def test_fewer_nics_than_gpus_are_shared() -> None:
    fabric = hosts([1, 1])
    for gpu in ("gpu0", "gpu1"):
        for qp in range(3):
            assert nics_of(fabric, f"h0/{gpu}", f"h1/{gpu}", qp) == ["h0/nic0", "h1/nic0"]


@pytest.mark.parametrize(("qps", "faster"), [(1, 1), (2, 2), (3, 3)])
def test_a_message_is_striped_over_the_nics(qps: int, faster: int) -> None:
    fabric = hosts([6, 6])
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), RAW, qps=qps)
    size = 6 * 10**6
    ends = [fabric.device("h0/gpu0"), fabric.device("h1/gpu0")]
    done = engine.execute(plan("send", ranks=2, size_bytes=size), ends)
    env.run(until=done)
    header = 128 * (80 + 10 + 5) * 2  # switches of all kinds read one
    alone = size * 80
    assert alone // faster <= done.value.end_ps <= alone // faster + header


@pytest.mark.parametrize("channels", [2, 4, 6])
def test_channels_are_striped_over_the_nics(channels: int) -> None:
    fabric = hosts([6, 6])
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), RAW)
    of = [0, 0, 1, 1]
    size = 24 * 10**6
    schedule = plan(
        "all_gather", ranks=4, size_bytes=size, algorithm="ring", channels=channels, hosts=of
    )
    done = engine.execute(schedule, [int(gpu) for gpu in fabric.gpus])
    env.run(until=done)
    # Three quarters of the buffer leave each host, once per channel's part, by a NIC for each.
    assert done.value.end_ps == pytest.approx(size * 3 // 4 // channels * 80, rel=0.02)
