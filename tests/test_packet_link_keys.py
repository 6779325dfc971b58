# SPDX-License-Identifier: Apache-2.0
"""Keys of links go before those of the network."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.runner import run_scenario
from railweave.scenario import scenario_schema


def pair(link: dict[str, Any], **network: Any) -> Any:
    """Two senders and a receiver; ``link`` has the keys of the first sender's cable."""
    cable: dict[str, Any] = {"rate": "100Gbps", "delay": "500ns"}
    links = [{"ends": [f"h{i}", "s"], **cable} for i in range(3)]
    links[0] |= link
    flows = [{"id": f"f{i}", "src": f"h{i}", "dst": "h2", "size": "1MB"} for i in range(2)]
    return run_scenario(
        {
            "schema": 1, "engine": "packet",
            "network": {"cc": {"kind": "none"}, "ecn": {"enabled": False}, **network},
            "topology": {
                "kind": "custom", "nodes": {**{f"h{i}": "host" for i in range(3)}, "s": "switch"},
                "links": links,
            },
            "workload": {"kind": "flows", "flows": flows},
        }
    )  # fmt: skip


def column(result: Any, name: str) -> dict[str, int]:
    names = [result.fabric.link_name(i) for i in range(result.fabric.n_links)]
    return {n: v for n, v in zip(names, result.link_columns[name], strict=True) if v}


def test_thresholds_of_one_link() -> None:
    result = pair({"buffer": {"xoff": "50kB", "xon": "40kB"}})
    assert set(column(result, "pause_frames_received")) == {"h0/nic0:0>s:0"}
    assert column(pair({}), "pause_frames_received") == {}  # 8 MB would be shared
    peak = column(result, "peak_ingress_bytes")["h0/nic0:0>s:0"]
    assert 54_096 < peak < 54_096 + 60_000  # reserve and xoff, and what still came


def test_losses_of_one_link() -> None:
    result = pair({"loss": {"rate": 0.02}})
    assert set(column(result, "lost")) <= {"h0/nic0:0>s:0", "s:0>h0/nic0:0"}
    assert result.network["drops"]["random"] > 0
    assert result.network["retransmitted_bytes"] > 0


def test_marks_of_one_link() -> None:
    base = {"kmin": "10kB", "kmax": "20kB", "pmax": 1.0}
    marked = pair({"ecn": {"enabled": False}}, ecn={"enabled": True, **base})
    assert set(column(marked, "ecn_marked")) == {"s:2>h2/nic0:0"}
    alone = pair({"ecn": base}, ecn={"enabled": True, "kmin": "1GB", "kmax": "2GB"})
    assert column(alone, "ecn_marked") == {}  # no queue leads to h0


def test_a_link_without_pauses_drops() -> None:
    keys = {"buffer": {"total": "400kB"}}
    result = pair({"pfc": {"enabled": False}}, retries=1000, **keys)
    drops = result.network["drops"]
    assert drops["buffer"] > 0
    assert drops["lossless_violation"] == 0
    assert set(column(result, "pause_frames_received")) == {"h1/nic0:0>s:1"}


def test_the_cables_of_a_tier() -> None:
    source = {
        "schema": 1, "engine": "packet",
        "topology": {
            "kind": "fat-tree", "tiers": 2, "hosts": {"count": 8, "model": "single-nic-400g"},
            "leaf": {"switch": "tomahawk5", "hosts": 4}, "spine": {"switch": "tomahawk5"},
            "links": {
                "host-leaf": {"rate": "400Gbps", "length": "5m"},
                "leaf-spine": {"rate": "400Gbps", "length": "30m", "loss": {"rate": 0.05}},
            },
        },
        "workload": {
            "kind": "flows",
            "flows": [{"id": "near", "src": "h0", "dst": "h1", "size": "1MB"},
                      {"id": "far", "src": "h0", "dst": "h7", "size": "1MB"}],
        },
    }  # fmt: skip
    result = run_scenario(source)
    lost = column(result, "lost")
    assert lost
    assert all("leaf" in name and "spine" in name for name in lost)
    assert result.scenario["topology"]["links"]["leaf-spine"]["loss"]["rate"] == 0.05


def test_refusals_and_schema() -> None:
    with pytest.raises(InputError, match=r"links\[0\]\.buffer\.total"):
        pair({"buffer": {"total": "1MB"}})
    with pytest.raises(InputError, match="marks are set at one place"):
        pair({"ecn": {"at": "enqueue"}})
    with pytest.raises(InputError, match=r"links\[0\]\.mtu"):
        pair({"mtu": "1024B"})
    assert "LinkBufferModel" in str(scenario_schema())
