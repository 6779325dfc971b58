# SPDX-License-Identifier: Apache-2.0
"""Replicas that fail: requests go elsewhere, and none is lost or answered twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError, StalledError
from railweave.runner import run_scenario

if TYPE_CHECKING:
    from railweave.result import Result

# Six hosts of one GPU behind two leaves: small, so that many runs are possible.
HOSTS = {
    "kind": "custom",
    "name": "lab",
    "nodes": {
        **{f"h{i}": "host" for i in range(6)},
        "leaf0": {"type": "switch", "model": "tomahawk5", "tier": "leaf"},
        "leaf1": {"type": "switch", "model": "tomahawk5", "tier": "leaf"},
        "spine0": {"type": "switch", "model": "tomahawk5", "tier": "spine"},
        "spine1": {"type": "switch", "model": "tomahawk5", "tier": "spine"},
    },
    "links": [
        *[
            {"ends": [f"h{i}", f"leaf{i % 2}"], "rate": "400Gbps", "delay": "500ns"}
            for i in range(6)
        ],
        *[
            {"ends": [f"leaf{i}", f"spine{j}"], "rate": "400Gbps", "delay": "500ns"}
            for i in range(2)
            for j in range(2)
        ],
    ],
}


def serve(
    faults: list[dict[str, Any]], *, topology: Any = "h100-rail-8", **workload: Any
) -> Result:
    apart = (
        {} if "colocated" in workload else {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
    )
    keys = {"kind": "serving", "model": "llama-3.1-8b", **apart, **workload}
    return run_scenario({"schema": 1, "topology": topology, "faults": faults, "workload": keys})


def requests(count: int, *, every_ms: int = 5) -> list[dict[str, Any]]:
    return [
        {"prompt": 400 + 97 * i % 1600, "output": 20 + 13 * i % 60, "at": f"{i * every_ms}ms"}
        for i in range(count)
    ]


def test_a_host_that_fails_takes_its_replica_and_its_requests_go_elsewhere() -> None:
    """Decode replicas sit on h1: prefill fills h0's first two GPUs, decode begins a new host."""
    place = {"policy": "list", "gpus": ["h1/gpu0", "h2/gpu0"]}
    fault = {"node": "h1", "do": "down", "at": "150ms", "for": "200ms"}
    result = serve(
        [fault], decode={"replicas": 2, "placement": place}, requests=requests(16, every_ms=60)
    ).raise_for_status()
    assert result.serving["requests"]["completed"] == 16
    (outage,) = result.serving["outages"]
    assert (outage["replica"], outage["down_ps"]) == ("decode0", 150 * 10**9)
    assert outage["repaired_ps"] == 350 * 10**9
    assert (outage["weights_from"], outage["weights_bytes"]) == ("decode1", 16_060_522_496)
    (loaded,) = [record for record in result.records if record.flow.tag == "weights"]
    assert loaded.start_ps == outage["repaired_ps"]
    assert outage["up_ps"] == loaded.end_ps >= loaded.start_ps + 16_060_522_496 * 20
    assert outage["requests"] > 0
    again = [row for row in result.requests if row["attempts"] > 1]
    assert len(again) == outage["requests"] == result.serving["sent_again"]
    assert outage["served_ps"] == max(row["end_ps"] for row in again)
    assert all(row["decode"] == 1 for row in again if row["end_ps"] < outage["up_ps"])


def test_a_restart_takes_its_delay() -> None:
    place = {"policy": "list", "gpus": ["h1/gpu0"]}
    fault = {"node": "h1", "do": "down", "at": "100ms", "for": "50ms"}
    result = serve(
        [fault],
        decode={"placement": place},
        requests=requests(8),
        restart_delay="300ms",
    ).raise_for_status()
    (outage,) = result.serving["outages"]
    loaded = [record for record in result.records if record.flow.tag == "weights"]
    assert {record.start_ps for record in loaded} == {450 * 10**9}
    assert outage["up_ps"] == max(record.end_ps for record in loaded)
    assert outage["weights_from"] == "prefill0"  # nobody else of its pool serves
    assert result.serving["requests"]["completed"] == 8


