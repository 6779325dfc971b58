# SPDX-License-Identifier: Apache-2.0
"""Ends of frames that have no event: every result equals that of a run in which all have one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings, cc_profile
from railweave.fabric.routing import Routing

G = 10**9
HOSTS, LEAVES, SPINES = 9, 3, 2
QUIET = {"cc": None, "ecn": False}
CASES: dict[str, dict[str, Any]] = {
    "dynamic": {"alpha": 0.1, **QUIET},
    "dynamic, DCQCN": {"alpha": 0.05, "cc": cc_profile("nic"), "kmin_bytes": 20_000,
                       "kmax_bytes": 80_000, "network": {"ack_every": 4}},
    "adaptive": {"alpha": 0.1, "spread": "adaptive", "adaptive_quantum_bytes": 4096, **QUIET},
    "cut-through": {"alpha": 0.1, "network": {"cut_through": True}, **QUIET},
    "cells of two classes": {"alpha": 0.05, "priorities": True, "lossless": (3, 4), **QUIET},
    "lossy beside lossless": {"alpha": 0.05, "priorities": True, "network": {"ack_every": 2},
                              "recovery": "go-back-n", "loss_rate": 1e-3, **QUIET},
    "credit": {"model": LinkModel.INFINIBAND, **QUIET},
    "trim": {"model": LinkModel.TRIMMING, "trim_queue_bytes": 20_000,
             "network": {"ack_every": 4}},
}  # fmt: skip


def run(case: str, seed: int, *, lazy: bool) -> PacketEngine:
    draw = random.Random(f"{case} {seed}")
    options = {"network": {"ack_every": 0}, "model": LinkModel.ROCE_LOSSLESS, **CASES[case]}
    priorities = options.pop("priorities", False)
    build, model = FabricBuilder("clos"), options.pop("model")
    nics = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(HOSTS)
    ]
    leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(LEAVES)]
    spines = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(SPINES)]
    ends = [(nic, leaves[i % LEAVES]) for i, nic in enumerate(nics)]
    ends += [(leaf, spine) for leaf in leaves for spine in spines]
    for a, b in ends:
        rate, delay = draw.choice((100, 100, 200, 50)) * G, draw.randrange(100_000, 900_000)
        if b in spines:  # equal ways
            rate, delay = 100 * G, 700_000
        build.add_cable(a, b, rate_bps=rate, delay_ps=delay, model=model)
    fabric = build.finish()
    policy = "spray" if "spread" in options else "ecmp"
    engine = PacketEngine(
        FabricEnvironment(), fabric, Routing(fabric, policy=policy),
        NetworkSettings(**options.pop("network")),
        packet=PacketSettings(
            seed=seed, lazy_ends=lazy, elide=False, headroom_bytes=60_000,
            **({"retries": 1000} | options),
        ),
        buffers=np.full(LEAVES + SPINES, 1_500_000),
    )  # fmt: skip
    if priorities:
        engine.announce(4)
    for i in range(40):
        a, b = draw.sample(nics[:5] if i % 2 else nics, 2)
        if i % 3 == 0:  # an incast
            b = nics[a == nics[0]]
        priority = draw.choice((3, 4)) if priorities else 3
        size = draw.randrange(1, 400_000)
        flow = Flow(id=f"f{i}", src=a, dst=b, size_bytes=size, priority=priority)
        engine.env.process(later(engine, flow, draw.randrange(0, 60_000_000)))
    engine.env.run()
    return engine


def later(engine: PacketEngine, flow: Flow, start_ps: int) -> Any:
    yield engine.env.timeout(start_ps)
    yield engine.send(flow)


def outcome(engine: PacketEngine) -> dict[str, Any]:
    return {
        "ends": [record.end_ps for record in engine.records()],
        "network": engine.network(),
        "links": engine.link_columns(),
        "flows": engine.flow_columns(),
        "sent": engine.state.ports.data_bytes.tolist(),
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ends_without_events_change_nothing(case: str, seed: int) -> None:
    lazy, eager = run(case, seed, lazy=True), run(case, seed, lazy=False)
    assert outcome(lazy) == outcome(eager)
    assert lazy.state.run.events < eager.state.run.events
    if case not in ("credit", "trim"):
        assert lazy.network()["pause_frames"] > 20
