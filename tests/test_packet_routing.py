# SPDX-License-Identifier: Apache-2.0
"""Packets over equal ways: spraying, adaptive choice, flowlets, and hash collisions in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.scenario import load_scenario

LEAVES, HOSTS, SPINES = 4, 4, 4
TOPOLOGY = {
    "kind": "custom",
    "nodes": {
        **{f"h{i}": "host" for i in range(LEAVES * HOSTS)},
        **{f"l{i}": {"type": "switch", "tier": "leaf"} for i in range(LEAVES)},
        **{f"s{i}": {"type": "switch", "tier": "spine"} for i in range(SPINES)},
    },
    "links": [
        *({"ends": [f"h{i}", f"l{i // HOSTS}"], "rate": "100Gbps", "delay": "500ns"}
          for i in range(LEAVES * HOSTS)),
        *({"ends": [f"l{i}", f"s{j}"], "rate": "100Gbps", "delay": "500ns"}
          for i in range(LEAVES) for j in range(SPINES)),
    ],
}  # fmt: skip
SIZE = 2**20
ALONE_US = 1_069_584 * 80 / 1e6


def shift(routing: dict[str, Any], **network: Any) -> Any:
    """Every host sends to its place under the next leaf: all spines are needed at once."""
    n = LEAVES * HOSTS
    flows = [
        {"id": f"f{i}", "src": f"h{i}", "dst": f"h{(i + HOSTS) % n}", "size": f"{SIZE}B"}
        for i in range(n)
    ]  # fmt: skip
    return run_scenario(
        {
            "schema": 1, "engine": "packet", "topology": TOPOLOGY, "routing": routing,
            "network": {"cc": {"kind": "none"}, "ack": {"every": 4}, **network},
            "workload": {"kind": "flows", "flows": flows},
        }
    ).raise_for_status()  # fmt: skip


@pytest.mark.parametrize(
    ("routing", "slack"),
    [
        ({"policy": "spray", "spray": "rr"}, 1.06),
        ({"policy": "spray"}, 1.25),
        ({"policy": "adaptive"}, 1.1),
        ({"policy": "adaptive", "adaptive": "two-choices"}, 1.1),
    ],
)
def test_spread_packets_use_all_spines(routing: dict[str, Any], slack: float) -> None:
    result = shift(routing)
    assert max(record.fct_ps for record in result.records) / 1e6 < slack * (ALONE_US + 10)
    hashed = shift({"policy": "ecmp"})
    assert max(record.fct_ps for record in hashed.records) / 1e6 > 1.9 * ALONE_US
    spines = [
        link for link, tier in enumerate(result.fabric.link_src)
        if result.fabric.device_names[tier].startswith("s")
    ]  # fmt: skip
    carried = result.links.wire_bytes[spines]
    assert carried.sum() == 16 * 1_069_584
    assert carried.min() > 0
    assert result.network["drops"]["lossless_violation"] == 0


def test_sprayed_packets_in_turn_keep_queues_short() -> None:
    result = shift({"policy": "spray", "spray": "rr"})
    uplinks = [
        peak for link, peak in enumerate(result.link_columns["peak_queue_bytes"])
        if result.fabric.device_names[result.fabric.link_src[link]].startswith("l")
    ]  # fmt: skip
    assert max(uplinks) < 10 * 4178


def test_a_flow_without_pauses_is_one_flowlet() -> None:
    """The same bytes over the same links as one way per flow would take."""
    result = shift({"policy": "flowlet"})
    names = result.fabric.device_names
    up = [
        link for link in range(result.fabric.n_links)
        if names[result.fabric.link_src[link]][0] == "l"
        and names[result.fabric.link_dst[link]][0] == "s"
    ]  # fmt: skip
    assert set(np.unique(result.links.wire_bytes[up] % 1_069_584)) == {0}
    assert result.network["out_of_sequence"] == 0


def test_spraying_under_go_back_n_behaves_badly() -> None:
    """Packets overtake each other, and each gap costs all that follows."""
    lossy = {"pfc": {"enabled": False}, "recovery": "go-back-n"}
    sprayed = shift({"policy": "spray"}, **lossy)
    patient = shift({"policy": "spray"}, pfc={"enabled": False}, recovery="selective-repeat")
    assert sprayed.network["out_of_sequence"] > 0
    assert sprayed.network["retransmitted_bytes"] > 5 * max(
        patient.network["retransmitted_bytes"], 4178
    )


def test_a_pinned_path_is_kept_while_others_spread() -> None:
    flows = [{"id": "f", "src": "h0", "dst": "h4", "size": "1MiB",
              "path": ["h0", "l0", "s2", "l1", "h4"]}]  # fmt: skip
    result = run_scenario(
        {
            "schema": 1, "engine": "packet", "topology": TOPOLOGY,
            "routing": {"policy": "adaptive"}, "network": {"ack": {"every": 0}},
            "workload": {"kind": "flows", "flows": flows},
        }
    ).raise_for_status()  # fmt: skip
    used = np.flatnonzero(result.links.wire_bytes)
    crossed = {result.fabric.link_name(link).split(":")[0] for link in used}
    assert crossed == {"h0/nic0", "l0", "s2", "l1"}


def test_collectives_spread_too() -> None:
    data = {
        "schema": 1, "engine": "packet", "topology": TOPOLOGY, "routing": {"policy": "spray"},
        "workload": {"kind": "collective", "op": "all_to_all", "sizes": ["4MiB"]},
    }  # fmt: skip
    result = run_scenario(data).raise_for_status()
    (executed,) = result.executed
    assert executed.end_ps - executed.start_ps >= executed.bound_ps


def test_what_only_packets_do_is_refused_elsewhere() -> None:
    data = {
        "schema": 1, "engine": "fluid", "topology": TOPOLOGY, "routing": {"policy": "adaptive"},
        "workload": {"kind": "flows", "flows": [{"src": "h0", "dst": "h1", "size": "1B"}]},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"adaptive routing needs packets"):
        load_scenario(data)
