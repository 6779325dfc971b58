# SPDX-License-Identifier: Apache-2.0
"""Collectives executed on the fluid engine against their closed forms, and published figures.

The fabrics are idle and ideal: every GPU on one crossbar whose path latency is alpha, or hosts of
eight with a crossbar each and a NIC per GPU.
"""

from __future__ import annotations

from math import ceil, log2, sqrt
from typing import TYPE_CHECKING

import pytest

from railweave.collectives import algorithms, bus_bandwidth_Bps, closed_form_ps, plan
from railweave.collectives.algorithm import Links
from railweave.collectives.closed_form import PROTOCOLS, nvls_all_reduce_ps, protocol, ring_ps
from railweave.collectives.operations import OPERATIONS
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.workloads.replay.links import links_between

if TYPE_CHECKING:
    from fractions import Fraction

    from railweave.fabric.schedule import Schedule

G = 10**9
US = 10**6  # ps
RAW = NetworkSettings(
    frame_overhead_bytes=0, ack_every=0, switch_latency_ps=0, host_latency_ps=0, cut_through=True
)
RANKS = (2, 3, 8, 24, 64, 72)
ALPHA, RATE = 5 * US, 400 * G  # 20 ps a byte
LINKS = Links(alpha_ps=ALPHA, rate_bps=RATE, local_alpha_ps=ALPHA, local_rate_bps=RATE)
AT = {"alpha_ps": ALPHA, "rate_bps": RATE}


def crossbar(gpus: int, *, rate_bps: int = RATE, alpha_ps: int = ALPHA) -> Fabric:
    build = FabricBuilder("crossbar")
    host = build.add_host("h0")
    center = build.add_device("h0/nvs0", DeviceKind.NVSWITCH, host=host)
    for i in range(gpus):
        gpu = build.add_device(f"h0/gpu{i}", DeviceKind.GPU, host=host, index=i)
        build.add_cable(
            gpu, center, rate_bps=rate_bps, delay_ps=alpha_ps // 2, model=LinkModel.NVLINK,
            tier="nvlink",
        )  # fmt: skip
    return build.finish()


def took_ps(fabric: Fabric, schedule: Schedule) -> int:
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), RAW, memo=False)
    done = engine.execute(schedule, [int(gpu) for gpu in fabric.gpus[: schedule.n_ranks]])
    env.run(until=done)
    record = done.value
    assert record.end_ps >= record.bound_ps
    return int(record.end_ps)


# ------------------------------------------------------------------ published figures
def test_published_ring_and_nvls_figures() -> None:
    rate, size = 8 * 370_800_000_000, 2**30
    ring = closed_form_ps(
        "all_reduce", "ring", ranks=8, size_bytes=size, alpha_ps=3_400_000, rate_bps=rate
    )
    assert round(ring / US, 2) == 5115.15
    assert round(bus(8, size, ring), 2) == 367.35
    nvls = nvls_all_reduce_ps(ranks=8, size_bytes=size, rate_bps=rate)
    assert round(float(nvls) / US, 2) == 3832.60
    assert round(bus(8, size, int(nvls)), 2) == 490.28


def bus(ranks: int, size: int, time_ps: int) -> float:
    rate = bus_bandwidth_Bps("all_reduce", ranks=ranks, size_bytes=size, time_ps=time_ps)
    return rate / 1e9


def test_protocol_totals_rates_and_crossovers() -> None:
    rate = 8 * 370_800_000_000
    totals = {p.name: p.latency_ps(14) / US for p in PROTOCOLS}
    assert totals == {"LL": 15.0, "LL128": 40.6, "Simple": 56.0}
    rates = {p.name: float(p.rate_bps(rate)) / 8e9 for p in PROTOCOLS}
    assert rates == {"LL": 141.0, "LL128": 341.136, "Simple": 370.8}

    def time(name: str, size: int) -> Fraction:
        return ring_ps("all_reduce", name, ranks=8, size_bytes=size, rate_bps=rate)

    for low, high, megabytes in (("LL", "LL128", 3.516), ("LL128", "Simple", 37.52)):
        first, last = 1, 10**9
        while last - first > 1:
            middle = (first + last) // 2
            if time(low, middle) < time(high, middle):
                first = middle
            else:
                last = middle
        assert float(f"{last / 1e6:.4g}") == megabytes


