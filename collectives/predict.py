# SPDX-License-Identifier: Apache-2.0
"""Predict what NCCL takes for an operation on known hardware, without a fabric.

The interface, which others rely on::

    profile = find_profile("h100")              # railweave.fabric.profiles; or load_profile(PATH)
    network = find_network("infiniband-400g")   # None within one NVLink or PCIe domain
    predict(
        profile, "all_reduce", size_bytes=2**30, nodes=2, gpus_per_node=8, network=network,
        launch="nccl-tests",                # one of LAUNCH_MODES
        algorithm="auto", protocol="auto",  # or names as NCCL has them: Ring, Tree, NVLS, ...
        nics_per_node=8,                    # None: a NIC per GPU
        nic_rate_bps=400 * 10**9,           # None: that of the network profile
    ) -> Prediction(time_s, algorithm, protocol, bound_s, parts)

``bound_s`` is what the bytes alone take on the wire, at the full rate of links and NICs; ``parts``
names what the time is made of (``launch``, ``steps``, ``bytes``, ``copy``, ...), in seconds.

The model is Hockney's, with the constants of a profile::

    launch + steps * latency + bytes / (efficiency * rate) * (1 + (ramp / bytes)**w)

The last factor says how a link comes up to its rate: short messages leave channels idle. Counts of
steps and bytes are those of the schedules (`railweave.collectives.traffic`), so that an engine that
executes a schedule under the same profile takes the same time on an idle fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from railweave.collectives.choice import Choice, choose
from railweave.collectives.nccl_model import Box
from railweave.collectives.operations import canonical_op
from railweave.collectives.traffic import Traffic, traffic_of
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.profiles import DeviceProfile, NetworkProfile

__all__ = ["PAYLOAD", "RAMP_EXPONENT", "Prediction", "box_of", "predict", "slowness"]

PAYLOAD: Final = MappingProxyType({"LL": 1 / 2, "LL128": 120 / 128, "Simple": 1.0})
"""Payload of what a protocol moves: LL has a flag of 4 bytes for each 4 (NCCL src/include/device.h,
``ncclLLFifoLine``), LL128 moves 120 of 128 bytes (``NCCL_LL128_DATAELEMS``)."""

RAMP_EXPONENT: Final = 0.75
"""How the time over the full rate falls with the bytes; fitted once over all boxes together."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted time.

    Parameters
    ----------
    time_s, bound_s
        Predicted time, and the least that the bytes need on the wire.
    algorithm, protocol
        What was taken, as NCCL names them.
    parts
        Seconds by what they are for; their sum is ``time_s``.
    """

    time_s: float
    algorithm: str
    protocol: str
    bound_s: float
    parts: Mapping[str, float]


def slowness(moved: float, ramp_bytes: float) -> float:
    """Return the time of a message over that at the full rate.

    Examples
    --------
    >>> slowness(1e6, 1e6), slowness(1e9, 0)
    (2.0, 1.0)
    """
    return 1 + (ramp_bytes / moved) ** RAMP_EXPONENT if moved > 0 else 1.0


def box_of(
    profile: DeviceProfile,
    *,
    nodes: int,
    gpus_per_node: int,
    network: NetworkProfile | None = None,
    nics_per_node: int | None = None,
    nic_rate_bps: int | None = None,
) -> Box:
    """Return what NCCL would know of these machines."""
    nvls = profile.nvls
    rate = nic_rate_bps or (network.rate_bps if network else 0)
    return Box(
        architecture=profile.architecture,
        interconnect=profile.interconnect,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        link_GBps=profile.link_bps(gpus_per_node) / 8e9,
        nic_GBps=(gpus_per_node if nics_per_node is None else nics_per_node) * rate / 8e9,
        nvls=nvls is not None,
        reduction=bool(network and network.reduction),
        nvls_least_ranks=nvls.least_ranks if nvls else 2,
    )


def predict(
    profile: DeviceProfile,
    op: str,
    *,
    size_bytes: int,
    nodes: int = 1,
    gpus_per_node: int,
    network: NetworkProfile | None = None,
    launch: str = "nccl-tests",
    algorithm: str = "auto",
    protocol: str = "auto",
    nics_per_node: int | None = None,
    nic_rate_bps: int | None = None,
) -> Prediction:
    """Predict the time of one operation; see the module for the parameters.

    GPUs of several nodes that share one NVLink domain count as one node.

    Raises
    ------
    InputError
        A name is unknown or a number impossible, or there are several nodes and no network.

    Examples
    --------
    >>> from railweave.fabric.profiles import find_profile
    >>> found = predict(find_profile("h100"), "all_reduce", size_bytes=2**33, gpus_per_node=8)
    >>> found.algorithm, found.protocol, abs(2**33 / found.time_s * 1.75 / 1e9 - 477) < 12
    ('NVLS', 'Simple', True)
    """
    op = canonical_op(op)
    for name, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if value < 1:
            raise InputError(f"{value} is not possible", field=name, expected="1 or more")
    if size_bytes < 0:
        raise InputError(f"{size_bytes} is not a size", field="size_bytes", expected="0 or more")
    if 1 < nodes * gpus_per_node <= profile.domain and nodes > 1 and network is None:
        nodes, gpus_per_node = 1, nodes * gpus_per_node
    if nodes > 1 and network is None:
        raise InputError(
            f"{nodes} nodes of {gpus_per_node} GPUs are more than the {profile.domain} that the "
            f"links of {profile.name} join",
            field="network",
            expected="the profile of the network between them",
        )
    box = box_of(
        profile,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        network=network,
        nics_per_node=nics_per_node,
        nic_rate_bps=nic_rate_bps,
    )
    chosen = choose(op, size_bytes=size_bytes, box=box, algorithm=algorithm, protocol=protocol)
    counts = traffic_of(
        op, chosen.algorithm, size_bytes=size_bytes, nodes=nodes, gpus_per_node=gpus_per_node
    )
    parts = _parts(profile, network, chosen, counts, box)
    parts["launch"] = profile.launch(launch) / PS_PER_S
    wire = [counts.link_bytes / (box.link_GBps * 1e9)]
    if nodes > 1:
        wire.append(counts.node_bytes / (box.nic_GBps * 1e9))
    return Prediction(
        time_s=sum(parts.values()),
        algorithm=chosen.algorithm,
        protocol=chosen.protocol,
        bound_s=max(wire),
        parts=MappingProxyType(parts),
    )


def _parts(
    profile: DeviceProfile,
    network: NetworkProfile | None,
    chosen: Choice,
    counts: Traffic,
    box: Box,
) -> dict[str, float]:
    """Return the parts of a time beside the launch, in seconds."""
    protocol, payload = chosen.protocol, PAYLOAD[chosen.protocol]
    nvls = profile.nvls
    moved = counts.link_bytes
    if chosen.algorithm in ("NVLS", "NVLSTree") and nvls is not None:
        local_ps, share, ramp = nvls.latency_ps, nvls.efficiency, nvls.ramp_bytes
    elif chosen.algorithm == "P2P":
        local_ps, share = profile.p2p_ps[protocol], profile.efficiency["p2p"]
        ramp, payload = profile.ramp_bytes["p2p"], 1.0
    else:
        local_ps = counts.steps * profile.step_ps[protocol]
        share = profile.efficiency[protocol]
        ramp = profile.ramp_bytes["Simple"] if protocol == "Simple" else 0
    inside = moved / (box.link_GBps * 1e9 * share * payload) * slowness(moved, ramp)
    parts = {"steps": local_ps / PS_PER_S}
    across = 0.0
    if network is not None and box.nodes > 1:
        parts["network"] = (
            network.base_ps + counts.net_steps * network.step_ps[protocol]
        ) / PS_PER_S
        rate_Bps = box.nic_GBps * 1e9
        each = counts.node_bytes / (rate_Bps / (network.rate_bps / 8))  # of a NIC
        across = counts.node_bytes / (rate_Bps * network.efficiency * PAYLOAD[protocol])
        across *= slowness(each, network.ramp_bytes if protocol == "Simple" else 0)
    parts["bytes"] = max(inside, across)
    parts["copy"] = counts.copy_bytes / (profile.copy_bps / 8)
    return parts
