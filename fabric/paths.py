# SPDX-License-Identifier: Apache-2.0
"""Routed paths with what they cost: latency, frames, and the links that can limit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric._accounting import wire_bytes
from railweave.fabric._fluid_layout import HOP, PATH, records
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
_BLOCK = 1 << 14  # paths that are worked on at a time
_CUT_THROUGH_HEADER_BYTES = 128  # read before a cut-through switch forwards (assumption)


def limiting_links(fabric: Fabric, payload_share: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which links can ever limit a flow, bool (links,).

    At a NIC or PCIe switch with exactly two cables whatever enters by one leaves by the other, so
    of the two links in series only the narrower can limit. Leaving the wider out of the rate
    computation changes no rate. At a NIC only its host side is left out: flows may start and end
    there. Links of network switches are all kept, as their rates may change during a run. Cables
    that no flow crosses (`Fabric.link_used`) do not count.

    Parameters
    ----------
    payload_share
        float64 (links,): link bits per wire bit of a flow that crosses it (1 on the network).
    """
    m = fabric.n_links
    need = fabric.link_rate_bps / payload_share  # wire bit/s that would fill the link
    used = fabric.link_used
    degree = np.bincount(fabric.link_src[used], minlength=fabric.n_devices)
    transit = np.isin(fabric.kind, (DeviceKind.NIC, DeviceKind.PCIE_SWITCH)) & (degree == 2)
    limiting = np.ones(m, np.bool_)
    out = np.flatnonzero(transit[fabric.link_src] & used)
    out = out[np.argsort(fabric.link_src[out], kind="stable")]
    first, second = out[0::2], out[1::2]
    # first and second leave the same device; first ^ 1 enters it in series with second.
    inside = ~fabric.link_network
    for entering, leaving in ((first ^ 1, second), (second ^ 1, first)):
        wider = (need[entering] > need[leaving]) | (
            (need[entering] == need[leaving]) & (entering < leaving)
        )
        at_nic = fabric.kind[fabric.link_dst[entering]] == DeviceKind.NIC
        limiting[entering[wider & (~at_nic | inside[entering])]] = False
        limiting[leaving[~wider & (~at_nic | inside[leaving])]] = False
    limiting[~fabric.link_up] = True  # it may come up, and it stops whoever crosses it till then
    return limiting