def test_unknown_protocols_and_operations_are_refused() -> None:
    with pytest.raises(InputError, match="'LL129' is not a protocol"):
        protocol("LL129")
    with pytest.raises(InputError, match="broadcast is not done by a ring"):
        ring_ps("broadcast", "LL", ranks=8, size_bytes=8, rate_bps=8)


@pytest.mark.parametrize(("name", "published_us"), [("ring", 672.11), ("halving_doubling", 102.11)])
def test_64_ranks_published_and_executed(name: str, published_us: float) -> None:
    rate, size = 392_148_800_000, 2**20
    assert rate == 8 * 49_018_600_000
    expected = closed_form_ps(
        "all_reduce", name, ranks=64, size_bytes=size, alpha_ps=ALPHA, rate_bps=rate
    )
    assert round(expected / US, 2) == published_us
    schedule = plan("all_reduce", ranks=64, size_bytes=size, algorithm=name)
    found = took_ps(crossbar(64, rate_bps=rate), schedule)
    assert expected <= found <= expected + 126  # each step ends at a whole picosecond


# ------------------------------------------------------------------ every algorithm, idle fabric
# NVLS needs a switch among its ends: test_collectives_nccl.
EVERY = [
    (op, name)
    for op in OPERATIONS
    for name in algorithms(op)
    if op != "recv" and name not in ("collnet", "nvls")
]


@pytest.mark.parametrize(("op", "name"), EVERY)
@pytest.mark.parametrize("ranks", RANKS)
def test_latency_terms_are_exact(op: str, name: str, ranks: int) -> None:
    schedule = plan(op, ranks=ranks, size_bytes=0, algorithm=name, links=LINKS)
    expected = closed_form_ps(op, name, ranks=ranks, size_bytes=0, **AT)
    assert took_ps(crossbar(ranks), schedule) == expected
    log = ceil(log2(ranks))
    core = ranks.bit_length() - 1
    alphas = {
        "ring": (ranks - 1) * (2 if op in ("all_reduce", "barrier") else 1),
        "hierarchical": (ranks - 1) * (2 if op == "all_reduce" else 1),
        "halving_doubling": 2 * core + 2 * (ranks > 2**core),
        "tree": log * (2 if op in ("all_reduce", "barrier") else 1),
        "chain": ranks - 1,
        "host_tree": 2 * (ranks - 1),
        "pat": log,
    }
    assert expected == alphas.get(name, 1) * ALPHA


TABLE = [pair for pair in EVERY if pair[0] != "barrier" and "tree" not in pair[1]]


