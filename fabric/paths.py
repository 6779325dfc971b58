# SPDX-License-Identifier: Apache-2.0
"""Routed paths with what they cost: latency, frames, and the links that can limit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._fluid_layout import FIRST, LATENCY, PATH_F, PATH_I, PER_BYTE
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.network import Framing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.routing import PathSet

__all__ = ["PathTable", "limiting_links"]

_PS = 8e12  # picoseconds per second times bits per byte
_CUT_THROUGH_HEADER_BYTES = 128  # read before a cut-through switch forwards (assumption)


def limiting_links(fabric: Fabric, payload_share: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which links can ever limit a flow, bool (links,).

    At a device with exactly two cables whatever enters by one leaves by the other, so of the two
    links in series only the narrower can limit. Leaving the wider out of the rate computation
    changes no rate. At a NIC only its host side is left out: flows may start and end there.

    Parameters
    ----------
    payload_share
        float64 (links,): link bits per wire bit of a flow that crosses it (1 on the network).
    """
    m = fabric.n_links
    need = fabric.link_rate_bps / payload_share  # wire bit/s that would fill the link
    up = fabric.link_up
    degree = np.bincount(fabric.link_src[up], minlength=fabric.n_devices)
    transit = np.isin(
        fabric.kind, (DeviceKind.NIC, DeviceKind.PCIE_SWITCH, DeviceKind.SWITCH)
    ) & (degree == 2)
    limiting = np.ones(m, np.bool_)
    out = np.flatnonzero(up & transit[fabric.link_src])
    out = out[np.argsort(fabric.link_src[out], kind="stable")]
    first, second = out[0::2], out[1::2]
    # first and second leave the same device; first ^ 1 enters it in series with second.
    for entering, leaving in ((first ^ 1, second), (second ^ 1, first)):
        wider = (need[entering] > need[leaving]) | (
            (need[entering] == need[leaving]) & (entering < leaving)
        )
        at_nic = fabric.kind[fabric.link_dst[entering]] == DeviceKind.NIC
        inside = ~fabric.link_network
        limiting[entering[wider & (~at_nic | inside[entering])]] = False
        limiting[leaving[~wider & (~at_nic | inside[leaving])]] = False
    return limiting


def _put(array: NDArray[Any], at: int, values: NDArray[Any]) -> NDArray[Any]:
    """Write ``values`` from row ``at`` on, in a larger copy where there is no room."""
    end = at + len(values)
    if end > len(array):
        larger = np.empty((max(end, 2 * len(array)), *array.shape[1:]), array.dtype)
        larger[:at] = array[:at]
        array = larger
    array[at:end] = values
    return array


