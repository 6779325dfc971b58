# SPDX-License-Identifier: Apache-2.0
"""The fabrics and traffic that the emulation is judged by.

None of them was used to choose settings: those (sizes of packets, buckets, windows, queues) were
chosen on `CHOSEN_ON` alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from railweave.workloads.kv_transfer import kv_matrix
from railweave.workloads.shapes import load_shape

CHOSEN_ON = (
    "eight flows of 4 MB between the leaves of the 8-host fabric, each way, apart and collided; "
    "all_reduce of 1 and 4 MiB and all_to_all of 8 MiB over its 8 hosts; an incast of four, five "
    "crossing flows and 30 Poisson flows of another seed there; permutations, ring steps and "
    "all_to_all of other seeds and sizes on both fabrics; gloo's all_reduce of 1.25, 1.5 and 3 MiB"
)

RATE, FAST = "400Gbps", "800Gbps"


def rails() -> dict[str, Any]:
    """16 GPUs: 4 hosts with 4 NICs, a leaf per rail, 2 spines, full bisection."""
    nodes: dict[str, Any] = {f"h{h}": "host" for h in range(4)}
    nodes |= {f"leaf{r}": {"type": "switch", "tier": "leaf"} for r in range(4)}
    nodes |= {f"spine{s}": {"type": "switch", "tier": "spine"} for s in range(2)}
    links = [
        {"ends": [f"h{h}/nic{r}", f"leaf{r}"], "rate": RATE, "delay": "0s"}
        for h, r in itertools.product(range(4), range(4))
    ]
    links += [
        {"ends": [f"leaf{r}", f"spine{s}"], "rate": FAST, "delay": "0s"}
        for r, s in itertools.product(range(4), range(2))
    ]
    return {"kind": "custom", "nodes": nodes, "links": links}


def leaves() -> dict[str, Any]:
    """8 hosts with one NIC, 2 leaves, 4 spines, full bisection."""
    nodes: dict[str, Any] = {f"h{h}": "host" for h in range(8)}
    nodes |= {f"leaf{i}": {"type": "switch", "tier": "leaf"} for i in range(2)}
    nodes |= {f"spine{s}": {"type": "switch", "tier": "spine"} for s in range(4)}
    links = [{"ends": [f"h{h}", f"leaf{h // 4}"], "rate": RATE, "delay": "0s"} for h in range(8)]
    links += [
        {"ends": [f"leaf{i}", f"spine{s}"], "rate": RATE, "delay": "0s"}
        for i, s in itertools.product(range(2), range(4))
    ]
    return {"kind": "custom", "nodes": nodes, "links": links}


def flow(src: str, dst: str, size: int, **more: Any) -> dict[str, Any]:
    """Write one flow."""
    return {"src": src, "dst": dst, "size": f"{size}B", **more}


def permutation(ends: list[str], *, seed: int, size: int) -> list[dict[str, Any]]:
    """Every NIC sends to one other of another host, and each hears one."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(ends))
        pairs = [(ends[i], ends[int(k)]) for i, k in enumerate(order)]
        if all(a.split("/")[0] != b.split("/")[0] for a, b in pairs):
            return [flow(a, b, size) for a, b in pairs]


def ring_steps(rings: list[list[str]], *, steps: int, size: int) -> list[dict[str, Any]]:
    """Rings in which everybody sends on what it has just heard."""
    found = []
    for k, ring in enumerate(rings):
        for step, i in itertools.product(range(steps), range(len(ring))):
            before = [] if step == 0 else [f"r{k}.{step - 1}.{(i - 1) % len(ring)}"]
            found.append(
                flow(ring[i], ring[(i + 1) % len(ring)], size, id=f"r{k}.{step}.{i}", after=before)
            )
    return found


def everybody(groups: list[list[str]], *, size: int) -> list[dict[str, Any]]:
    """All to all within each group."""
    return [flow(a, b, size) for group in groups for a, b in itertools.permutations(group, 2)]