@pytest.mark.parametrize(("op", "name"), TABLE)
@pytest.mark.parametrize("ranks", RANKS)
def test_time_is_the_closed_form(op: str, name: str, ranks: int) -> None:
    size = 72 * 2**16  # divided by every number of ranks
    schedule = plan(op, ranks=ranks, size_bytes=size, algorithm=name, links=LINKS)
    expected = closed_form_ps(op, name, ranks=ranks, size_bytes=size, **AT)
    found = took_ps(crossbar(ranks), schedule)
    # Chunks that do not divide the size are a byte longer here and there.
    steps = 0 if schedule.phase is None else int(schedule.phase.max()) + 1
    assert expected <= found <= expected + 20 * steps + schedule.n_chunks
    assert found <= expected * 1.02


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize("name", ["chain", "tree"])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("chunks", [1, 32])
def test_pipelines_of_one_slot(op: str, name: str, ranks: int, chunks: int) -> None:
    """(D + k - 1) x (alpha + S / (k B))."""
    size = 2**21
    schedule = plan(op, ranks=ranks, size_bytes=size, algorithm=name, chunks=chunks, slots=1)
    depth = ranks - 1 if name == "chain" else ceil(log2(ranks))
    expected = (depth + chunks - 1) * (ALPHA + size // chunks * 20)
    assert expected == closed_form_ps(
        op, name, ranks=ranks, size_bytes=size, chunks=chunks, slots=1, **AT
    )
    found = took_ps(crossbar(ranks), schedule)
    if name == "chain" or (
        ranks > 3 and (chunks > 1 or op == "broadcast" or ranks & ranks - 1 == 0)
    ):
        assert found == expected
    elif ranks > 3:  # in a tree that is not full a lone chunk has one of its hops to itself
        assert expected - size // 2 * 20 <= found <= expected
    else:  # no rank has two children: chunks do not wait for each other as the formula has it
        assert expected * 0.4 < found <= expected


@pytest.mark.parametrize("ranks", [8, 24, 72])
def test_the_best_number_of_chunks_of_one_slot(ranks: int) -> None:
    size, hops = 72 * 2**20, ranks - 1
    schedule = plan("broadcast", ranks=ranks, size_bytes=size, slots=1, links=LINKS)
    ratio = size * 20 / ALPHA
    assert schedule.n_chunks == pytest.approx(sqrt((hops - 1) * ratio), abs=0.51)
    least = (sqrt((hops - 1) * ALPHA) + sqrt(size * 20)) ** 2
    assert took_ps(crossbar(ranks), schedule) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("slots", [2, 8])
def test_the_best_number_of_chunks_of_several_slots(slots: int) -> None:
    size = 2**22

    def time(chunks: int) -> int:
        schedule = plan("broadcast", ranks=16, size_bytes=size, slots=slots, chunks=chunks)
        return took_ps(crossbar(16), schedule)

    best = plan("broadcast", ranks=16, size_bytes=size, slots=slots, links=LINKS).n_chunks
    least = time(best)
    for other in (best // 3, best // 2, best * 2, best * 3):
        assert least <= time(other) * 1.005


@pytest.mark.parametrize("ranks", RANKS)
def test_double_binary_tree_fully_pipelined(ranks: int) -> None:
    size = 72 * 2**22
    schedule = plan("all_reduce", ranks=ranks, size_bytes=size, algorithm="tree", chunks=1024)
    found = took_ps(crossbar(ranks), schedule)
    sent = {2: 1, 3: 1.5}.get(ranks, 2)  # times the buffer, by the busiest rank
    expected = 2 * ceil(log2(ranks)) * ALPHA + sent * size * 20
    assert found == pytest.approx(expected, rel=0.02)
    assert closed_form_ps("all_reduce", "tree", ranks=ranks, size_bytes=size, **AT) == expected
    assert schedule.bytes_sent_per_rank().max() == sent * size


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("size", "least", "most"), [
    (2**16, 1.0, 1.06), (72 * 2**16, 0.945, 1.01), (72 * 2**18, 0.98, 1.005),
])  # fmt: skip
def test_double_binary_tree_of_shorter_buffers(
    ranks: int, size: int, least: float, most: float
) -> None:
    """What goes up fills the wait for what comes down, so the sum of both terms is not reached;
    of a short buffer a piece is a packet or two, and each hop takes its whole time."""
    schedule = plan("all_reduce", ranks=ranks, size_bytes=size, algorithm="tree", links=LINKS)
    found = took_ps(crossbar(ranks), schedule)
    latency, sent = 2 * ceil(log2(ranks)) * ALPHA, {2: 1, 3: 1.5}.get(ranks, 2) * size * 20
    assert max(latency, sent) < found
    assert least * (latency + sent) < found < most * (latency + sent)


@pytest.mark.parametrize(("op", "turns"), [("all_reduce", 2), ("all_gather", 1)])
@pytest.mark.parametrize("options", [{"chunks": 4}, {"chunks": 8, "slots": 2}, {"channels": 4}])
def test_rings_of_several_chunks_or_channels(op: str, turns: int, options: dict[str, int]) -> None:
    ranks, size = 8, 2**23
    schedule = plan(op, ranks=ranks, size_bytes=size, algorithm="ring", **options)
    found = took_ps(crossbar(ranks), schedule)
    assert found == closed_form_ps(op, "ring", ranks=ranks, size_bytes=size, **options, **AT)
    plain = turns * 7 * (ALPHA + size // 8 * 20)
    if "channels" in options:
        assert found == plain
    elif "slots" not in options:  # latencies are hidden behind the other chunks
        assert found == ALPHA + turns * 7 * (size // 8 * 20)


# ------------------------------------------------------------------ hosts of eight
LOCAL_ALPHA, LOCAL_RATE = US, 3200 * G  # 2.5 ps a byte
HEADER_PS = 128 * 20  # a cut-through switch reads it before it forwards
NET_ALPHA = 4 * US + HEADER_PS


def hosts_of_eight(hosts: int) -> Fabric:
    build = FabricBuilder("eights")
    rails = [build.add_device(f"leaf{r}", DeviceKind.SWITCH, tier=1) for r in range(8)]
    for h in range(hosts):
        host = build.add_host(f"h{h}")
        center = build.add_device(f"h{h}/nvs0", DeviceKind.NVSWITCH, host=host)
        gpus = [
            build.add_device(f"h{h}/gpu{i}", DeviceKind.GPU, host=host, index=i) for i in range(8)
        ]
        for i, gpu in enumerate(gpus):
            nic = build.add_device(f"h{h}/nic{i}", DeviceKind.NIC, host=host, index=i, rail=i)
            build.set_affine_nic(gpu, nic)
            build.add_cable(
                gpu, center, rate_bps=LOCAL_RATE, delay_ps=LOCAL_ALPHA // 2,
                model=LinkModel.NVLINK, tier="nvlink",
            )  # fmt: skip
            build.add_cable(
                gpu, nic, rate_bps=800 * G, delay_ps=US, model=LinkModel.PCIE, tier="pcie"
            )
            build.add_cable(
                nic, rails[i], rate_bps=RATE, delay_ps=US, model=LinkModel.ROCE_LOSSLESS,
                tier="host-leaf",
            )  # fmt: skip
    return build.finish()


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize(
    ("op", "name"),
    [("all_reduce", "hierarchical"), ("all_gather", "hierarchical"),
     ("reduce_scatter", "hierarchical"), ("all_to_all", "pxn")],
)  # fmt: skip
@pytest.mark.parametrize("size", [0, 24 * 2**18])
def test_hierarchical_on_hosts_of_eight(op: str, name: str, hosts: int, size: int) -> None:
    n, of = 8 * hosts, [rank // 8 for rank in range(8 * hosts)]
    schedule = plan(op, ranks=n, size_bytes=size, algorithm=name, hosts=of)
    if name == "pxn":
        change = 7 * (size / n) * 2.5
        expected = LOCAL_ALPHA + change + NET_ALPHA + (hosts - 1) * size / hosts * 20
    else:
        expected = 7 * (LOCAL_ALPHA + size / 8 * 2.5)
        expected += (hosts - 1) * (NET_ALPHA + size / 8 / hosts * 20)
        expected *= 2 if op == "all_reduce" else 1
    found = took_ps(hosts_of_eight(hosts), schedule)
    assert expected - 1 <= found <= expected + 4 * hosts + 20
    closed = closed_form_ps(
        op, name, ranks=n, size_bytes=size, hosts=of, alpha_ps=NET_ALPHA, rate_bps=RATE,
        local_alpha_ps=LOCAL_ALPHA, local_rate_bps=LOCAL_RATE,
    )  # fmt: skip
    assert closed == pytest.approx(expected, abs=1)


def test_links_are_found_on_the_fabric() -> None:
    fabric = hosts_of_eight(2)
    engine = make_engine("fluid", FabricEnvironment(), fabric, Routing(fabric), RAW)
    gpus, of = fabric.gpus.tolist(), [rank // 8 for rank in range(16)]
    both = Links(
        alpha_ps=NET_ALPHA, rate_bps=RATE, local_alpha_ps=LOCAL_ALPHA, local_rate_bps=LOCAL_RATE
    )
    assert links_between(engine, gpus, of) == both
    inside = Links(
        alpha_ps=LOCAL_ALPHA, rate_bps=LOCAL_RATE,
        local_alpha_ps=LOCAL_ALPHA, local_rate_bps=LOCAL_RATE,
    )  # fmt: skip
    assert links_between(engine, gpus[:8], of[:8]) == inside
    assert links_between(engine, gpus[:1], of[:1]) is None


@pytest.mark.parametrize("channels", [1, 2, 8])
def test_channels_stripe_a_ring_over_the_nics_of_a_host(channels: int) -> None:
    hosts, size = 4, 2**26
    of = [rank // 8 for rank in range(32)]
    schedule = plan(
        "all_reduce", ranks=32, size_bytes=size, algorithm="ring", hosts=of, channels=channels
    )
    fabric = hosts_of_eight(hosts)
    if channels == 1:
        # The only ring leaves a host on its last rail and enters the next on the first.
        with pytest.raises(InputError, match="no route"):
            took_ps(fabric, schedule)
        return
    found = took_ps(fabric, schedule)
    bound = closed_form_ps(
        "all_reduce", "ring", ranks=32, size_bytes=size, hosts=of, channels=channels,
        alpha_ps=NET_ALPHA, rate_bps=RATE, local_alpha_ps=LOCAL_ALPHA, local_rate_bps=LOCAL_RATE,
    )  # fmt: skip
    assert bound == NET_ALPHA + 62 * size // 32 // channels * 20
    assert bound <= found < bound * 1.25


# ------------------------------------------------------------------ shared ports, large rings
def test_all_to_all_of_256_shares_ports() -> None:
    """16 switches of 16 hosts of 100 Gb/s, each with one uplink of 400 Gb/s to a core."""
    build = FabricBuilder("shared")
    core = build.add_device("core", DeviceKind.SWITCH, tier=2)
    wire = {"delay_ps": 500_000, "model": LinkModel.ROCE_LOSSLESS}
    nics = []
    for leaf in range(16):
        switch = build.add_device(f"leaf{leaf}", DeviceKind.SWITCH, tier=1)
        build.add_cable(switch, core, rate_bps=400 * G, tier="leaf-spine", **wire)
        for h in range(16):
            host = build.add_host(f"h{leaf}-{h}")
            nics.append(build.add_device(f"h{leaf}-{h}/nic0", DeviceKind.NIC, host=host))
            build.add_cable(nics[-1], switch, rate_bps=100 * G, tier="host-leaf", **wire)
    fabric = build.finish()
    env = FabricEnvironment()
    engine = make_engine("fluid", env, fabric, Routing(fabric), RAW, memo=False)
    size = 256 * 2**16
    done = engine.execute(plan("all_to_all", ranks=256, size_bytes=size), nics)
    env.run(until=done)
    alone = size * 255 // 256 * 80
    uplink = 16 * 240 * (size // 256) * 20
    assert uplink / alone == pytest.approx(3.76, abs=0.01)
    assert uplink < done.value.end_ps < uplink + 2_100_000  # and the path's latency
    assert done.value.end_ps == pytest.approx(uplink, rel=0.001)


def test_an_idle_ring_of_1024_is_within_a_thousandth() -> None:
    size = 2**28
    schedule = plan("all_reduce", ranks=1024, size_bytes=size, algorithm="ring")
    assert schedule.n_runs == 2_095_104
    found = took_ps(crossbar(1024), schedule)
    expected = 2046 * (ALPHA + size // 1024 * 20)
    assert found == pytest.approx(expected, rel=1e-3)
    assert found >= expected
