# SPDX-License-Identifier: Apache-2.0
"""What hash collisions leave of a permutation at packet level, beside max-min fair sharing.

Every host of a leaf-spine of 16 leaves, 16 hosts each, and 16 spines (100 Gb/s) sends to another
one without end: to the next leaf (leaf-shift, whose max-min mean is 1 - (15/16)^16 exactly), or at
random. Pauses are on, at 100 KB a queue so that they have set in before the window; rate control is
off. Rates are those on the wire into the receivers in a window in which all flows are active, over
several seeds; fluid rates are the max-min fair ones on the same paths. Without pauses buffers hold
everything, and links are shared first come, first served.
"""

from __future__ import annotations

import argparse
import random
import statistics

import numpy as np

from railweave.fabric.engine import FabricEnvironment
from railweave.fabric.flow import Flow
from railweave.fabric.fluid import FluidEngine
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.fabric.network import NetworkSettings
from railweave.fabric.packet.engine import PacketEngine
from railweave.fabric.packet.settings import PacketSettings
from railweave.fabric.routing import Routing

RATE, US = 100 * 10**9, 10**6
PUBLISHED = {  # mean max-min share of the line: closed form, and a reference over many samples
    ("leaf-shift", 1): 0.6439,
    ("leaf-shift", 4): None,  # nobody published it; the fluid rates are the max-min fair ones
    ("random", 1): 0.555,
    ("random", 4): 0.844,
}


def leaf_spine(side: int = 16) -> Fabric:
    """Return the fabric: ``side`` leaves, hosts a leaf, and spines."""
    build = FabricBuilder("sharing")
    names = [f"h{i}" for i in range(side * side)]
    nics = [build.add_device(f"{n}/nic0", DeviceKind.NIC, host=build.add_host(n)) for n in names]
    leaves = [build.add_device(f"l{i}", DeviceKind.SWITCH, tier=1) for i in range(side)]
    spines = [build.add_device(f"s{i}", DeviceKind.SWITCH, tier=2) for i in range(side)]
    for i, nic in enumerate(nics):
        build.add_cable(
            nic, leaves[i // side], rate_bps=RATE, delay_ps=200_000, model=LinkModel.ROCE_LOSSLESS
        )
    for leaf in leaves:
        for spine in spines:
            build.add_cable(
                leaf, spine, rate_bps=RATE, delay_ps=200_000, model=LinkModel.ROCE_LOSSLESS
            )
    return build.finish()


def targets(pattern: str, side: int, seed: int) -> list[int]:
    """Return who each host sends to."""
    draw, hosts = random.Random(seed), side * side
    if pattern == "leaf-shift":
        to = []
        for leaf in range(side):
            other = list(range(side))
            draw.shuffle(other)
            to += [(leaf + 1) % side * side + host for host in other]
        return to
    while True:
        to = list(range(hosts))
        draw.shuffle(to)
        if all(i != j for i, j in enumerate(to)):
            return to


def shares(
    pattern: str, qps: int, seed: int, *, side: int = 16, warm_us: int = 300, window_us: int = 300,
    pfc: bool = True,
) -> tuple[float, float, float]:  # fmt: skip
    """Return mean shares of the line: by packets, by max-min, and the share of paused time."""
    fabric = leaf_spine(side)
    network = NetworkSettings(ack_every=0, host_latency_ps=0)
    to = targets(pattern, side, seed)
    means = []
    paused = 0.0
    for kind in (PacketEngine, FluidEngine):
        env = FabricEnvironment()
        keys = {}
        if kind is PacketEngine:
            limit = {"xoff_bytes": 100_000, "xon_bytes": 90_000}
            limit = limit if pfc else {"xoff_bytes": 10**9, "headroom_bytes": 0}
            keys = {"packet": PacketSettings(seed=seed, ecn=False, **limit)}
            if not pfc:
                keys["buffers"] = np.full(2 * side, 10**13)
        engine = kind(env, fabric, Routing(fabric, seed=seed), network, qps=qps, **keys)
        for host, dst in enumerate(to):
            nics = fabric.nics
            engine.send(
                Flow(id=f"f{host}", src=int(nics[host]), dst=int(nics[dst]), size_bytes=10**9)
            )
        own = np.arange(side * side) * 2 + 1  # into each host
        env.run(until=warm_us * US)
        before = engine.counters().wire_bytes[own].copy()
        env.run(until=(warm_us + window_us) * US)
        gained = engine.counters().wire_bytes[own] - before
        means.append(float(gained.mean()) * 8 / (window_us * 1e-6 * RATE))
        if kind is PacketEngine:
            paused = float(engine.state.paused_ps(engine.now_ps).sum()) / (
                engine.now_ps * fabric.n_links
            )
    return means[0], means[1], paused


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    print(
        "| pattern | QPs | max-min, published | fluid | packets, PFC | no pauses | paused links |"
    )
    print("|---|---|---|---|---|---|---|")
    for (pattern, qps), published in PUBLISHED.items():
        runs = [shares(pattern, qps, seed) for seed in range(1, given.seeds + 1)]
        free = [shares(pattern, qps, seed, pfc=False)[0] for seed in range(1, given.seeds + 1)]
        packet, fluid, paused = (statistics.mean(column) for column in zip(*runs, strict=True))
        print(
            f"| {pattern} | {qps} | {published or '-'} | {fluid:.3f} | {packet:.3f} "
            f"| {statistics.mean(free):.3f} | {100 * paused:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
