# SPDX-License-Identifier: Apache-2.0
"""What a file says of the machines it was measured on, as evidence in words.

Only the probe's files say much (its ``hosts``, ``software`` and rows of messages); nccl-tests' JSON
has the variables, ``ib_write_bw`` its settings. A method returns nothing where nothing is said.
"""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.tools.measured.data import DataSet

__all__ = ["Facts"]

_UNEVEN: Final = 0.75  # of the median: a rail or pair below it shares its way with another
_BINDING: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE")


class Facts:
    """The facts of a data set.

    Parameters
    ----------
    data
        The set.
    """

    def __init__(self, data: DataSet) -> None:
        self._facts = data.facts
        self._hosts: Sequence[Mapping[str, Any]] = data.facts.get("hosts") or ()
        self._rows: Sequence[Mapping[str, Any]] = data.facts.get("rows") or ()
        software = data.facts.get("software") or {}
        self._variables: Mapping[str, Any] = (
            software.get("variables") or data.facts.get("variables") or {}
        )

    def variable(self, name: str, values: Sequence[str]) -> str:
        """Say that a variable has one of some values."""
        value = str(self._variables.get(name, ""))
        known = [one.lower() for one in values]
        return f"{name}={value}" if value.lower() in known else ""

    def bound(self) -> str:
        """Say which variables bind NCCL's choice."""
        return ", ".join(f"{k}={self._variables[k]}" for k in _BINDING if k in self._variables)

    def ring_only(self) -> str:
        """Say that only rings are allowed."""
        value = str(self._variables.get("NCCL_ALGO", ""))
        return f"NCCL_ALGO={value}" if value and "nvls" not in value.lower() else ""

    def _gpus(self) -> list[tuple[str, Mapping[str, str]]]:
        return [
            (f"GPU {k} of {host.get('hostname', host.get('node', '?'))}", gpu)
            for host in self._hosts
            for k, gpu in enumerate(host.get("gpus", ()))
        ]

    def clocks(self) -> str:
        """Say which GPU is slowed down: the power cap, heat or hardware slowdown bits of NVML.

        The bits are those of ``nvmlClocksEventReasons``: 0x4 power cap, 0x8 hardware slowdown,
        0x20 thermal, 0x40 hardware thermal, 0x80 power brake.
        """
        for name, gpu in self._gpus():
            reasons = gpu.get("clocks_throttle_reasons.active", "")
            active = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
            if active & 0xEC:
                return f"{name} is slowed down, reasons {reasons}"
        return ""

    def pcie(self) -> str:
        """Say which GPU has a link below what it could have."""
        for name, gpu in self._gpus():
            now, most = gpu.get("pcie.link.gen.current", ""), gpu.get("pcie.link.gen.max", "")
            width = gpu.get("pcie.link.width.current", "")
            if now.isdigit() and most.isdigit() and int(now) < int(most):
                return f"{name} has PCIe Gen{now} of Gen{most}"
            if width.isdigit() and int(width) < 16:
                return f"{name} has {width} of 16 PCIe lanes"
        return ""

    def nics(self, expected: int) -> str:
        """Say which RDMA port is down, or how many a host lacks."""
        for host in self._hosts:
            ports = [nic for nic in host.get("nics", ()) if "link_layer" in nic]
            name = host.get("hostname", host.get("node", "?"))
            for port in ports:
                if port.get("state") and "ACTIVE" not in str(port["state"]).upper():
                    return f"{port['name']} of {name} is {port['state']}"
            if ports and len(ports) < expected:
                return f"{name} shows {len(ports)} of {expected} ports"
        return ""

    def no_direct(self) -> str:
        """Say that NICs cannot reach GPU memory."""
        told = self.variable("NCCL_NET_GDR_LEVEL", ("LOC", "0")) or self.variable(
            "NCCL_NET_GDR_DISABLE", ("1",)
        )
        if told:
            return told
        for host in self._hosts:
            rdma = any("link_layer" in nic for nic in host.get("nics", ()))
            if rdma and host.get("gpus") and not host.get("gpu_direct_modules"):
                return f"no nvidia_peermem on {host.get('hostname', '?')} (dma-buf may stand in)"
        return ""

    def no_nvlink(self) -> str:
        """Say that the matrix of ``nvidia-smi topo -m`` shows no NVLink."""
        for host in self._hosts:
            matrix = str(host.get("topology_matrix", ""))
            if "GPU1" in matrix and not re.search(r"\bNV\d+\b", matrix):
                return f"nvidia-smi topo -m of {host.get('hostname', '?')} shows no NVLink"
        return ""

    def uneven(self) -> str:
        """Say which rail, or which pair of ranks, is slower than the others."""
        for row in self._rows:
            rates = [float(rate) for rate in row.get("rail_GBps", ())]
            if row["part"] == "rails" and row.get("shift") == 0 and len(rates) > 1:
                worst = min(range(len(rates)), key=rates.__getitem__)
                if rates[worst] < _UNEVEN * median(rates):
                    return f"rail {worst} has {rates[worst]:.3g} GB/s, others {median(rates):.3g}"
        pairs = [r for r in self._rows if r["part"] == "pairs" and r.get("kind") == "bandwidth"]
        across = [row for row in pairs if self._apart(row)]
        if len(across) > 2:
            middle = median(float(row["algbw_GBps"]) for row in across)
            slow = min(across, key=lambda row: float(row["algbw_GBps"]))
            if float(slow["algbw_GBps"]) < _UNEVEN * middle:
                rate = float(slow["algbw_GBps"])
                return f"ranks {slow['src']} to {slow['dst']}: {rate:.3g} GB/s, others {middle:.3g}"
        return ""

    def _apart(self, row: Mapping[str, Any]) -> bool:
        """Tell whether the two ranks of a row are on different hosts."""
        node = {one["rank"]: one["node"] for one in self._facts.get("ranks") or ()}
        return node.get(row["src"]) != node.get(row["dst"])

    def mtu(self) -> int:
        """Return the MTU of a test of perftest, 0 where it is not said."""
        found = re.match(r"\d+", str(self._facts.get("mtu", "")))
        return int(found[0]) if found else 0

    def queue_pairs(self) -> int:
        """Return the number of queue pairs of a test of perftest, 0 where it is not said."""
        found = re.match(r"\d+", str(self._facts.get("number of qps", "")))
        return int(found[0]) if found else 0
