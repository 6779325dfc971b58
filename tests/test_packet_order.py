# SPDX-License-Identifier: Apache-2.0
"""The total order of events: the same trace from wheel and heap, compiled or not, in any pieces."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.layout import BLOCK
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

G = 10**9
US = 10**6


def clos(model: LinkModel, **options: Any) -> tuple[PacketEngine, list[int]]:
    """Two leaves of three hosts and two spines, 100 Gb/s."""
    build = FabricBuilder("clos")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(6)
    ]
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
    spines = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(2)]
    cable = {"rate_bps": 100 * G, "delay_ps": 700_000, "model": model}
    for i, nic in enumerate(nics):
        build.add_cable(nic, leaves[i // 3], **cable)
    for leaf in leaves:
        for spine in spines:
            build.add_cable(leaf, spine, **cable)
    fabric = build.finish()
    network = NetworkSettings(**options.pop("network", {}))
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric), network,
        packet=PacketSettings(**options), buffers=np.full(4, 1_500_000), trace_rows=200_000,
    )  # fmt: skip
    return engine, nics


CASES: dict[str, dict[str, Any]] = {
    "pauses": {"model": LinkModel.ROCE_LOSSLESS, "xoff_bytes": 20_000, "xon_bytes": 10_000},
    "dynamic": {"model": LinkModel.ROCE_LOSSLESS, "alpha": 0.02, "headroom_bytes": 100_000},
    "dcqcn": {
        "model": LinkModel.ROCE_LOSSLESS, "cc": cc_profile("scaled"), "kmin_bytes": 10_000,
        "kmax_bytes": 60_000,
    },
    "echo": {
        "model": LinkModel.ROCE_LOSSLESS, "cc": cc_profile("nic"), "ack_echo": True,
        "ack_control": False, "kmin_bytes": 10_000, "kmax_bytes": 60_000,
        "fct_at_sender": True, "network": {"ack_every": 1},
    },
    "cut-through": {
        "model": LinkModel.ROCE_LOSSLESS, "network": {"cut_through": True, "ack_every": 2}
    },
    "go-back-n": {"model": LinkModel.ROCE_LOSSY, "loss_rate": 0.01},
    "go-back-0": {"model": LinkModel.ROCE_LOSSY, "loss_rate": 0.001, "recovery": "go-back-0"},
    "selective": {"model": LinkModel.ROCE_LOSSY, "loss_rate": 0.01, "recovery": "selective-repeat"},
    "trim": {"model": LinkModel.TRIMMING, "loss_rate": 0.01, "trim_queue_bytes": 20_000},
    "small": {"model": LinkModel.ROCE_LOSSY, "buffer_bytes": 30_000, "retries": 1000},
}  # fmt: skip


def run(case: str, *, step_ps: int = 0, size: int = 300_000, **options: Any) -> PacketEngine:
    engine, nics = clos(**(CASES[case] | options))
    for i in range(5):
        engine.send(Flow(id=f"in{i}", src=nics[i], dst=nics[5], size_bytes=size + i))
        engine.send(Flow(id=f"on{i}", src=nics[i], dst=nics[(i + 2) % 5], size_bytes=size // 2))
    if step_ps:
        while engine.busy:
            engine.env.run(until=engine.env.now + step_ps)
    else:
        engine.env.run()
    return engine


def outcome(engine: PacketEngine) -> tuple[Any, ...]:
    ends = [record.end_ps for record in engine.records()]
    assert all(end > 0 for end in ends)
    return ends, engine.network(), engine.state.trace.tobytes(), int(engine.state.run.digest)


@pytest.mark.parametrize("case", CASES)
def test_wheel_and_heap_give_the_same_trace(case: str) -> None:
    wheel, heap = run(case), run(case, use_wheel=False)
    assert wheel.state.run.traced > 1000
    assert outcome(wheel) == outcome(heap)
    assert BLOCK * heap.state.run.ev_left == len(heap.state.ev)  # it never used the wheel


@pytest.mark.parametrize("case", ["dynamic", "go-back-n"])
def test_a_run_in_pieces_gives_the_same_trace(case: str) -> None:
    whole, pieces = run(case), run(case, step_ps=777_777)
    ends = [record.end_ps for record in whole.records()]
    assert ends == [record.end_ps for record in pieces.records()]
    n = int(whole.state.run.traced)
    assert whole.state.trace[:n].tobytes() == pieces.state.trace[:n].tobytes()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_or_held_at_the_end(case: str) -> None:
    engine = run(case)
    state = engine.state
    state.advance(2**61)
    lossless = CASES[case]["model"] == LinkModel.ROCE_LOSSLESS
    assert state.run.violations == 0
    assert not lossless or engine.network()["drops"] == {
        "buffer": 0, "lossless_violation": 0, "random": 0, "link_down": 0, "watchdog": 0
    }  # fmt: skip
    assert state.run.pk_left == len(state.packets)
    lazy = state.ports.lazy == 1  # frames whose end had no event still hold their room
    held = np.bincount(state.ports.switch[lazy], state.ports.svc_bytes[lazy], len(state.switches))
    reserved = (state.ingress.kind[state.ports.svc_in[lazy]] == 1).any()
    assert state.switches.lazy.sum() == lazy.sum()
    assert reserved or (state.switches.shared == held).all()
    assert state.qps.inflight.sum() == 0
    assert (state.ports.mask == 0).all()


def test_the_seed_moves_draws_and_nothing_else() -> None:
    one, again, other = (run("dcqcn", seed=seed) for seed in (1, 1, 2))
    assert outcome(one) == outcome(again)
    assert one.network()["ecn_marked"] > 0
    assert outcome(one)[3] != outcome(other)[3]


TINY = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("order", sys.argv[1])
order = importlib.util.module_from_spec(spec)
spec.loader.exec_module(order)
for case in order.CASES:
    engine = order.run(case, size=20_000)
    print(case, int(engine.state.run.digest), [r.end_ps for r in engine.records()])
"""


def test_tiny_cases_are_the_same_without_compiling() -> None:
    def output(**environment: str) -> str:
        command = [sys.executable, "-c", TINY, __file__]
        env = {**os.environ, **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    plain = output(NUMBA_DISABLE_JIT="1", PYTHONHASHSEED="1")
    assert plain == output(PYTHONHASHSEED="2")
    assert len(plain.splitlines()) == len(CASES)
