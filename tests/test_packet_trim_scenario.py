# SPDX-License-Identifier: Apache-2.0
"""`recovery: trim` and links of model trimming, as a scenario file asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.scenario import load_scenario


def scenario(model: str = "roce-lossy", **keys: Any) -> dict[str, Any]:
    nodes = {f"h{i}": "host" for i in range(5)} | {"s": "switch"}
    links = [
        {"ends": [f"h{i}", "s"], "rate": "100Gbps", "delay": "500ns", "model": model}
        for i in range(5)
    ]
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h4", "size": "200kB"} for i in range(4)]
    return {
        "schema": 1, "engine": "packet",
        "topology": {"kind": "custom", "nodes": nodes, "links": links},
        "workload": {"kind": "flows", "flows": flows},
    } | keys  # fmt: skip


def test_the_key_and_the_model_of_links_ask_for_the_same() -> None:
    by_key = run_scenario(scenario(network={"recovery": "trim"}))
    by_model = run_scenario(scenario("trimming"))
    assert by_key.status == by_model.status == "completed"
    assert by_key.network["trims"] > 0
    assert by_key.network == by_model.network
    assert by_key.network["cnps"] == 0  # receivers give credit, so there is no rate control


def test_rate_control_runs_too_where_it_is_asked_for() -> None:
    network = {"recovery": "trim", "cc": {"kind": "dcqcn"}}
    assert load_scenario(scenario(network=network)).packet.cc_given
    assert run_scenario(scenario(network=network)).status == "completed"


def test_keys_of_trimming_reach_the_engine() -> None:
    trim = {"size": "256B", "queue": "20kB", "window": "30kB", "pull": 1, "credit": 0.9}
    network = {"recovery": "trim", "trim": trim, "retries": 9}
    loaded = load_scenario(scenario(network=network, routing={"policy": "spray", "entropies": 64}))
    packet = loaded.packet
    assert (packet.trim_bytes, packet.trim_queue_bytes, packet.unasked_bytes) == (256, 20000, 30000)
    assert (packet.pull_packets, packet.pull_share, packet.retries) == (1, 0.9, 9)
    assert (packet.spread, packet.entropies) == ("entropy", 64)
    assert loaded.resolved()["network"]["trim"]["queue"] == "20000B"
    again = run_scenario(loaded.resolved())
    assert again.network == run_scenario(loaded).network


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"network": {"trim": {"queue": "20kB"}}}, "packets are not trimmed here"),
        (
            {"network": {"recovery": "go-back-n", "trim": {"pull": 2}}},
            "packets are not trimmed here",
        ),
        ({"routing": {"entropies": 4}}, "entropy values are for sprayed packets"),
        ({"network": {"recovery": "trim", "ack": {"every": 0}}}, "no acknowledgements"),
        ({"network": {"recovery": "trim", "trim": {"size": "8B"}}}, "expected at least 64"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        run_scenario(scenario(**keys))