def test_weights_come_from_disks_storage_or_a_host_if_asked() -> None:
    place = {"policy": "list", "gpus": ["h1"]}
    fault = {"node": "h1", "do": "down", "at": "20ms", "for": "50ms"}

    def again(source: Any) -> tuple[dict[str, Any], dict[tuple[str, str], int]]:
        result = serve(
            [fault], prefill={"tp": 8}, decode={"tp": 8, "placement": place},
            requests=requests(4), weights=source, frontend={},
        ).raise_for_status()  # fmt: skip
        (outage,) = result.serving["outages"]
        names = result.fabric.device_names
        flows = {
            (names[r.flow.src], names[r.flow.dst]): r.flow.size_bytes
            for r in result.records
            if r.flow.tag == "weights"
        }
        return outage, flows

    rank = 2_008_031_232  # of a tp rank of eight
    outage, flows = again({"source": "disk", "disk_rate": "80Gbps"})
    assert (flows, outage["weights_from"]) == ({}, "disk")
    assert outage["up_ps"] - outage["repaired_ps"] == 8 * rank * 100
    outage, flows = again("storage")
    assert flows == {("storage/nic0", "h1/fe0"): 8 * rank}
    assert outage["up_ps"] - outage["repaired_ps"] > 8 * rank * 320  # 25 Gbps
    outage, flows = again("h5")
    assert flows == {(f"h5/gpu{i}", f"h1/gpu{i}"): rank for i in range(8)}
    outage, flows = again("peer")
    assert flows == {(f"h0/gpu{i}", f"h1/gpu{i}"): rank for i in range(8)}


def test_a_replica_that_fails_while_it_loads_loads_again() -> None:
    place = {"policy": "list", "gpus": ["h1/gpu0"]}
    faults = [
        {"node": "h1", "do": "down", "at": "20ms", "for": "50ms"},
        {"node": "h1", "do": "down", "at": "200ms", "for": "50ms"},
    ]
    result = serve(faults, decode={"placement": place}, requests=requests(4)).raise_for_status()
    (outage,) = result.serving["outages"]
    assert outage["repaired_ps"] == 250 * 10**9
    loads = [record for record in result.records if record.flow.tag == "weights"]
    assert [load.end_ps >= 0 for load in loads] in ([False, True], [True])


def test_bytes_of_a_load_that_the_end_cuts_short_are_of_its_class() -> None:
    place = {"policy": "list", "gpus": ["h1/gpu0", "h2/gpu0"]}
    fault = {"node": "h1", "do": "down", "at": "20ms", "for": "20ms"}
    result = serve(
        [fault], decode={"replicas": 2, "placement": place}, requests=requests(6),
        restart_delay="250ms",
    ).raise_for_status()  # fmt: skip
    (load,) = [record for record in result.records if record.flow.tag == "weights"]
    assert load.end_ps < 0
    carried = result.classes["weights"].wire_bytes
    assert 0 < carried.max() < load.wire_bytes
    total = sum(counters.wire_bytes for counters in result.classes.values())
    assert (total == result.links.wire_bytes).all()


def test_weights_from_nowhere_are_refused() -> None:
    with pytest.raises(InputError, match="no front-end network, on which storage is"):
        serve([], requests=requests(1), weights="storage")
    with pytest.raises(InputError, match="no host 'h99' with GPUs"):
        serve([], requests=requests(1), weights="h99")


def test_one_lost_gpu_takes_its_whole_replica() -> None:
    place = {"policy": "list", "gpus": ["h1"]}
    fault = {"node": "h1/gpu5", "do": "down", "at": "100ms", "for": "100ms"}
    result = serve(
        [fault], decode={"tp": 8, "placement": place}, requests=requests(6)
    ).raise_for_status()
    assert [one["replica"] for one in result.serving["outages"]] == ["decode0"]
    assert result.serving["requests"]["completed"] == 6


