# SPDX-License-Identifier: Apache-2.0
"""Flows sent all at once fare as flows sent one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import railweave
from railweave.fabric.engine import Engine
from railweave.fabric.errors import InputError
from railweave.fabric.flow import Flow


def stage(ack_every: int = 0) -> tuple[Any, Any, Any]:
    fabric = railweave.build_topology(railweave.load_topology("h100-rail-8"))
    return fabric, railweave.Routing(fabric), railweave.NetworkSettings(ack_every=ack_every)


STAGES = {every: stage(every) for every in (0, 4)}
GPUS = [int(gpu) for gpu in STAGES[0][0].gpus]


def ended(flows: list[Flow], start_ps: list[int], every: int, *, batch: bool) -> list[Any]:
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, *STAGES[every])
    send = engine.send_all if batch else lambda *a, **k: Engine.send_all(engine, *a, **k)
    env.run(until=send(flows, start_ps=start_ps))
    moved = engine.counters().wire_bytes.tolist()
    by_id = sorted(engine.records(), key=lambda record: record.flow.id)
    return [*((r.start_ps, r.end_ps, r.bound_ps, r.wire_bytes, r.path) for r in by_id), moved]


flow_lists = st.lists(
    st.tuples(
        st.integers(0, 63), st.integers(1, 63), st.integers(0, 3_000_000),
        st.integers(0, 60_000_000),
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=60)
@given(flow_lists, st.sampled_from([0, 4]))
def test_batch_is_flows_one_by_one(rows, every):
    flows = [
        Flow(id=f"{i:02}", src=GPUS[a], dst=GPUS[(a + far) % 64], size_bytes=size)
        for i, (a, far, size, _) in enumerate(rows)
    ]
    starts = [row[3] for row in rows]
    one_by_one = ended(flows, starts, every, batch=False)
    together = ended(flows, starts, every, batch=True)
    for alone, many in zip(one_by_one[:-1], together[:-1], strict=True):
        # Flows of one instant are put in another order: their rates may differ by rounding.
        assert alone[:1] == many[:1]
        assert alone[2:] == many[2:]
        assert many[1] == pytest.approx(alone[1], abs=2, rel=1e-12)
    assert one_by_one[-1] == together[-1]


def test_flows_that_are_not_plain_go_beside_the_batch():
    flows = [
        Flow(id="a", src=GPUS[0], dst=GPUS[8], size_bytes=10**6),
        Flow(id="b", src=GPUS[1], dst=GPUS[9], size_bytes=10**6, cap_bps=10**9),
        Flow(id="c", src=GPUS[2], dst=GPUS[10], size_bytes=10**6, qps=2),
    ]
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, *STAGES[0])
    env.run(until=engine.send_all(flows, start_ps=[5, 0, 0]))
    records = {record.flow.id: record for record in engine.records()}
    assert records["a"].start_ps == 5
    assert records["b"].end_ps - records["b"].start_ps > 8 * 10**9
    assert all(record.end_ps > 0 for record in records.values())


def test_a_batch_under_way():
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine("fluid", env, *STAGES[0])
    flows = [Flow(id=str(i), src=GPUS[0], dst=GPUS[8], size_bytes=10**6) for i in range(3)]
    engine.send_all(flows, start_ps=[0, 0, 10**9])
    env.run(until=500_000_000)
    assert [record.end_ps > 0 for record in engine.records()] == [True, True, False]
    assert engine.counters().wire_bytes.max() > 2 * 10**6
    with pytest.raises(InputError, match="one of many"):
        engine.cancel(flows[2])
    env.run()
    assert np.all([record.end_ps > 0 for record in engine.records()])