class PathTable:
    """Interned paths of one fabric; grows, and never renumbers.

    The public arrays are indexed by path number ``p`` and valid below ``len(table)``:
    ``solve_ptr, solve_link, solve_share`` (CSR: the links that can limit and the share of a wire
    bit that each carries), ``cost_f`` and ``cost_i`` (columns of `_fluid_layout`: PATH_F, PATH_I),
    ``framing``, ``wire_tau`` and ``payload_tau`` (ps per byte of the narrowest network link, and
    of the narrowest link inside a host).
    """

    def __init__(self, fabric: Fabric, settings: NetworkSettings) -> None:
        self.fabric = fabric
        self.settings = settings
        inside = ~fabric.link_network
        framed = Framing.INFINIBAND if self._infiniband().any() else Framing.ETHERNET
        self._efficiency = settings.efficiency(framed)
        self._payload_share = np.where(inside, self._efficiency, 1.0)
        self._limiting = limiting_links(fabric, self._payload_share)
        self._n = 0
        self.longest = 1  # most limiting links on one path
        self.ptr = np.zeros(1, np.int64)
        self.link = np.empty(0, np.int32)
        self.share = np.empty(0, np.float64)
        self.solve_ptr = np.zeros(1, np.int64)
        self.solve_link = np.empty(0, np.int32)
        self.solve_share = np.empty(0, np.float64)
        self.cost_f = np.empty((0, PATH_F), np.float64)
        self.cost_i = np.empty((0, PATH_I), np.int64)
        self.framing = np.empty(0, np.int8)
        self.wire_tau = np.empty(0, np.float64)
        self.payload_tau = np.empty(0, np.float64)

    def __len__(self) -> int:
        return self._n

    def _infiniband(self) -> NDArray[np.bool_]:
        return np.asarray(self.fabric.link_model == LinkModel.INFINIBAND)

    def ack_share(self) -> NDArray[np.float64]:
        """Acknowledgement bits on a link's other direction per data bit, float64 (links,)."""
        ethernet = self.settings.ack_share(Framing.ETHERNET)
        infiniband = self.settings.ack_share(Framing.INFINIBAND)
        share = np.where(self._infiniband(), infiniband, ethernet)
        return np.where(self.fabric.link_network, share, 0.0)

    def limiting(self, link: int) -> bool:
        """Whether a link takes part in the rate computation."""
        return bool(self._limiting[link])

    def links_of(self, path: int) -> NDArray[np.int32]:
        """Every link of a path, in order."""
        return self.link[self.ptr[path] : self.ptr[path + 1]]

    def tail_ps(self, path: NDArray[np.int32], wire: NDArray[np.int64]) -> NDArray[np.int64]:
        """Time from the last bit on the narrowest link to the end of the message, int64."""
        first = np.minimum(wire, self.cost_f[path, FIRST])
        stored = np.rint(first * self.cost_f[path, PER_BYTE]).astype(np.int64)
        return np.asarray(self.cost_i[path, LATENCY] + stored)

    def bound_ps(
        self, path: NDArray[np.int32], wire: NDArray[np.int64], payload: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Time of a message alone on an empty fabric, int64: latency + narrowest serialisation."""
        longest = np.maximum(wire * self.wire_tau[path], payload * self.payload_tau[path])
        serial = np.floor(longest * (1 - 2e-16)).astype(np.int64)
        near = np.rint(longest)
        exact = np.abs(longest - near) < 1e-3
        return np.asarray(
            self.tail_ps(path, wire) + np.where(exact, near.astype(np.int64), serial)
        )

    def wire_bytes(
        self, path: NDArray[np.int32], payload: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Bytes of each message on the network links of its path (payload where it has none)."""
        out = payload.copy()
        framing = self.framing[path]
        packets = np.maximum(1, -(-payload // self.settings.mtu_bytes))
        for kind in (Framing.ETHERNET, Framing.INFINIBAND):
            padded = payload
            if self.settings.frame_overhead_bytes is None:
                padded = -(-payload // 4) * 4
            wire = (
                padded
                + packets * self.settings.overhead_bytes(kind)
                + self.settings.first_overhead_bytes(kind)
            )
            out = np.where(framing == kind, wire, out)
        return out

    def intern(self, found: PathSet) -> NDArray[np.int32]:
        """Add paths and return their numbers, int32 (paths,); an empty path gets -1."""
        lengths = np.diff(found.ptr)
        numbers = np.full(len(lengths), -1, np.int32)
        filled = np.flatnonzero(lengths > 0)
        if not len(filled):
            return numbers
        numbers[filled] = np.arange(self._n, self._n + len(filled), dtype=np.int32)
        ptr = np.concatenate(([0], np.cumsum(lengths[filled]))).astype(np.int64)
        link, share = found.links.astype(np.int32), found.share
        owner = np.repeat(np.arange(len(filled)), lengths[filled])
        self._append_costs(ptr[:-1], link, share)
        keep = self._limiting[link]
        on_network = np.logical_or.reduceat(self.fabric.link_network[link], ptr[:-1])
        factor = np.where(on_network[owner], self._payload_share[link], 1.0)
        kept = np.bincount(owner[keep], minlength=len(filled))
        self.longest = max(self.longest, int(kept.max()))
        n, k, kk = self._n, int(self.ptr[self._n]), int(self.solve_ptr[self._n])
        self.ptr = _put(self.ptr, n + 1, k + ptr[1:])
        self.link = _put(self.link, k, link)
        self.share = _put(self.share, k, share)
        self.solve_ptr = _put(self.solve_ptr, n + 1, kk + np.cumsum(kept))
        self.solve_link = _put(self.solve_link, kk, link[keep])
        self.solve_share = _put(self.solve_share, kk, (share * factor)[keep])
        self._n += len(filled)
        return numbers

    def _append_costs(
        self, starts: NDArray[np.int64], link: NDArray[np.int32], share: NDArray[np.float64]
    ) -> None:
        """Work out latency, framing and narrowest rates of new, non-empty paths."""
        fabric, settings = self.fabric, self.settings
        network = fabric.link_network[link]
        tau = _PS / fabric.link_rate_bps[link]
        infiniband = self._infiniband()[link]
        crosses = np.logical_or.reduceat(network, starts)
        is_ib = np.logical_or.reduceat(infiniband, starts)
        if np.any(is_ib & np.logical_or.reduceat(network & ~infiniband, starts)):
            raise InputError("a path mixes InfiniBand and Ethernet links")
        framing = np.where(is_ib, Framing.INFINIBAND, np.where(crosses, Framing.ETHERNET, 0))
        into_switch = network & (fabric.kind[fabric.link_dst[link]] == DeviceKind.SWITCH)
        latency = fabric.link_delay_ps[link] + into_switch * settings.switch_latency_ps
        total = np.add.reduceat(share * latency, starts) + crosses * 2 * settings.host_latency_ps
        hop_tau = np.where(network, share * tau, 0.0)
        wire_tau = np.maximum.reduceat(hop_tau, starts)
        # Every network hop but the narrowest stores the first packet (or reads its header).
        stored = np.add.reduceat(hop_tau, starts) - np.maximum.reduceat(
            np.where(network, tau, 0.0), starts
        )
        stored = np.maximum(stored, 0.0)
        if settings.cut_through:
            total = total + stored * _CUT_THROUGH_HEADER_BYTES
            stored = np.zeros_like(stored)
        first = np.array(
            [
                settings.first_packet_bytes(settings.mtu_bytes, kind) if kind else 0
                for kind in (Framing.NONE, Framing.ETHERNET, Framing.INFINIBAND)
            ],
            np.float64,
        )[framing]
        n = self._n
        self.cost_f = _put(self.cost_f, n, np.stack((stored, first), axis=1))
        self.cost_i = _put(self.cost_i, n, np.rint(total).astype(np.int64)[:, None])
        self.framing = _put(self.framing, n, framing.astype(np.int8))
        self.wire_tau = _put(self.wire_tau, n, wire_tau)
        inner = np.maximum.reduceat(np.where(network, 0.0, share * tau), starts)
        self.payload_tau = _put(self.payload_tau, n, inner)