def test_a_leaf_that_fails_cuts_off_who_is_behind_it() -> None:
    """Rail 0 is lost: the replicas on gpu0 cannot be reached, those on gpu1 can."""
    pools = {
        "prefill": {"replicas": 2, "placement": {"policy": "list", "gpus": ["h0/gpu0", "h0/gpu1"]}},
        "decode": {"replicas": 2, "placement": {"policy": "list", "gpus": ["h1/gpu0", "h1/gpu1"]}},
    }
    fault = {"node": "leaf0.r0", "do": "down", "at": "20ms"}
    result = serve([fault], **pools, requests=requests(16)).raise_for_status()
    assert result.serving["requests"]["completed"] == 16
    late = [row for row in result.requests if row["arrival_ps"] > 31 * 10**9]
    assert {(row["prefill"], row["decode"]) for row in late} == {(1, 1)}


def test_a_replica_over_two_hosts_is_down_while_its_ranks_are_apart() -> None:
    fault = {"node": "h1/nic0", "do": "down", "at": "60ms", "for": "300ms"}
    result = serve(
        [fault], colocated={"replicas": 2, "tp": 16}, requests=requests(8, every_ms=60)
    ).raise_for_status()
    (outage,) = result.serving["outages"]
    assert outage["replica"] == "colocated0"
    assert outage["down_ps"] == 70 * 10**9  # when routing has noticed
    loaded = [record for record in result.records if record.flow.tag == "weights"]
    assert len(loaded) == 16
    assert outage["repaired_ps"] == 370 * 10**9
    assert outage["up_ps"] == max(record.end_ps for record in loaded)
    assert result.serving["requests"]["completed"] == 8


def test_nobody_left_to_serve_is_said_by_name() -> None:
    place = {"policy": "list", "gpus": ["h1/gpu0"]}
    fault = {"node": "h1", "do": "down", "at": "50ms"}
    result = serve([fault], decode={"placement": place}, requests=requests(6))
    assert result.status == "deadlocked"
    assert isinstance(result.error, StalledError)
    assert "waits for a decode replica that serves" in str(result.error)
    assert result.error.exit_code == 1
    done = result.serving["requests"]["completed"]
    assert done + result.serving["unfinished"] == 6


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_failures_lose_and_double_nothing(first: int) -> None:
    """Seeded runs: hosts, leaves, spines and cables die and mostly come back.

    Two hundred of larger hosts and replicas: ``python benchmarks/serving.py --only failures``.
    """
    for seed in range(first, first + 8):
        random = np.random.default_rng(seed)
        things = [
            f"h{random.integers(6)}",
            f"leaf{random.integers(2)}",
            f"spine{random.integers(2)}",
        ]
        host = int(random.integers(6))
        cables = [
            "leaf0:3-spine0:0",
            "leaf1:4-spine1:1",
            f"h{host}/nic0:0-leaf{host % 2}:{host // 2}",
        ]
        faults = []
        for _ in range(int(random.integers(1, 4))):
            where = (
                {"link": str(random.choice(cables))}
                if random.random() < 0.4
                else {"node": str(random.choice(things))}
            )
            lasts = {"for": f"{int(random.integers(5, 300))}ms"}
            faults.append(
                {**where, "do": "down", "at": f"{int(random.integers(1, 250))}ms", **lasts}
            )
        result = serve(
            faults,
            topology=HOSTS,
            kv_transfer=str(random.choice(["pull", "push", "stream"])),
            router=str(random.choice(["round-robin", "least-connections", "topology-aware"])),
            prefill={"replicas": 3},
            decode={"replicas": 3},
            requests=requests(10, every_ms=20),
        ).raise_for_status()
        served = result.serving["requests"]
        assert (served["completed"], served["count"]) == (10, 10), (seed, faults)
        for row in result.requests:
            assert row["status"] == "completed"
        tokens = sum(result.serving[pool]["tokens"] for pool in ("prefill", "decode"))
        assert tokens == sum(row["output_tokens"] for row in result.requests)


