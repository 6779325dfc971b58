# SPDX-License-Identifier: Apache-2.0
"""NCCL's own cost model, by which it chooses algorithm and protocol.

NCCL estimates ``latency + bytes / bandwidth`` for each algorithm and protocol and takes the least.
Its constants are for choosing: they do not predict times (the first step of a ring takes it 6.6 us
where 4.6 are measured), which is what `railweave.collectives.predict` is for.

Source of every constant here: NVIDIA/nccl v2.30.7, src/graph/tuning.cc (``baseLat``, ``hwLat``,
``llMaxBws``, ``perChMaxTreeBws``, ``perChMaxNVLSTreeBws``, ``treeCorrectionFactor`` and
``ncclTopoTuneModel``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from railweave.collectives.operations import canonical_op

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALGORITHMS", "Box", "candidates", "estimate_us"]

ALGORITHMS: Final = ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "Simple")


def _by_protocol(*values: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(_PROTOCOLS, values, strict=True)))


_NONE: Final = _by_protocol(0, 0, 0)
_BASE_US: Final = MappingProxyType(
    {"Tree": _by_protocol(6.8, 14, 8.4), "Ring": _by_protocol(6.6, 14, 8.4),
     "PAT": _by_protocol(8, 8, 8)}
)  # fmt: skip
_HOP_US: Final = MappingProxyType(
    {
        "nvlink": {"Tree": _by_protocol(0.6, 1.25, 4.0), "Ring": _by_protocol(0.6, 1.9, 3.4),
                   "NVLS": _by_protocol(25, 25, 25), "NVLSTree": _by_protocol(25, 25, 25),
                   "CollNetDirect": _by_protocol(3.7, 3.7, 3.7),
                   "CollNetChain": _by_protocol(2.8, 2.8, 2.8)},
        "pcie": {"Tree": _by_protocol(1.0, 1.9, 4.0), "Ring": _by_protocol(1.0, 2.5, 5.7),
                 "CollNetDirect": _by_protocol(3.7, 3.7, 3.7),
                 "CollNetChain": _by_protocol(2.8, 2.8, 2.8)},
        "network": {"Tree": _by_protocol(5.0, 8.5, 14), "Ring": _by_protocol(2.7, 4.0, 14),
                    "NVLS": _by_protocol(18, 18, 18), "NVLSTree": _by_protocol(20.9, 20.9, 20.9),
                    "CollNetDirect": _by_protocol(31, 31, 31),
                    "CollNetChain": _by_protocol(30, 30, 30), "PAT": _by_protocol(14, 14, 14)},
    }
)  # fmt: skip
# Most GB/s with LL on one, two and four or more nodes; of trees per channel.
_LL_CAP: Final = MappingProxyType(
    {"volta": (39.0, 39.0, 20.4), "turing": (39.0, 39.0, 20.4), "ampere": (87.7, 22.5, 19.0),
     "ada": (87.7, 22.5, 19.0), "hopper": (141.0, 45.0, 35.0), "blackwell": (282.0, 90.0, 70.0)}
)  # fmt: skip
_TREE_CAP: Final = MappingProxyType(
    {"volta": (24.0, 23.6, 17.8), "turing": (24.0, 23.6, 17.8), "ampere": (24.0, 23.6, 17.8),
     "ada": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0), "blackwell": (70.0, 42.8, 24.0)}
)  # fmt: skip
_NVLS_TREE_CAP: Final = MappingProxyType(
    {"hopper": (inf, 57.7, 45.5), "blackwell": (inf, 96.0, 80.0)}
)
_NVLS_EFFICIENCY: Final = MappingProxyType({"hopper": 0.85, "blackwell": 0.74})
_CHANNELS: Final = 16  # of a graph on NVSwitch, and of NVLS at most; rings over the network have 16
# Share of its bandwidth that a tree reaches, for 64 B << i bytes.
_TREE_CORRECTION: Final = MappingProxyType(
    {
        "LL": (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
               0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
        "LL128": (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
                  0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0, 1.0),
        "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
                   0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9, 0.9),
    }
)  # fmt: skip
_NET_OVERHEAD_US: Final = 1.0  # on Intel hosts; 2 on AMD; three times that with Simple
_LL128_SHARE: Final = 0.92


@dataclass(frozen=True, kw_only=True)
class Box:
    """What NCCL knows of the machines when it chooses.

    Parameters
    ----------
    architecture, interconnect
        Of the GPUs and of the links between those of a node, as in a device profile.
    nodes, gpus_per_node
        Their numbers.
    link_GBps
        Rate of a GPU's links in a node, one way.
    nic_GBps
        Rate of all NICs of a node together.
    nvls, reduction
        Whether NVSwitches, and whether network switches, reduce.
    nvls_least_ranks
        Fewest GPUs of a node for which NVLS is considered.
    """

    architecture: str
    interconnect: str
    nodes: int
    gpus_per_node: int
    link_GBps: float
    nic_GBps: float = 0.0
    nvls: bool = False
    reduction: bool = False
    nvls_least_ranks: int = 3

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node


def candidates(op: str, box: Box) -> tuple[tuple[str, str], ...]:
    """Return the algorithms and protocols that NCCL may choose from.

    Examples
    --------
    >>> box = Box(architecture="ampere", interconnect="nvlink", nodes=1, gpus_per_node=8,
    ...           link_GBps=240)
    >>> candidates("broadcast", box)
    (('Ring', 'LL'), ('Ring', 'LL128'), ('Ring', 'Simple'))
    """
    op, several = canonical_op(op), box.nodes > 1
    flagged = ("LL", "LL128", "Simple") if box.interconnect == "nvlink" else ("LL", "Simple")
    found = [("Ring", protocol) for protocol in flagged]
    nvls = box.nvls and box.gpus_per_node >= box.nvls_least_ranks
    if op == "all_reduce":
        found += [("Tree", protocol) for protocol in flagged]
        if nvls:
            found.append(("NVLSTree" if several else "NVLS", "Simple"))
        if box.reduction and several:
            direct = box.interconnect == "nvlink" and box.gpus_per_node > 1
            found.append(("CollNetDirect" if direct else "CollNetChain", "Simple"))
    elif op in ("all_gather", "reduce_scatter"):
        if nvls and not several:
            found.append(("NVLS", "Simple"))
        if several and box.gpus_per_node == 1:
            found.append(("PAT", "Simple"))
    return tuple(found)


def estimate_us(op: str, algorithm: str, protocol: str, *, size_bytes: int, box: Box) -> float:
    """Return the time in microseconds that NCCL expects.

    Examples
    --------
    >>> box = Box(architecture="hopper", interconnect="nvlink", nodes=1, gpus_per_node=8,
    ...           link_GBps=370.8, nvls=True)
    >>> [round(estimate_us("all_reduce", a, p, size_bytes=2**21, box=box), 1)
    ...  for a, p in (("Ring", "LL"), ("NVLS", "Simple"))]
    [41.0, 32.5]
    """
    op = canonical_op(op)
    rate = _rate_GBps(op, algorithm, protocol, box)
    latency = _latency_us(op, algorithm, protocol, box)
    if algorithm == "Tree":
        table = _TREE_CORRECTION[protocol]
        at = (size_bytes >> 6).bit_length() - 1
        rate *= table[at] if 0 <= at < len(table) else 1.0
    if (algorithm, protocol, op) == ("Ring", "Simple", "all_reduce") and box.nodes > 1:
        per_rank = size_bytes / (_CHANNELS * box.ranks)
        latency *= 1.4 if per_rank >= 64 else 1.0
    return latency + size_bytes / (rate * 1e3)


def _column(nodes: int) -> int:
    return 0 if nodes == 1 else 1 if nodes == 2 else 2


def _rate_GBps(op: str, algorithm: str, protocol: str, box: Box) -> float:
    """Return bytes of the buffer per second that NCCL counts on, in GB/s."""
    column, ranks = _column(box.nodes), box.ranks
    ring = box.link_GBps if box.nodes == 1 else min(box.link_GBps, box.nic_GBps)
    if box.gpus_per_node == 1 and box.nodes > 1:
        ring = box.nic_GBps
    steps = _steps(op, ranks)
    if algorithm == "Ring":
        rate = {
            "LL": min(ring / 2, _LL_CAP[box.architecture][column]),
            "LL128": ring * _LL128_SHARE,
            "Simple": ring,
        }[protocol]
        return rate * ranks / steps
    if algorithm == "Tree":
        rate = min(ring * 0.92, _CHANNELS * _TREE_CAP[box.architecture][column])
        if protocol == "LL":
            rate = min(rate / 3.8, _LL_CAP[box.architecture][column])
        elif protocol == "LL128":
            rate *= 7 / 9 if box.nodes == 1 else 120 / 128
        return rate / 2
    efficiency = _NVLS_EFFICIENCY.get(box.architecture, 0.74)
    inside = box.link_GBps * efficiency
    if algorithm == "NVLS":
        if op != "all_reduce":
            return inside
        alone = inside * box.gpus_per_node / (box.gpus_per_node + 1)
        return alone if box.nodes == 1 else min(alone, box.nic_GBps * efficiency)
    if algorithm == "NVLSTree":
        cap = _CHANNELS * _NVLS_TREE_CAP.get(box.architecture, (inf, inf, inf))[column]
        across = box.nic_GBps / (1 if box.nodes <= 2 else 2)
        return min(box.link_GBps, across, cap) * 5 / 6
    if algorithm == "PAT":
        return 0.75 * box.nic_GBps * ranks / max(steps, 1)
    return min(box.link_GBps, box.nic_GBps) * (0.75 if algorithm == "CollNetChain" else 0.9) / 2


def _steps(op: str, ranks: int) -> int:
    if op == "all_reduce":
        return max(2 * (ranks - 1), 1)
    return max(ranks - 1, 1) if op in ("all_gather", "reduce_scatter") else max(ranks, 1)


def _latency_us(op: str, algorithm: str, protocol: str, box: Box) -> float:
    base = _BASE_US.get(algorithm, _NONE)[protocol]
    local = _HOP_US[box.interconnect].get(algorithm, _HOP_US["nvlink"].get(algorithm, _NONE))
    across = _HOP_US["network"][algorithm][protocol] if box.nodes > 1 else 0.0
    inside, per_node = local[protocol], box.gpus_per_node
    levels = int(log2(box.nodes))
    if algorithm == "Ring":
        if op in ("broadcast", "reduce"):
            return base + (across or inside)
        steps = _steps(op, box.ranks)
        over = (box.nodes - 1) * (2 if op == "all_reduce" else 1)
        if box.nodes > 1:
            inside = max(inside, _NET_OVERHEAD_US * (3 if protocol == "Simple" else 1))
        return base + (steps - over) * inside + over * across
    if algorithm == "Tree":
        return base + 2 * ((per_node - 1) * inside + levels * across)
    if algorithm == "NVLS":
        return inside + across
    if algorithm == "NVLSTree":
        return inside + 2 * levels * across
    if algorithm == "PAT":
        return base + levels * across / 3.5 + 2.8 * box.ranks
    if algorithm == "CollNetDirect":
        return 2 * (min(1, per_node - 1) * inside + (per_node - 1) * 0.4) + across
    return 2 * (per_node - 1) * inside + across
