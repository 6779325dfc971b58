# SPDX-License-Identifier: Apache-2.0
"""A small fleet on a network that loses packets: everything ends once, and what the losses cost.

Fluid and packets agree where nothing is lost and shares are fair. Elsewhere the packet run says
what fluid cannot, and what is to be expected is said here for each way of recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from railweave.fabric.errors import RailweaveError
from railweave.runner import run_scenario

if TYPE_CHECKING:
    from railweave.result import Result

RATE_BPS = 400 * 10**9
PROMPT = 512
FRAMES = PROMPT * 131_072 // 4096  # of a cache of Llama-3.1-8B
NO_CC = {"cc": {"kind": "none"}}
SHALLOW = {"buffer": {"total": "1MB"}}


def serve(engine: str, network: dict[str, Any], *, caches: int, requests: int, seed: int) -> Result:
    """Prefill on one GPU of each of some hosts, and decode on one GPU of another."""
    link = {
        "model": "trimming" if network.get("recovery") == "trim" else "roce-lossy",
        "rate": "400Gbps",
    }
    gpus = [f"h{host}/gpu0" for host in range(caches + 1)]
    scenario = {
        "schema": 1,
        "seed": seed,
        "engine": engine,
        "network": network if engine == "packet" else {},
        "topology": {
            "kind": "rail-optimized",
            "hosts": {"count": 4, "model": "dgx-h100"},
            "leaf": {"switch": "spectrum-4"},
            "spine": {"switch": "spectrum-4"},
            "links": {
                "host-leaf": {**link, "length": "10m"},
                "leaf-spine": {**link, "length": "30m"},
            },
        },
        "workload": {
            "kind": "serving",
            "model": "llama-3.1-8b",
            "prefill": {"replicas": caches, "placement": {"policy": "list", "gpus": gpus[1:]}},
            "decode": {"placement": {"policy": "list", "gpus": gpus[:1]}},
            "requests": [{"prompt": PROMPT, "output": 3}] * requests,
        },
    }
    return run_scenario(scenario).raise_for_status()


def both(
    network: dict[str, Any], *, caches: int, rounds: int = 1, seed: int = 1
) -> tuple[list[int], list[int], dict[str, Any]]:
    """Return times of transfers in order, as flows and packet by packet, and what was lost.

    Whatever was lost: each request ends once, with all of its cache and all of its tokens.
    """
    count = caches * rounds
    fluid, packet = (
        serve(engine, network, caches=caches, requests=count, seed=seed)
        for engine in ("fluid", "packet")
    )
    assert [row["status"] for row in packet.requests] == ["completed"] * count
    assert [row["attempts"] for row in packet.requests] == [1] * count
    for before, after in zip(fluid.requests, packet.requests, strict=True):
        assert after["kv_bytes"] == before["kv_bytes"] == FRAMES * 4096
    assert packet.serving["decode"]["tokens"] == 3 * count
    lost = packet.to_dict()["network"]
    assert lost["drops"]["lossless_violation"] == 0
    assert sum(lost["drops"].values()) + lost["trims"] > 0
    assert lost["retransmitted_bytes"] > 0
    found = (sorted(row["kv_ps"] for row in result.requests) for result in (fluid, packet))
    return *found, lost


@pytest.mark.parametrize("caches", [1, 3])
def test_selective_repeat_takes_the_time_of_what_was_lost(caches: int) -> None:
    """One in a thousand on each of two links: 1 / (1 - p)^2 of the time, while no timer runs out.

    A frame is sent again once for each that was lost. A lost one that had been sent again waits for
    the timer: 500 us; none is here.
    """
    network = {**NO_CC, "recovery": "selective-repeat", "loss": {"rate": 1e-3}}
    fluid, packet, lost = both(network, caches=caches, seed=4)
    again = lost["retransmitted_bytes"] // 4178
    assert lost["timeouts"] == 0
    assert 20 * caches < again <= lost["drops"]["random"]
    assert packet[-1] == pytest.approx(fluid[-1] / (1 - 1e-3) ** 2, rel=2e-3)


def test_go_back_n_takes_the_time_of_all_that_it_sends_again() -> None:
    network = {**NO_CC, "recovery": "go-back-n", "loss": {"rate": 1e-3}}
    (fluid,), (packet,), lost = both(network, caches=1)
    again_ps = lost["retransmitted_bytes"] * 8e12 / RATE_BPS
    assert again_ps > 0.1 * fluid  # a round trip of frames, not one, for each that is lost
    assert packet == pytest.approx(fluid + again_ps, rel=2e-3)


@pytest.mark.parametrize(("recovery", "late"), [("go-back-n", 0.01), ("selective-repeat", 0.06)])
def test_a_full_buffer_serves_one_cache_after_another(recovery: str, late: float) -> None:
    """Three caches into one NIC, 1 MB of buffer, no congestion control.

    No scheme ends before all bytes are through, and these end soon after; but who finds the buffer
    full waits for a timer (500 us) and the others go on: shares are not fair, and the first is done
    long before fluid says.
    """
    fluid, packet, lost = both({**NO_CC, **SHALLOW, "recovery": recovery}, caches=3)
    assert lost["drops"]["buffer"] > 100
    assert lost["timeouts"] > 0
    assert fluid[-1] <= packet[-1] <= (1 + late) * fluid[-1]
    assert packet[0] < 0.8 * fluid[0]


@pytest.mark.parametrize("queue", ["auto", "33kB"])
def test_trimming_agrees_with_fluid_though_packets_are_cut(queue: str) -> None:
    """Receivers grant 0.98 of their line, and hear at once of what was cut: no timer runs out."""
    network = {"recovery": "trim", "trim": {"queue": queue}}
    fluid, packet, lost = both(network, caches=3)
    assert lost["trims"] > 40
    assert lost["timeouts"] == lost["drops"]["buffer"] == 0
    for before, after in zip(fluid, packet, strict=True):
        assert after * 0.98 == pytest.approx(before, rel=2e-3)


def test_a_queue_pair_that_gives_up_ends_the_run_and_is_named() -> None:
    """Nine caches at once: one finds the buffer full eight times in a row, 500 us apart."""
    network = {**NO_CC, **SHALLOW, "recovery": "go-back-n"}
    with pytest.raises(RailweaveError, match=r"flow 'r\d+\.kv0-0' .* gave up after 7 retries"):
        serve("packet", network, caches=3, requests=9, seed=1)


def test_more_requests_than_replicas_end_once_each_whatever_is_lost() -> None:
    for recovery in ("go-back-n", "selective-repeat", "trim"):
        network = {"recovery": recovery, "loss": {"rate": 2e-5}}
        if recovery != "trim":
            network |= {**NO_CC, **SHALLOW, "retries": 50}
        both(network, caches=3, rounds=3)
