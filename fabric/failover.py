# SPDX-License-Identifier: Apache-2.0
"""GPUs whose NIC has no cable in service, moved to another NIC of their host.

What a job that is started again does: NCCL takes only NICs with an active port (``ncclIbInit``
passes over ports that are not ``IBV_PORT_ACTIVE``, nccl ``src/transport/net_ib``) and gives each
GPU the nearest of them (``ncclTopoGetLocalNet``). A job that was running when the NIC went stops
first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.graph import LinkModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["on_nics_left"]


def on_nics_left(fabric: Fabric) -> Fabric:
    """Return the fabric with each GPU whose NIC is cut off on another NIC of its host.

    The one that fewest GPUs use is taken, of several the nearest by cables inside the host, of
    equally near ones the next by number: so GPUs of hosts that lost the same NICs stay on one rail.
    A GPU whose host has no NIC left keeps its own.

    Parameters
    ----------
    fabric
        As it is after its faults.
    """
    wired = np.zeros(fabric.n_devices, np.bool_)
    wired[fabric.link_src[fabric.link_up & fabric.link_network]] = True
    affine = fabric.gpu_nic.copy()
    nic = affine[fabric.gpus]
    wired &= ~fabric.front_end
    lost = fabric.gpus[(nic >= 0) & ~wired[nic]]
    inside = _beside(fabric) if len(lost) else {}
    users = np.bincount(nic[nic >= 0], minlength=fabric.n_devices)
    for gpu in lost.tolist():
        host = fabric.host[gpu]
        left = fabric.nics[(fabric.host[fabric.nics] == host) & wired[fabric.nics]]
        if not len(left):
            continue
        after = (fabric.index[left] - fabric.index[affine[gpu]]) % (fabric.index[left].max() + 1)
        near = _steps(inside, gpu, fabric.n_devices)[left]
        chosen = int(left[np.lexsort((after, near, users[left]))[0]])
        users[affine[gpu]] -= 1
        users[chosen] += 1
        affine[gpu] = chosen
    return replace(fabric, gpu_nic=affine) if len(lost) else fabric


def _beside(fabric: Fabric) -> dict[int, list[int]]:
    """Return what each device is joined to by PCIe and between sockets."""
    found: dict[int, list[int]] = {}
    own = np.flatnonzero(fabric.link_up & (fabric.link_model == LinkModel.PCIE))
    for one, other in zip(
        fabric.link_src[own].tolist(), fabric.link_dst[own].tolist(), strict=True
    ):
        found.setdefault(one, []).append(other)
    return found


def _steps(beside: dict[int, list[int]], start: int, devices: int) -> NDArray[np.int32]:
    """Return the fewest cables from a device to each other, int32, as many as devices if none."""
    steps = np.full(devices, devices, np.int32)
    steps[start], ring = 0, [start]
    while ring:
        after = []
        for device in ring:
            for other in beside.get(device, ()):
                if steps[other] == devices:
                    steps[other] = steps[device] + 1
                    after.append(other)
        ring = after
    return steps