def poisson(ends: list[str], *, seed: int, count: int = 40) -> list[dict[str, Any]]:
    """Flows of 0.05 to 0.5 s alone at 200 Mbit/s that begin 50 ms apart on average."""
    random = np.random.default_rng(seed)
    found, now = [], 0.0
    while len(found) < count:
        a, b = (ends[int(k)] for k in random.choice(len(ends), 2, replace=False))
        if a.split("/")[0] == b.split("/")[0]:
            continue
        now += random.exponential(25.0)  # us of the fabric, 50 ms here
        size = int(random.uniform(1_200_000, 12_000_000))
        found.append(flow(a, b, size, start=f"{now:.3f}us"))
    return found


def kv(prefill: list[list[str]], decode: list[list[str]], *, tokens: int) -> list[dict[str, Any]]:
    """Move caches of Llama-3.1-70B from prefill to decode replicas, a request every 100 us."""
    shape = load_shape("llama-3.1-70b")
    found = []
    for k, (source, target) in enumerate(zip(prefill, decode, strict=True)):
        moved = kv_matrix(shape, len(source), len(target), tokens)
        found += [
            flow(source[one.src_rank], target[one.dst_rank], one.size_bytes, start=f"{100 * k}us")
            for one in moved.transfers
        ]
    return found


def rail_cases() -> dict[str, list[dict[str, Any]]]:
    """Return the traffic on `rails`."""
    nics = [f"h{h}/nic{r}" for h in range(4) for r in range(4)]
    same_rail = [[f"h{h}/nic{r}" for h in range(4)] for r in range(4)]
    hosts = [[f"h{h}/nic{r}" for r in range(4)] for h in range(4)]
    return {
        "permutation 1": permutation(nics, seed=101, size=5_000_000),
        "permutation 2": permutation(nics, seed=102, size=5_000_000),
        "incast 3 on a rail": [flow(f"h{h}/nic1", "h0/nic1", 3_000_000) for h in (1, 2, 3)],
        "incast 12 across": [
            flow(f"h{h}/nic{r}", "h0/nic2", 1_500_000) for h in (1, 2, 3) for r in range(4)
        ],
        "ring steps": ring_steps(same_rail, steps=3, size=3_000_000),
        "all_to_all": everybody(same_rail, size=3_000_000),
        "parking lot": [
            flow("h0/nic0", "h3/nic0", 4_000_000),
            flow("h1/nic0", "h3/nic0", 3_000_000),
            flow("h1/nic0", "h2/nic1", 4_000_000),
            flow("h2/nic1", "h3/nic2", 5_000_000),
            flow("h0/nic3", "h3/nic2", 3_000_000),
        ],
        "KV transfers": kv(
            [hosts[0], hosts[1][:2], hosts[0]], [hosts[2], hosts[3], hosts[3]], tokens=40
        ),
        "Poisson": poisson(nics, seed=103),
    }


def leaf_cases() -> dict[str, list[dict[str, Any]]]:
    """Return the traffic on `leaves`."""
    hosts = [f"h{h}" for h in range(8)]
    return {
        "permutation 1": permutation(hosts, seed=201, size=5_000_000),
        "permutation 2": permutation(hosts, seed=202, size=5_000_000),
        "incast 3 in a leaf": [flow(f"h{h}", "h0", 3_000_000) for h in (1, 2, 3)],
        "incast 7": [flow(f"h{h}", "h5", 2_000_000) for h in range(8) if h != 5],
        "ring steps": ring_steps([["h0", "h4", "h1", "h5", "h2", "h6", "h3", "h7"]], steps=3,
                                 size=3_000_000),
        "all_to_all": everybody([hosts], size=1_500_000),
        "parking lot": [
            flow("h0", "h4", 4_000_000),
            flow("h0", "h1", 3_000_000),
            flow("h2", "h1", 4_000_000),
            flow("h2", "h5", 5_000_000),
            flow("h6", "h5", 3_000_000),
        ],
        "KV transfers": kv([hosts[:4], hosts[:2]], [hosts[4:], hosts[4:]], tokens=40),
        "Poisson": poisson(hosts, seed=203),
    }  # fmt: skip