def _room(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array with ``rows`` rows, a larger copy where it has fewer."""
    if rows <= len(array):
        return array
    larger = np.empty((max(rows, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger.view(type(array))


def _put(array: NDArray[Any], at: int, values: NDArray[Any]) -> NDArray[Any]:
    """Write ``values`` from row ``at`` on, in a larger copy where there is no room."""
    array = _room(array, at + len(values))
    array[at : at + len(values)] = values
    return array


def _frame_row(settings: NetworkSettings, kind: Framing) -> tuple[int, int, int, int]:
    """How payload becomes wire bytes: padding unit, MTU, overhead of a packet and of the first."""
    padded = kind != Framing.NONE and settings.frame_overhead_bytes is None
    return (
        4 if padded else 1,
        settings.mtu_bytes,
        settings.overhead_bytes(kind),
        settings.first_overhead_bytes(kind),
    )


class PathTable:
    """Interned paths of one fabric; grows, and never renumbers.

    The public arrays are indexed by path number ``p`` and valid below ``len(table)``:
    ``ptr, link, share`` (CSR: every link and the share of the flow on it), ``routes`` and ``hops``
    (records PATH and HOP of `_fluid_layout`: latency, and the links that can limit with the share
    of a wire bit that each carries), ``framing``, and ``cost`` (float64 (paths, 5), see
    `railweave.fabric._accounting.durations`).
    """

    even = True
    """Whether what is sprayed over several links is split by ``share``, and in no other way."""

    def __init__(self, fabric: Fabric, settings: NetworkSettings) -> None:
        self.fabric = fabric
        self.settings = settings
        inside = ~fabric.link_network
        framed = Framing.INFINIBAND if self._infiniband().any() else Framing.ETHERNET
        self._efficiency = settings.efficiency(framed)
        self._payload_share = np.where(inside, self._efficiency, 1.0)
        self._limiting = limiting_links(fabric, self._payload_share)
        self._n = 0
        self._n_hops = 0
        self.longest = 1  # most limiting links on one path
        self.ptr = np.zeros(1, np.int64)
        self.link = np.empty(0, np.int32)
        self.share = np.empty(0, np.float64)
        self.routes = records(PATH, 0)
        self.hops = records(HOP, 0)
        self.framing = np.empty(0, np.int8)
        self.cost = np.empty((0, 5), np.float64)
        self._frame = np.array([_frame_row(settings, kind) for kind in Framing], np.int64)

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

    def keep(self, links: NDArray[np.bool_]) -> None:
        """Let links take part in the rate computation whatever they are in series with.

        Rates are the same with and without them, as long as no link changes; one that may change
        during a run must be kept, before any path over it is interned.

        Parameters
        ----------
        links
            bool (links,).
        """
        self._limiting |= links

    def hop_latency(self) -> tuple[NDArray[np.float64], float]:
        """Latency that each link adds to a path, float64 (links,), and that of either end, in ps.

        Without what it takes to store a packet. A path's ends count if it crosses the network.
        """
        fabric = self.fabric
        into_switch = fabric.link_network & (fabric.kind[fabric.link_dst] == DeviceKind.SWITCH)
        latency = fabric.link_delay_ps + into_switch * self.settings.switch_latency_ps
        return latency.astype(np.float64), float(self.settings.host_latency_ps)

    @property
    def nowhere(self) -> int:
        """Number of a link that is not there, and carries nothing: where `park` lets paths wait."""
        return self.fabric.n_links

    def park(self, paths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Add copies of paths on which nothing moves, and return their numbers, int32."""
        count, n, k = len(paths), self._n, int(self.ptr[self._n])
        start, end = self.ptr[paths], self.ptr[paths.astype(np.int64) + 1]
        lengths = end - start
        at = np.repeat(start - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        self.ptr = _put(self.ptr, n + 1, k + np.cumsum(lengths))
        self.link = _put(self.link, k, self.link[at])
        self.share = _put(self.share, k, self.share[at])
        self.routes = _put(self.routes, n, self.routes[paths])
        self.routes.hops[n : n + count] = self._n_hops + np.arange(count)
        self.routes.hops_end[n : n + count] = self._n_hops + 1 + np.arange(count)
        self.framing = _put(self.framing, n, self.framing[paths])
        self.cost = _put(self.cost, n, self.cost[paths])
        stop = records(HOP, count)
        stop.link, stop.share = self.nowhere, 1.0
        self.hops = _put(self.hops, self._n_hops, stop)
        self._n_hops += count
        self._n += count
        return np.arange(n, n + count, dtype=np.int32)

    def links_of(self, path: int) -> NDArray[np.int32]:
        """Every link of a path, in order."""
        return self.link[self.ptr[path] : self.ptr[path + 1]]

    def wire_bytes(self, path: NDArray[np.int32], payload: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each message on its path's network links, int64 (payload where it has none)."""
        return wire_bytes(path, payload, self.framing[: self._n], self._frame)

    def intern(self, found: PathSet) -> NDArray[np.int32]:
        """Add paths and return their numbers, int32 (paths,); an empty path gets -1."""
        lengths = np.diff(found.ptr)
        numbers = np.full(len(lengths), -1, np.int32)
        filled = np.flatnonzero(lengths > 0)
        if not len(filled):
            return numbers
        numbers[filled] = np.arange(self._n, self._n + len(filled), dtype=np.int32)
        ptr = np.concatenate(([0], np.cumsum(lengths[filled]))).astype(np.int64)
        self.reserve(len(filled), int(ptr[-1]))
        for first in range(0, len(filled), _BLOCK):  # what is worked on stays in the cache
            block = ptr[first : first + _BLOCK + 1]
            span = slice(block[0], block[-1])
            self._append(block - block[0], found.links[span], found.share[span])
        return numbers

    def reserve(self, paths: int, links: int) -> None:
        """Make room for new paths and their links in one go."""
        n, k = self._n, int(self.ptr[self._n])
        self.ptr = _room(self.ptr, n + paths + 1)
        self.link, self.share = _room(self.link, k + links), _room(self.share, k + links)
        self.hops = _room(self.hops, self._n_hops + links)
        self.routes, self.cost = _room(self.routes, n + paths), _room(self.cost, n + paths)
        self.framing = _room(self.framing, n + paths)

    def _append(
        self, ptr: NDArray[np.int64], link: NDArray[np.int32], share: NDArray[np.float64]
    ) -> None:
        """Add paths that have links, in CSR form."""
        count = len(ptr) - 1
        owner = np.repeat(np.arange(count), np.diff(ptr))
        self._append_costs(ptr[:-1], link, share)
        keep = self._limiting[link]
        on_network = np.logical_or.reduceat(self.fabric.link_network[link], ptr[:-1])
        factor = np.where(on_network[owner], self._payload_share[link], 1.0)
        kept = np.bincount(owner[keep], minlength=count)
        self.longest = max(self.longest, int(kept.max()))
        n, k, end = self._n, int(self.ptr[self._n]), self._n_hops + np.cumsum(kept)
        self.routes.hops[n : n + count] = end - kept
        self.routes.hops_end[n : n + count] = end
        self.ptr = _put(self.ptr, n + 1, k + ptr[1:])
        self.link = _put(self.link, k, link)
        self.share = _put(self.share, k, share)
        new = records(HOP, int(keep.sum()))
        new.link, new.share = link[keep], (share * factor)[keep]
        self.hops = _put(self.hops, self._n_hops, new)
        self._n_hops += len(new)
        self._n += count

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
        new = records(PATH, len(starts))
        new.per_byte, new.first, new.latency = stored, first, np.rint(total).astype(np.int64)
        self.routes = _put(self.routes, n, new)
        self.framing = _put(self.framing, n, framing.astype(np.int8))
        inner = np.maximum.reduceat(np.where(network, 0.0, share * tau), starts)
        cost = np.stack((np.rint(total), stored, first, wire_tau, inner), axis=1)
        self.cost = _put(self.cost, n, cost)
