# SPDX-License-Identifier: Apache-2.0
"""The reachability check counts exactly the pairs that routing refuses."""

import itertools

import numpy as np
import pytest

from railweave.fabric.errors import UnreachableError
from railweave.fabric.faults import Fault, apply_faults
from railweave.fabric.routing import Routing
from railweave.topologies import build_topology, load_topology
from railweave.topologies.checks import unreachable_pairs

LAB = {
    "kind": "rail-optimized",
    "hosts": {"count": 3, "model": "dgx-h100"},
    "leaf": {"switch": "spectrum-4"},
    "spine": {"switch": "spectrum-4", "count": 3},
    "links": {
        "host-leaf": {"rate": "400Gbps", "length": "3m"},
        "leaf-spine": {"rate": "400Gbps", "length": "10m"},
    },
}


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault(node="leaf0.r3")],
        [Fault(node="spine0")],
        [Fault(node=f"spine{j}") for j in range(3)],
        [Fault(node="h1/pcie6"), Fault(node="h2/nvs0")],
        # a GPU without NVLink and NIC: its PCIe switch and CPU root pass nothing on
        [Fault(node="h2/nvs0"), Fault(node="h2/nic4")],
        # rail 0 climbs to spine 0 only, rail 1 to spine 1 only: nothing joins them
        [Fault(link=f"leaf0.r0:{3 + j}-spine{j}:0") for j in (1, 2)]
        + [Fault(link=f"leaf0.r1:{3 + j}-spine{j}:1") for j in (0, 2)],
    ],
)
def test_the_check_agrees_with_routing(faults):
    agree(apply_faults(build_topology(load_topology(LAB)), faults))


@pytest.mark.parametrize("model", ["l40s-8", "rtx-pro-6000-8", "t4-8"])
@pytest.mark.parametrize("faults", [[], ["h1/nic0"], ["h1/cpu1"], ["h1/nic0", "h1/cpu1"]])
def test_the_check_agrees_with_routing_in_hosts_without_nvlink(model, faults):
    rate = "100Gbps" if model == "t4-8" else "200Gbps"
    links = {tier: cable | {"rate": rate} for tier, cable in LAB["links"].items()}
    lab = LAB | {"hosts": {"count": 2, "model": model}, "spine": {"switch": "spectrum-4"}}
    fabric = build_topology(load_topology(lab | {"links": links}))
    agree(apply_faults(fabric, [Fault(node=node) for node in faults]))


def agree(fabric):
    routing, refused = Routing(fabric), []
    for a, b in itertools.permutations(fabric.gpus.tolist(), 2):
        ends = (np.array([end], np.int32) for end in (a, b))
        try:
            routing.routes(*ends, np.zeros(1, np.int32))
        except UnreachableError:
            refused.append((fabric.device_names[a], fabric.device_names[b]))
    missing, first = unreachable_pairs(fabric)
    assert missing == len(refused)
    assert (first in refused) if refused else first is None