@pytest.mark.parametrize("mode", ["pull", "push", "stream"])
@pytest.mark.parametrize("host", ["h0", "h2"])
def test_a_replica_that_fails_during_a_prefill_is_done_without(mode: str, host: str) -> None:
    """One of each pool is lost 20 ms into a prompt: with it what is lost, and no more."""
    place = [{"policy": "list", "gpus": gpus}
             for gpus in (["h0/gpu0", "h1/gpu0"], ["h2/gpu0", "h3/gpu0"])]  # fmt: skip
    result = serve(
        [{"node": host, "do": "down", "at": "20ms"}],
        prefill={"replicas": 2, "placement": place[0]},
        decode={"replicas": 2, "placement": place[1]},
        kv_transfer=mode,
        requests=[{"prompt": 4096, "output": 2}],
    ).raise_for_status()
    (row,) = result.requests
    waits = host == "h0" or mode != "pull"  # a pull has not chosen who decodes
    assert (row["status"], row["attempts"]) == ("completed", 2 if waits else 1)
    assert (row["prefill"], row["decode"]) in ((1, 0), (1, 1), (0, 1))


def two_groups() -> dict[str, Any]:
    """Return eight hosts of eight GPUs in two groups of eight leaves."""
    link = {"model": "roce-lossless", "rate": "400Gbps"}
    return {
        "kind": "rail-optimized",
        "hosts": {"count": 8, "model": "dgx-h100"},
        "group": 4,
        "leaf": {"switch": "spectrum-4"},
        "spine": {"switch": "spectrum-4"},
        "links": {
            "host-leaf": {**link, "length": "10m"},
            "leaf-spine": {**link, "length": "30m"},
        },
    }


POOLS_OF_EIGHT = {
    "prefill": {"replicas": 4, "tp": 8,
                "placement": {"policy": "list", "gpus": ["h0", "h1", "h4", "h5"]}},
    "decode": {"replicas": 4, "tp": 8,
               "placement": {"policy": "list", "gpus": ["h2", "h3", "h6", "h7"]}},
    "kv_transfer": "stream",
}  # fmt: skip
PAIRS_OF_HOSTS = {"colocated": {"replicas": 4, "tp": 8, "pp": 2}}


@pytest.mark.parametrize("pools", [POOLS_OF_EIGHT, PAIRS_OF_HOSTS], ids=["tp8", "tp8-pp2"])
@pytest.mark.parametrize("lasts", [{}, {"for": "400ms"}], ids=["for-ever", "for-a-while"])
@pytest.mark.parametrize(
    ("what", "down"),
    [
        ({"node": "h2"}, 1),
        ({"node": "h2/gpu3"}, 1),
        ({"node": "leaf0.r3"}, 2),
        ({"link": "h2/nic3:0-leaf0.r3:2"}, 1),
        ({"link": "leaf0.r3:4-spine0:12"}, 0),
        ({"node": "spine0"}, 0),
    ],
    ids=["host", "gpu", "leaf", "cable", "uplink", "spine"],
)
def test_hosts_of_eight_lose_nothing(
    what: dict[str, str], down: int, lasts: dict[str, str], pools: dict[str, Any]
) -> None:
    """Whatever fails while requests are under way, for ever too, all end once, and it is said when.

    ``down``: replicas over two hosts that it takes down. A replica within a host goes down with the
    host and its GPUs alone: a lost leaf or cable leaves it without those that it sends to.
    """
    fault = {**what, "do": "down", "at": "130ms", **lasts}
    result = serve(
        [fault], topology=two_groups(), model="llama-3.1-70b", restart_delay="100ms",
        requests=requests(8, every_ms=25), **pools,
    ).raise_for_status()  # fmt: skip
    served = result.serving["requests"]
    assert (served["count"], served["completed"]) == (8, 8)
    names = ("prefill", "decode") if pools is POOLS_OF_EIGHT else ("colocated",)
    tokens = sum(result.serving[pool]["tokens"] for pool in names)
    assert tokens == sum(row["output_tokens"] for row in result.requests)
    outages = result.serving.get("outages", [])
    within = pools is POOLS_OF_EIGHT and not what.get("node", "").startswith("h2")
    assert len(outages) == (0 if within else down)
    for outage in outages:
        assert (outage["repaired_ps"] is None) == (not lasts)
        assert (outage["served_ps"] is None) == (not outage["requests"])
