# SPDX-License-Identifier: Apache-2.0
"""The same KV transfers on several fabrics, alone and beside expert-parallel decode steps.

Also pull, push and layer-wise stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from serving_base import Asked, fleet, ms, rail, section, table

if TYPE_CHECKING:
    from railweave.result import Result

HALF = 4  # prefill hosts, as many decode hosts, as many others
HOSTS = 3 * HALF
PROMPT = 8192
KV_BYTES = PROMPT * 327_680
SHARE = 4096 / 4178  # of a RoCEv2 frame on IPv4 with an MTU of 4096
ACKS = 86 / (4 * 4178)  # wire bytes of the ACK that the other way carries of four packets
NIC_BPS = 400 * 10**9


def transfers(oversubscription: str, *, shift: int, beside: str, routing: str = "ecmp") -> Result:
    """Return a run of four prompts at once, each prefilled on one host and decoded on another.

    ``shift`` moves the ranks of the decode side by so many rails. ``beside``: nothing, or a decode
    step of DeepSeek-V3, experts over 32 GPUs, 32 requests on each, which begins 5 ms before the
    transfers do, on the decode hosts (``there``) or on four others (``elsewhere``).
    """

    def gpus(first: int, by: int = 0) -> list[str]:
        return [f"h{h}/gpu{(i + by) % 8}" for h in range(first, first + HALF) for i in range(8)]

    places = [gpus(0), gpus(HALF, shift)]
    pools = [
        {"replicas": HALF, "tp": 8, "placement": {"policy": "list", "gpus": place}}
        for place in places
    ]
    workloads: list[dict[str, Any]] = [
        {
            "kind": "serving", "name": "chat", "model": "llama-3.1-70b", "prefill": pools[0],
            "decode": pools[1], "requests": [{"prompt": PROMPT, "output": 4}] * HALF,
        }
    ]  # fmt: skip
    if beside:
        ranks = 8 * HALF
        workloads.append(
            {
                "kind": "inference", "name": "experts", "model": "deepseek-v3", "tokens": 2048,
                "batch": 32 * ranks, "dp": ranks, "ep": ranks, "ep_backend": "all_to_all",
                "start": "290ms",
                "placement": {
                    "policy": "list", "gpus": gpus(HALF if beside == "there" else 2 * HALF)
                },
            }
        )  # fmt: skip
    return fleet(
        workloads, topology=rail(HOSTS, oversubscription), routing={"policy": routing}
    ).raise_for_status()


CASES = (
    ("rail-matched", 0, "1:1", "ecmp"),
    ("rail-mismatched", 1, "1:1", "ecmp"),
    ("rail-mismatched", 1, "1:1", "spray"),
    ("rail-mismatched", 1, "4:1", "spray"),
    ("rail-mismatched", 1, "4:1", "ecmp"),
)


def most_late_ps(result: Result) -> float:
    """Return how late a cache may be for a step beside it: its bytes on the links that both use.

    While a cache has less than its share of an empty link, that link is full. So each level of
    links on the way (into a spine, out of it, into a NIC) makes it late by the step's bytes there
    at most.
    """
    fabric = result.fabric
    steps = [one for name, one in result.classes.items() if name.startswith("experts")]
    both = fabric.link_network & (result.classes["kv"].wire_bytes > 0)
    levels: dict[tuple[int, int], float] = {}
    for link in np.flatnonzero(both).tolist():
        theirs = sum(int(one.wire_bytes[link] + one.ack_bytes[link]) for one in steps)
        ends = fabric.link_src[link], fabric.link_dst[link]
        level = int(fabric.tier[ends[0]]), int(fabric.tier[ends[1]])
        took_ps = theirs * 8e12 / float(fabric.link_rate_bps[link])
        levels[level] = max(levels.get(level, 0.0), took_ps)
    return sum(levels.values())


@section("fabrics")
def fabrics(asked: Asked) -> list[str]:
    """Return KV time and TTFT beside their bounds."""
    del asked
    rows = []
    for beside in ("", "elsewhere", "there"):
        for name, shift, over, routing in CASES:
            result = transfers(over, shift=shift, beside=beside, routing=routing)
            serving = result.serving.get("chat", result.serving)
            kv, ttft = serving["kv_transfer_ps"], serving["ttft_ps"]
            # Through the uplinks of each leaf goes one flow of each prefill host, and back as many
            # flows' ACKs.
            uplinks = HOSTS // int(over[0])
            flow_ps = KV_BYTES / (NIC_BPS * SHARE) * 1e12  # of 8 NICs: KV_BYTES / 8 at 8 bit a byte
            cut = flow_ps * (1 + ACKS) * HALF / uplinks if shift else 0.0
            least = max(kv["bound_mean"], cut)
            late = least - kv["bound_mean"]
            rows.append(
                (
                    f"{name}, {over}, {routing}",
                    f"experts {beside}" if beside else "alone",
                    ms(least),
                    ms(least + most_late_ps(result)) if routing == "spray" or not shift else "-",
                    ms(kv["p50"]),
                    ms(kv["max"]),
                    f"{(ttft['bound_mean'] + late) / 1e9:.1f}",
                    f"{ttft['max'] / 1e9:.1f}",
                    ms(result.steps[0]["communication_ps"]) if beside else "-",
                )
            )
    header = ("fabric", "beside", "KV at least ms", "at most ms", "KV p50 ms", "KV max ms",
              "TTFT at least ms", "TTFT max ms", "experts' exchanges ms")  # fmt: skip
    return table(header, rows)


PROMPTS = (256, 2048, 8192, 32_768, 98_304)


@section("handoff")
def handoff(asked: Asked) -> list[str]:
    """Return what is left of a KV transfer when the prefill is over."""
    del asked
    rows = []
    for label, nic, cost, rate in (
        ("400G for each GPU", "affine", "0us", "400Gbps"),
        ("400G for each GPU, 1 us a message", "affine", "1us", "400Gbps"),
        ("400G for eight GPUs", "single", "0us", "400Gbps"),
        ("50G for eight GPUs", "single", "0us", "50Gbps"),
        ("25G for eight GPUs", "single", "0us", "25Gbps"),
    ):
        topology = rail(8)
        for link in topology["links"].values():
            link["rate"] = rate
        for prompt in PROMPTS:
            exposed, ttft, whole = [], [], 0
            for mode in ("pull", "push", "stream"):
                result = fleet(
                    {
                        "prefill": {"tp": 8}, "decode": {"tp": 8}, "max_num_batched_tokens": 8192,
                        "requests": [{"prompt": prompt, "output": 2}],
                        "kv_transfer": {"mode": mode, "nic": nic, "message_cost": cost},
                    },
                    topology=topology,
                ).raise_for_status()  # fmt: skip
                (row,) = result.requests
                exposed.append(row["kv_exposed_ps"])
                ttft.append(row["ttft_ps"])
                whole = max(whole, row["prefill_end_ps"] - row["prefill_start_ps"])
            best = min(zip(ttft, ("pull", "push", "stream"), strict=True))[1]
            if ttft[0] == ttft[1] == ttft[2]:
                best = "equal"
            rows.append((label, f"{prompt:,}", ms(whole), *map(ms, exposed), best))
    header = ("transfer", "prompt", "prefill ms", "pull ms", "push ms", "stream ms", "first")
    return table(header, rows)
