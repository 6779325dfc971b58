# SPDX-License-Identifier: Apache-2.0
"""ACKs of messages of few packets, which the rates of the fluid engine do not leave room for."""

from __future__ import annotations

from railweave.runner import run_scenario


def test_acks_that_rates_leave_no_room_for_are_told() -> None:
    names = [f"h{i}" for i in range(4)]
    result = run_scenario(
        {
            "schema": 1,
            "topology": {
                "kind": "custom",
                "nodes": dict.fromkeys(names, "host") | {"s1": "switch"},
                "links": [
                    {"ends": [name, "s1"], "rate": "100Gbps", "delay": "0ns"} for name in names
                ],
            },
            "network": {"host_latency": "0ns", "switch_latency": "0ns"},
            "routing": {"qps": 8},
            "workload": {
                "kind": "collective",
                "op": "all_to_all",
                "algorithm": "direct",
                "size": "16KiB",
            },
        }
    ).raise_for_status()
    # To each of three: eight messages of a packet of 512 bytes, and an ACK of 86 bytes for each.
    network = result.links.fabric.link_network
    assert set(result.links.wire_bytes[network].tolist()) == {24 * (512 + 98)}
    assert set(result.links.ack_bytes[network].tolist()) == {24 * 86}
    # Room is left for one ACK in four packets of 4,178 bytes.
    fill = (512 + 98 + 86) * 24 * 80 / result.sim_time_ps
    assert fill > 1.08
    assert result.warnings[-1] == (
        "messages of few packets have more acknowledgements than rates leave room for: "
        f"h0/nic0:0>s1:0 carried {fill:.4f} times what it can, and times may be too short by as "
        "much"
    )
