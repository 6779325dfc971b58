# SPDX-License-Identifier: Apache-2.0
"""The front-end network of a service: clients, gateway and servers, apart from the GPUs' fabric.

Servers have a front-end NIC each, ``h3/fe0``, cabled to front-end leaves; a front-end spine joins
the leaves, the gateway, the storage, and the clients (who stand for all of them: the way in from
outside). Where one leaf is enough there is no spine. No path leads from here to a NIC of the GPUs'
fabric or back, as in DGX SuperPOD reference architectures, whose in-band network is its own fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.joining import joined

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

__all__ = ["CLIENTS", "GATEWAY", "STORAGE", "FrontEnd", "server_nic"]

CLIENTS: Final = "clients"
"""The host that stands for all clients."""
GATEWAY: Final = "gateway"
"""The host of the gateway and its endpoint picker."""
STORAGE: Final = "storage"
"""The host of the storage that weights are loaded from."""
_TIER: Final = "front-end"


def server_nic(host: str) -> str:
    """Return the name of a server's front-end NIC.

    Examples
    --------
    >>> server_nic("h3")
    'h3/fe0'
    """
    return f"{host}/fe0"


@dataclass(frozen=True, kw_only=True)
class FrontEnd:
    """A front-end network that is yet to be built.

    Parameters
    ----------
    rate_bps
        Of a server's link, bit/s.
    core_rate_bps
        Of the links of gateway, clients and storage, and between switches, bit/s.
    delay_ps
        Propagation from a client to the gateway, and from there to a server: half of it on the
        link of each end; links between switches add none.
    servers_per_leaf
        Servers cabled to a leaf.
    """

    rate_bps: int
    core_rate_bps: int
    delay_ps: int
    servers_per_leaf: int

    def join(self, fabric: Fabric) -> Fabric:
        """Return a fabric with this network beside it, for all hosts that have GPUs.

        Raises
        ------
        InputError
            The fabric has devices of the same names.
        """
        servers = np.unique(fabric.host[fabric.gpus]).tolist()
        taken = {*fabric.device_names, *fabric.host_names}
        leaves = -(-len(servers) // self.servers_per_leaf)
        switches = [f"fe-leaf{i}" for i in range(leaves)] + ["fe-spine0"] * (leaves > 1)
        for name in (CLIENTS, GATEWAY, STORAGE, *switches):
            if name in taken:
                raise InputError(
                    f"{fabric.name} has a '{name}' of its own", field="frontend",
                    expected="a topology without nodes of the front-end network's names",
                )  # fmt: skip
        tiered = not len(fabric.switches) or bool((fabric.tier[fabric.switches] >= 1).all())
        build = FabricBuilder("front-end")
        nics = [
            build.add_device(server_nic(fabric.host_names[host]), DeviceKind.NIC, host=host)
            for host in servers
        ]
        first = len(fabric.host_names)
        ends = [
            build.add_device(f"{name}/nic0", DeviceKind.NIC, host=first + build.add_host(name))
            for name in (GATEWAY, CLIENTS, STORAGE)
        ]
        boxes = [
            build.add_device(
                name,
                DeviceKind.SWITCH,
                index=i if i < leaves else 0,
                tier=(1 if i < leaves else 2) if tiered else -1,
            )
            for i, name in enumerate(switches)
        ]

        def cable(a: int, b: int, rate_bps: int, delay_ps: int) -> None:
            build.add_cable(
                a, b, rate_bps=rate_bps, delay_ps=delay_ps, model=LinkModel.ROCE_LOSSY, tier=_TIER
            )

        for i, nic in enumerate(nics):
            cable(nic, boxes[i // self.servers_per_leaf], self.rate_bps, self.delay_ps // 2)
        for end in ends:
            cable(end, boxes[-1], self.core_rate_bps, self.delay_ps // 2)
        for leaf in boxes[:leaves] if leaves > 1 else ():
            cable(leaf, boxes[-1], self.core_rate_bps, 0)
        return joined(fabric, build.finish())
