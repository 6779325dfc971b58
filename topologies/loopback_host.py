# SPDX-License-Identifier: Apache-2.0
"""Ranks on one CPU host that talk over its loopback interface, as gloo's do in tests.

Each rank is a place of its own with a link to the host's memory; what all ranks together can copy
is a matter of cores, and of the profile (`railweave.fabric.host_profiles`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from railweave.fabric.fields import Delay, FileModel, Rate
from railweave.fabric.graph import DeviceKind, Fabric, FabricBuilder, LinkModel
from railweave.topologies.spec import TopologyModel, topology

__all__ = ["LoopbackHost"]


class LoopbackLink(FileModel):
    """What joins a rank to the memory of its host."""

    rate: Annotated[Rate, Field(ge=1)] = Field(description="Of one rank, one direction")
    delay: Delay = Field(0, description="To the memory")


@topology("loopback-host")
class LoopbackHost(TopologyModel):
    """Processes on one CPU host, joined by its loopback interface."""

    kind: Literal["loopback-host"]
    ranks: Annotated[int, Field(ge=1, le=4096)] = Field(description="Processes")
    loopback: LoopbackLink

    def build(self, name: str, *, phy_ps: int) -> Fabric:
        """Build the fabric: ``h0/gpu0`` ... are the ranks, ``h0/cpu0`` is the host's memory."""
        build = FabricBuilder(name)
        host = build.add_host("h0")
        ranks = [
            build.add_device(f"h0/gpu{i}", DeviceKind.GPU, host=host, index=i)
            for i in range(self.ranks)
        ]
        memory = build.add_device("h0/cpu0", DeviceKind.CPU, host=host, index=0)
        for rank in ranks:
            build.add_cable(
                rank,
                memory,
                rate_bps=self.loopback.rate,
                delay_ps=self.loopback.delay,
                model=LinkModel.PCIE,
                tier="pcie",
            )
        return build.finish(kind=self.kind)
