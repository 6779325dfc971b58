# SPDX-License-Identifier: Apache-2.0
"""Serving's parts: placement, routers, steps as schedules, one NIC for all, and bad input."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.collectives import plan
from railweave.fabric.chain import chain, parallel, work
from railweave.fabric.devices import gpu_model
from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.engines import make_engine
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.routing import Routing
from railweave.runner import prepare, run_scenario
from railweave.scenario import load_scenario
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.serving.batching import BATCHINGS
from railweave.workloads.serving.handoff.mover import KvMover
from railweave.workloads.serving.memory import MEMORIES
from railweave.workloads.serving.placing import place_pools, placed_replicas
from railweave.workloads.serving.replica import Replica
from railweave.workloads.serving.replica_plan import ReplicaPlan
from railweave.workloads.serving.request import Request
from railweave.workloads.serving.routers import ROUTERS
from railweave.workloads.serving.sequence import Sequence
from railweave.workloads.serving.steps import Stage
from railweave.workloads.serving.waiting import waiting_lines
from railweave.workloads.shapes import load_shape
from railweave.workloads.step_load import StepLoad
from railweave.workloads.workload import find_kind
from railweave.workloads.works import repeats

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.fabric.graph import Fabric

ROCE = LinkModel.ROCE_LOSSLESS


# ---------------------------------------------------------------------------- schedules
def test_a_chain_is_a_sound_schedule() -> None:
    reduce = plan("all_reduce", ranks=4, size_bytes=4000)
    layer = chain([work(4, 10), reduce, work(4, 20), reduce])
    layer.check()
    assert layer.n_runs == 2 * (4 + 24) + 3
    assert layer.total_bytes == 2 * reduce.total_bytes
    assert layer.bytes_sent_per_rank().tolist() == [12_000] * 4
    assert layer.delay_ps[[0, 10]].tolist() == [10, 20]
    # Nothing of a later part may start before all of the one before: one barrier between them.
    barriers = np.flatnonzero(layer.kind == 3)
    assert barriers.tolist() == [4, 9, 14]
    assert layer.n_deps[barriers].tolist() == [4, 4, 4]


def test_chains_of_the_same_parts_share_their_structure() -> None:
    sizes = (4000, 8000)
    first, second = (
        chain([work(4, size), plan("all_reduce", ranks=4, size_bytes=size)]) for size in sizes
    )
    assert first.succ is second.succ
    assert first.src is second.src
    assert first.key != second.key
    again = chain([work(4, 4000), plan("all_reduce", ranks=4, size_bytes=4000)])
    assert first.key == again.key


def test_empty_parts_and_unlike_parts() -> None:
    nothing = plan("all_reduce", ranks=1, size_bytes=10)
    joined = chain([nothing, work(1, 5), nothing, work(1, 6)])
    joined.check()
    assert joined.delay_ps.sum() == 11
    assert joined.n_deps.tolist() == [0, 1, 1, 1, 1]
    with pytest.raises(RailweaveError, match="same number of ranks"):
        chain([work(2, 1), work(3, 1)])


def test_transfers_side_by_side_have_no_dependencies() -> None:
    both = parallel(4, ((0, 2), (1, 3), (0, 3)), (10, 20, 30))
    both.check()
    assert both.n_deps.tolist() == [0, 0, 0]
    assert both.bytes_sent_per_rank().tolist() == [40, 20, 0, 0]


@given(st.lists(st.integers(0, 2), max_size=60))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_repeats_say_the_same_sequence(order: list[int]) -> None:
    runs = repeats(order)
    assert list(itertools.chain.from_iterable(p * n for p, n in runs)) == order
    assert len(runs) <= max(len(order), 1)


def test_repeats_of_real_models_are_few() -> None:
    shapes = {name: load_shape(name) for name in ("llama-3.1-70b", "deepseek-v3", "gpt-oss-20b")}
    found = {
        name: repeats([list(dict.fromkeys(s.layers)).index(layer) for layer in s.layers])
        for name, s in shapes.items()
    }
    assert found["llama-3.1-70b"] == [((0,), 80)]
    assert found["deepseek-v3"] == [((0,), 3), ((1,), 58)]
    assert found["gpt-oss-20b"] == [((0, 1), 12)]


# ---------------------------------------------------------------------------- one NIC
def one_nic_hosts() -> Fabric:
    """Return two hosts of eight GPUs that share one 400G NIC, behind one switch."""
    build = FabricBuilder("one-nic")
    switch = build.add_device("s0", DeviceKind.SWITCH, tier=1)
    for number in range(2):
        host = build.add_host(f"h{number}")
        nic = build.add_device(f"h{number}/nic0", DeviceKind.NIC, host=host)
        nvs = build.add_device(f"h{number}/nvs0", DeviceKind.NVSWITCH, host=host)
        tree = build.add_device(f"h{number}/pcie0", DeviceKind.PCIE_SWITCH, host=host)
        pcie = {"rate_bps": 10**13, "delay_ps": 0, "model": LinkModel.PCIE, "tier": "pcie"}
        build.add_cable(nic, tree, **pcie)
        build.add_cable(nic, switch, rate_bps=4 * 10**11, delay_ps=0, model=ROCE, tier="host-leaf")
        for i in range(8):
            gpu = build.add_device(f"h{number}/gpu{i}", DeviceKind.GPU, host=host, index=i)
            build.add_cable(
                gpu, nvs, rate_bps=36 * 10**11, delay_ps=0, model=LinkModel.NVLINK, tier="nvlink"
            )
            build.add_cable(gpu, tree, **pcie)
            build.set_affine_nic(gpu, nic)
    return build.finish()


@pytest.mark.parametrize("kind", ["fluid", "analytic"])
def test_a_cache_that_leaves_through_one_nic_takes_eight_times_as_long(kind: str) -> None:
    fabric = one_nic_hosts()
    env = FabricEnvironment()
    network = NetworkSettings(ack_every=0)
    engine = make_engine(kind, env, fabric, Routing(fabric), network)
    sides = [
        ReplicaPlan(
            pool=pool,
            number=0,
            devices=tuple(fabric.gpus[8 * i : 8 * i + 8].tolist()),
            stages=(),
            blocks=10_000,
            block_tokens=1,
        )
        for i, pool in enumerate(("prefill", "decode"))
    ]
    mover = KvMover(
        shape=load_shape("llama-3.1-70b"),
        prefill_tp=8,
        prefill_pp=1,
        decode_tp=8,
        block=1,
        kv_dtype=None,
        prefix="",
    )
    pieces = mover.between(0, 2150)
    assert sum(piece.size_bytes for piece in pieces) == 704_512_000
    posted = mover.send("r0", pieces, *sides, engine, read=True)
    env.run(env.all_of([one.event for one in posted]))
    bound_ps = mover.together_ps(pieces, *sides, engine)
    payload_ms = 8 * 1.76128
    assert bound_ps / 1e9 * network.efficiency() == pytest.approx(payload_ms, rel=5e-4)
    if kind == "fluid":
        assert bound_ps - 2 <= env.now == pytest.approx(bound_ps, rel=5e-4)


# ---------------------------------------------------------------------------- placement
def placed(**workload: Any) -> dict[str, list[list[str]]]:
    """Return the GPUs of each replica by name."""
    found: dict[str, list[list[int]]] = {}
    fabrics = []

    def noted(model: Any, context: Any) -> dict[str, list[list[int]]]:
        fabrics.append(context.fabric)
        found.update(place_pools(model.pools, placed_replicas(model), context))
        return found

    keys = {"kind": "serving", "model": "llama-3.1-8b", "requests": [{"prompt": 1, "output": 1}]}
    more = {key: workload.pop(key) for key in ("placement",) if key in workload}
    scenario = load_scenario(
        {"schema": 1, "topology": "h100-rail-8", "workload": {**keys, **workload}, **more}
    )
    kind = find_kind("serving")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kind.__dict__, "start", noted)
        prepare(scenario)
    names = fabrics[0].device_names
    return {
        pool: [[names[gpu] for gpu in replica] for replica in replicas]
        for pool, replicas in found.items()
    }


def gpus(host: int, first: int, count: int) -> list[str]:
    return [f"h{host}/gpu{i}" for i in range(first, first + count)]


def test_pools_fill_hosts_in_order_and_do_not_split_what_a_host_holds() -> None:
    assert placed(prefill={"replicas": 3, "tp": 4}, decode={"tp": 8}) == {
        "prefill": [gpus(0, 0, 4), gpus(0, 4, 4), gpus(1, 0, 4)],
        "decode": [gpus(2, 0, 8)],
    }
    assert placed(prefill={"tp": 4, "pp": 4}, decode={"replicas": 2, "tp": 2}) == {
        "prefill": [gpus(0, 0, 8) + gpus(1, 0, 8)],
        "decode": [gpus(2, 0, 2), gpus(2, 2, 2)],
    }


def test_pools_share_hosts_only_if_they_must() -> None:
    tight = placed(prefill={"replicas": 15, "tp": 4}, decode={"tp": 4})
    assert tight["decode"] == [gpus(7, 4, 4)]


def test_pools_may_have_a_placement_of_their_own() -> None:
    here = {"policy": "list", "gpus": ["h5/gpu1", "h5/gpu0"]}
    found = placed(prefill={"tp": 1}, decode={"tp": 2, "placement": here})
    assert found == {"prefill": [["h0/gpu0"]], "decode": [["h5/gpu1", "h5/gpu0"]]}
    both = {"policy": "list", "gpus": ["h3"]}
    assert placed(prefill={"tp": 4}, decode={"tp": 4}, placement=both) == {
        "prefill": [gpus(3, 0, 4)],
        "decode": [gpus(3, 4, 4)],
    }
    shuffled = placed(
        prefill={"replicas": 4}, decode={"replicas": 4}, placement={"policy": "random"}
    )
    taken = [gpu for pool in shuffled.values() for (gpu,) in pool]
    assert len(set(taken)) == 8
    assert taken != gpus(0, 0, 8)


# ---------------------------------------------------------------------------- routers, blocks
@dataclass
class View:
    connections: int
    free_blocks: int = 0
    number: int = 0


def views(*connections: int) -> list[View]:
    return [View(n, number=i) for i, n in enumerate(connections)]


def test_round_robin_takes_every_replica_in_turn() -> None:
    router = ROUTERS.get("round-robin")(np.random.default_rng(1))
    request = Request(number=0, prompt_tokens=1, output_tokens=1, arrival_ps=0)
    pool = views(9, 0, 3)
    assert [router.choose(request, pool) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_connections_takes_the_fewest_and_breaks_ties_in_turn() -> None:
    router = ROUTERS.get("least-connections")(np.random.default_rng(1))
    request = Request(number=0, prompt_tokens=1, output_tokens=1, arrival_ps=0)
    assert router.choose(request, views(2, 1, 3)) == 1
    assert [router.choose(request, views(1, 1, 1)) for _ in range(4)] == [2, 0, 1, 2]


def replica(*, blocks: int = 10, max_num_seqs: int = 8) -> Replica:
    env = FabricEnvironment()
    plan_ = ReplicaPlan(
        pool="decode", number=0, devices=(), stages=(), blocks=blocks, block_tokens=16
    )
    memory = MEMORIES.get("paged")(blocks, 16, longest=1000)
    batching = BATCHINGS.get("continuous")(memory, max_num_seqs=max_num_seqs, max_tokens=100)
    return Replica(plan_, env, engine=None, memory=memory, batching=batching, tag="")  # type: ignore[arg-type]


def arriving(env: FabricEnvironment, number: int, tokens: int) -> Sequence:
    request = Request(number=number, prompt_tokens=tokens, output_tokens=1, arrival_ps=0)
    events = {"done": env.event(), "granted": env.event()}
    return Sequence(request=request, prompt=tokens, target=1, **events)


def test_blocks_are_given_first_come_first_served() -> None:
    here = replica()
    sequences = [arriving(here.env, i, tokens) for i, tokens in enumerate((100, 100, 1))]
    for sequence in sequences:
        here.reserve(sequence)
    granted = [s.granted.triggered for s in sequences if s.granted is not None]
    assert granted == [True, False, False]  # nobody overtakes
    assert list(waiting_lines([here], [])) == [
        f"request {name} waits for {blocks} KV blocks of decode0, where 3 of 10 are free and r0 "
        "hold the rest"
        for name, blocks in (("r1", 7), ("r2", 1))
    ]
    here.withdraw(sequences[0])
    assert all(s.granted.triggered for s in sequences if s.granted is not None)
    assert here.free_blocks == 2


# ---------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            "model: llama-3.1-70b, prefill: {replicas: 9, tp: 8}, decode: {tp: 8}",
            "s.yaml:4: workload.prefill.replicas: the replicas need 80 GPUs (72 for prefill + 8 "
            "for decode), but h100-rail-8 has 64; expected replicas x tp x pp of all pools at "
            "most 64",
        ),
        (
            "model: llama-3.1-70b, prefill: {tp: 1}, decode: {tp: 8}",
            "s.yaml:4: workload.prefill.tp: llama-3.1-70b does not fit: a rank has 141.11 GB of "
            "weights, and h100 offers 72.00 GB for weights and KV cache; expected more ranks, "
            "larger GPUs or a smaller dtype",
        ),
        (
            "model: llama-3.1-8b, kv_transfer: stram",
            "s.yaml:4: workload.kv_transfer: 'stram' is not a kv_transfer; expected "
            "pull | push | stream; did you mean 'stream'?",
        ),
        (
            "model: llama-3.1-8b, router: round-robbin",
            "s.yaml:4: workload.router: 'round-robbin' is not a router; expected "
            "least-connections | least-kv | power-of-two | prefix-aware | random | round-robin | "
            "session-affinity | topology-aware | weighted; did you mean 'round-robin'?",
        ),
        ("model: llama-3.1-7b", "did you mean 'llama-3.1-70b'?"),
        ("model: llama-3.1-8b, colocated: {}, decode: {}", "colocated replicas prefill and decode"),
        ("model: llama-3.1-8b, jitter: 3s", "workload.jitter: it is about a trace, and there is n"),
        (
            "model: llama-3.1-8b, router: {scorers: {queue: 1}}",
            "router.scorers: round-robin has no scorers; expected policy: weighted",
        ),
        (
            "model: llama-3.1-8b, router: {remote_prefill_above: 9}",
            "router.remote_prefill_above: the decode replica is not known before the prefill",
        ),
        ("model: mixtral-8x7b, prefill: {tp: 4, ep: 2}", "prefill.ep: experts over 2 ranks are n"),
        ("model: llama-3.1-8b, batching: dynamic", "'dynamic' is not a batching; expected contin"),
        ("model: llama-3.1-8b, kv_memory: page", "did you mean 'paged'?"),
        ("model: llama-3.1-8b, arrivals: {kind: poison, rate_per_s: 1}", "did you mean 'poisson'?"),
        ("model: llama-3.1-8b, arrivals: {kind: gamma, rate_per_s: 1}", "arrivals.cv: it is miss"),
        (
            "model: llama-3.1-8b, arrivals: {kind: poisson, rate_per_s: 1, users: 3}",
            "workload.arrivals.users: it says nothing about poisson arrivals",
        ),
        (
            "model: llama-3.1-8b, router: {policy: weighted, scorers: {queu: 1}}",
            "workload.router.scorers: 'queu' is not a scorer",
        ),
        ("model: llama-3.1-8b, kv_blocks: 99999", "has room for 26674 blocks; expected at most"),
        (
            "model: llama-3.1-8b, autoscale: {pool: x, above: 2, below: 1, most: 2}",
            "autoscale[0].pool: there is no pool 'x'",
        ),
        (
            "model: llama-3.1-8b, prefill: {tp: 3}",
            "workload.prefill.tp: 3 does not divide the 32 attention heads of llama-3.1-8b",
        ),
        ("model: llama-3.1-8b, dtype: fp7", "workload.dtype: 'fp7' is not a known number format"),
        ("model: llama-3.1-8b, kv_dtype: int3", "workload.kv_dtype: 'int3' is not a known"),
        (
            "model: llama-3.1-8b, trace: none.csv",
            "s.yaml:4: workload.requests: they come from two places; expected either trace or "
            "requests, or arrivals with count, prompt and output",
        ),
        ("model: llama-3.1-8b, rate_scale: 0", "workload.rate_scale: "),
        ("model: llama-3.1-8b, max_num_seq: 4", "did you mean 'max_num_seqs'?"),
        ("model: llama-3.1-8b, prefill: {replica: 4}", "did you mean 'replicas'?"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, workload: str, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: 1\ntopology: h100-rail-8\nworkload:\n"
        f"  {{kind: serving, {workload}, requests: [{{prompt: 10, output: 1}}]}}\n"
    )
    with pytest.raises(InputError) as caught:
        prepare(load_scenario(path))
    text = str(caught.value).replace(str(tmp_path) + "/", "")
    assert expected in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", "workload.requests: there are none; expected either trace or requests, or arr"),
        (
            ", arrivals: {kind: poisson, rate_per_s: 1.0e-9, count: 9, prompt: 9, output: 9}",
            "expected times below 4,611,686 s (2^62 ps)",
        ),
        (
            ", arrivals: {kind: sessions, turns: 99, count: 99999, prompt: 9, output: 9}",
            "arrivals.count: these are 9,899,901 requests; expected at most 1,000,000",
        ),
        (", kv_transfer: {stream_groups: 2000}", "workload.kv_transfer.stream_groups: "),
        (", kv_transfer: {message_cost: 2s}", "message_cost: longer than a second; expected at m"),
        (
            ", autoscale: {pool: decode, above: 2, below: 1, most: 2, every: 1ps}",
            "workload.autoscale.every: too often to end; expected at least 1ms",
        ),
        (", requests: []", "workload.requests: there are none; expected at least one"),
        (", requests: [{prompt: 0, output: 1}]", "workload.requests[0].prompt: "),
        (", requests: [{prompt: 1, output: 1, at: 5}]", "workload.requests[0].at: 5 has no unit"),
        (", trace: gone.csv", "gone.csv: cannot read the trace: No such file or directory"),
    ],
)
def test_bad_requests_are_one_clear_line(tmp_path: Path, keys: str, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema: 1\ntopology: h100-rail-8\nworkload:\n"
        f"  {{kind: serving, model: llama-3.1-8b{keys}}}\n"
    )
    with pytest.raises(InputError) as caught:
        prepare(load_scenario(path))
    assert expected in str(caught.value)


def test_pools_that_the_fabric_does_not_join_are_refused() -> None:
    scenario = {
        "schema": 1,
        "topology": "h100-rail-8",
        "faults": [{"node": "leaf0.r0", "do": "down"}],
        "workload": {
            "kind": "serving",
            "model": "llama-3.1-8b",
            "requests": [{"prompt": 1, "output": 1}],
        },
    }
    with pytest.raises(InputError, match=r"h0/gpu0.*h1/gpu0"):
        run_scenario(scenario)


@pytest.mark.parametrize(
    ("model", "tp", "reductions"),
    [
        ("llama-3.1-8b", 4, 65),
        ("falcon-40b", 8, 61),  # one per layer: attention and feed-forward side by side
        ("nemotron-3-nano-30b-a3b", 2, 53),  # one block per layer
        ("falcon-h1-0.5b", 2, 109),  # attention, mixer, feed-forward
    ],
)
def test_alternating_or_not_moves_the_same_bytes(model: str, tp: int, reductions: int) -> None:
    shape, load = load_shape(model), StepLoad.decode([100] * 4)
    moved = []
    for alternate in (True, False):
        stage = Stage(
            shape,
            ParallelismPlan(tp=tp),
            0,
            gpu=gpu_model("h100"),
            devices=range(tp),
            hosts=[0] * tp,
            alternate=alternate,
        )
        works = stage.works(load)
        moved.append(sum(w.repeat * w.schedule.total_bytes for w in works if w.schedule))
        times = sum(w.wait_ps for w in works)
    size = 4 * shape.hidden_size * 2
    logits = 4 * shape.vocab_size * 2
    assert moved[0] == moved[1] == (tp - 1) * (2 * reductions * size + logits)
    assert times > 0
