# SPDX-License-Identifier: Apache-2.0
"""The parts of a flow's path that lie inside hosts: NVLink, PCIe, and the way to a NIC."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric import _walk
from railweave.fabric._tables import nvlink_domains
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.jit import call_for_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric._tables import Tables
    from railweave.fabric.graph import Fabric

__all__ = ["Inside", "Journeys", "pair_name"]

_Int = np.int32


@dataclass(frozen=True, eq=False)
class Journeys:
    """Flows cut in three: inside the source's host, between NICs, inside the destination's.

    Parameters
    ----------
    first, last
        int32 (n,): numbers of the stretches inside the hosts, -1: none.
    source, target
        int32 (n,): dense numbers of the NICs between which the fabric is crossed, -1: it is not.
    stretch_ptr, stretch_links
        CSR of the links of each stretch.
    stuck
        bool (n,): flows that have no way inside a host; they cross nothing here.
    """

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    stretch_ptr: NDArray[np.int32]
    stretch_links: NDArray[np.int32]
    stuck: NDArray[np.bool_]

    def stretch(self, number: int) -> tuple[int, ...]:
        """Return the links of one stretch."""
        if number < 0:
            return ()
        span = slice(self.stretch_ptr[number], self.stretch_ptr[number + 1])
        return tuple(self.stretch_links[span].tolist())


def pair_name(fabric: Fabric, src: int, dst: int) -> str:
    """Return ``from 'h0/gpu0' to 'h1/gpu0'``."""
    return f"from '{fabric.device_names[src]}' to '{fabric.device_names[dst]}'"


def _stack(*tables: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return padded tables of links under each other, as wide as the widest."""
    width = max(table.shape[1] for table in tables)
    return np.concatenate(
        [
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)
            for table in tables
        ]
    )


class Inside:
    """Finds paths inside hosts and cuts flows into `Journeys`.

    Two GPUs that NVLink joins use it, and so do a GPU and an NVSwitch; otherwise two GPUs of one
    host use PCIe if it joins them, through CPU roots and sockets where `Fabric.forwards` says so;
    all others go by their affine NICs.
    """

    def __init__(self, fabric: Fabric, tables: Tables) -> None:
        self.fabric = fabric
        self.tables = tables

    @cached_property
    def _domains(self) -> NDArray[np.int32]:
        return nvlink_domains(self.fabric)

    @cached_property
    def _gpu_number(self) -> NDArray[np.int32]:
        number = np.full(self.fabric.n_devices, -1, _Int)
        number[self.fabric.gpus] = np.arange(len(self.fabric.gpus), dtype=_Int)
        return number

    def _paths(
        self,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        wires: tuple[NDArray[np.int32], NDArray[np.int32]],
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return lengths (-1: none) and padded links of shortest paths over some links."""
        width = 8
        while True:
            length = np.empty(len(src), _Int)
            links = np.full((len(src), width), -1, _Int)
            found = np.zeros((_walk.ROOM, self.fabric.n_devices), _Int)
            call_for_work(
                32 * len(src),
                _walk.inside,
                src,
                dst,
                *wires,
                self.fabric.link_dst,
                self.tables.forwards,
                found,
                length,
                links,
            )
            longest = int(length.max(initial=0))
            if longest <= width:
                return length, links
            width = longest

    @cached_property
    def _nics(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """NICs of each GPU in CSR form: the affine one (-1: none), then those that are left over.

        A NIC that is no GPU's affine one serves a GPU whose NIC hangs on the same part of the
        host; where several do, each gets as many.
        """
        fabric, gpus = self.fabric, self.fabric.gpus
        affine = fabric.gpu_nic[gpus]
        on_part = np.full(fabric.n_devices + 1, -1, _Int)  # what a NIC hangs on; [-1]: none
        wires = np.flatnonzero(
            (fabric.link_model == LinkModel.PCIE) & (fabric.kind[fabric.link_src] == DeviceKind.NIC)
        )
        on_part[fabric.link_src[wires[::-1]]] = fabric.link_dst[wires[::-1]]
        spare = np.setdiff1d(fabric.nics, affine)
        spare = spare[np.isin(on_part[spare], on_part[affine[affine >= 0]]) & (on_part[spare] >= 0)]
        order = np.argsort(on_part[affine], kind="stable")
        parts, first, sharing = np.unique(
            on_part[affine][order], return_index=True, return_counts=True
        )
        spare = spare[np.argsort(on_part[spare], kind="stable")]
        at = np.searchsorted(parts, on_part[spare])
        begins = np.searchsorted(on_part[spare], on_part[spare])
        nth = np.arange(len(spare)) - begins
        total = np.bincount(at, minlength=len(parts))
        kept = nth < (total // sharing * sharing)[at]
        owner = order[first[at] + nth % sharing[at]][kept]
        number = np.concatenate((np.arange(len(gpus)), owner))
        by_gpu = np.argsort(number, kind="stable")
        ptr = np.zeros(len(gpus) + 1, _Int)
        np.cumsum(np.bincount(number, minlength=len(gpus)), out=ptr[1:])
        return ptr, np.concatenate((affine, spare[kept]))[by_gpu].astype(_Int)

    def _pick(self, device: NDArray[np.int32], qp: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which NIC of all GPUs' a queue pair uses: a GPU's take turns. -1 at other ends."""
        ptr, _ = self._nics
        gpu = self._gpu_number[device]
        count = np.maximum(ptr[gpu + 1] - ptr[gpu], 1)
        nth = ptr[gpu] + (qp % count.astype(np.uint64)).astype(np.int64)
        return np.where(gpu >= 0, nth, -1)

    @cached_property
    def _affine(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Paths of each GPU to its NICs, then of each from its NICs, in order of GPUs."""
        ptr, nics = self._nics
        gpus = np.repeat(self.fabric.gpus, np.diff(ptr))
        held = np.where(nics >= 0, nics, gpus).astype(_Int)
        out_length, out_links = self._paths(gpus, held, self.tables.pcie)
        back_length, back_links = self._paths(held, gpus, self.tables.pcie)
        length = np.concatenate((out_length, back_length))
        length[np.concatenate((nics, nics)) < 0] = -1
        return length, _stack(out_links, back_links)

    def ways_to_nics(self, device: int, qp: int) -> list[tuple[int, list[int], list[int]]]:
        """Return the NICs of a GPU, or the NIC itself, and the links to and from each.

        The NIC that the queue pair would take comes first.
        """
        if self.fabric.kind[device] != DeviceKind.GPU:
            return [(device, [], [])]
        ptr, nics = self._nics
        length, links = self._affine
        gpu = int(self._gpu_number[device])
        mine = np.arange(ptr[gpu], ptr[gpu + 1])
        mine = np.roll(mine, -(qp % max(len(mine), 1)))
        found = []
        for at in mine:
            back = len(nics) + at
            if nics[at] >= 0 and length[at] >= 0 and length[back] >= 0:
                out = links[at, : length[at]].tolist()
                found.append((int(nics[at]), out, links[back, : length[back]].tolist()))
        return found

    def _between_gpus(
        self, src: NDArray[np.int32], dst: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return lengths (-1: none) and padded links by NVLink or else by PCIe in one host."""
        host = self.fabric.host
        length, links = self._paths(src, dst, self.tables.nvlink)
        rest = np.flatnonzero((length < 0) & (host[src] == host[dst]))
        pcie_length, pcie_links = self._paths(src[rest], dst[rest], self.tables.pcie)
        length[rest] = pcie_length
        order = np.arange(len(src))
        order[rest] = len(src) + np.arange(len(rest))
        return length, _stack(links, pcie_links)[order]

    def _check_ends(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> None:
        fabric = self.fabric
        for end in (src, dst):
            odd = (end < 0) | (end >= fabric.n_devices)
            if odd.any():
                raise InputError(f"there is no device {int(end[np.argmax(odd)])}")
        for end in (src, dst):
            odd = (fabric.kind[end] != DeviceKind.GPU) & (fabric.kind[end] != DeviceKind.NIC)
            joined = self._domains[src] == self._domains[dst]  # NVSwitches add and multicast
            odd &= (fabric.kind[end] != DeviceKind.NVSWITCH) | ~joined
            if odd.any():
                name = fabric.device_names[end[np.argmax(odd)]]
                raise InputError(f"'{name}' cannot send or receive", expected="a GPU or a NIC")
        gpu_src, gpu_dst = (self._by_nvlink(end) for end in (src, dst))
        one_host = (fabric.host[src] == fabric.host[dst]) & (fabric.host[src] >= 0)
        stays = ((gpu_src != gpu_dst) & one_host) | (~gpu_src & (src == dst))
        if stays.any():
            i = int(np.argmax(stays))
            pair = pair_name(fabric, src[i], dst[i])
            raise InputError(f"a flow {pair} does not cross the fabric")

    def _by_nvlink(self, end: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which ends are GPUs, or NVSwitches in their stead, bool (n,)."""
        kind = self.fabric.kind[end]
        return np.asarray((kind == DeviceKind.GPU) | (kind == DeviceKind.NVSWITCH))

    def journeys(
        self, src: NDArray[np.int32], dst: NDArray[np.int32], qp: NDArray[np.uint64]
    ) -> Journeys:
        """Cut each flow into its stretches inside hosts and its part between NICs.

        Queue pairs of a GPU that has several NICs use them in turn.

        Raises
        ------
        InputError, UnreachableError
            As `Routing.routes` says.
        """
        trip = self.possible(src, dst, qp)
        if trip.stuck.any():
            i = int(np.argmax(trip.stuck))
            raise UnreachableError(
                f"no route {pair_name(self.fabric, src[i], dst[i])}: neither NVLink nor PCIe joins "
                "them, and they do not both have a NIC of their own in reach"
            )
        return trip

    def possible(
        self, src: NDArray[np.int32], dst: NDArray[np.int32], qp: NDArray[np.uint64]
    ) -> Journeys:
        """Cut flows as `journeys` does, but mark those that are stuck inside a host."""
        fabric, dense = self.fabric, self.tables.dense
        self._check_ends(src, dst)
        gpu_src, gpu_dst = (self._by_nvlink(end) for end in (src, dst))
        length, links = self._affine
        first = np.full(len(src), -1, _Int)
        last = np.full(len(src), -1, _Int)

        joined = (fabric.host[src] == fabric.host[dst]) & (fabric.host[src] >= 0)
        joined |= self._domains[src] == self._domains[dst]
        near = np.flatnonzero(joined & gpu_src & gpu_dst & (src != dst))
        if len(near):
            pairs, which = np.unique(
                src[near].astype(np.int64) * fabric.n_devices + dst[near], return_inverse=True
            )
            near_length, near_links = self._between_gpus(
                (pairs // fabric.n_devices).astype(_Int), (pairs % fabric.n_devices).astype(_Int)
            )
            number = np.where(near_length >= 0, len(length) + np.arange(len(pairs)), -1)
            first[near] = number[which]
            length = np.concatenate((length, near_length))
            links = _stack(links, near_links)

        crosses = (first < 0) & (src != dst)
        nics = self._nics[1]
        pick_src, pick_dst = self._pick(src, qp), self._pick(dst, qp)
        nic_src = np.where(gpu_src, nics[pick_src], src) if len(nics) else src
        nic_dst = np.where(gpu_dst, nics[pick_dst], dst) if len(nics) else dst
        leaving, entering = crosses & gpu_src, crosses & gpu_dst
        first[leaving] = pick_src[leaving]
        last[entering] = len(nics) + pick_dst[entering]
        ends = np.append(length, 0)  # [-1]: no stretch
        stuck = (crosses & ((ends[first] < 0) | (ends[last] < 0))) | (
            crosses & (nic_src == nic_dst)
        )
        crosses &= ~stuck
        first[stuck] = last[stuck] = -1
        kept = np.maximum(length, 0)
        return Journeys(
            first=first,
            last=last,
            source=np.where(crosses, dense[nic_src], -1).astype(_Int),
            target=np.where(crosses, dense[nic_dst], -1).astype(_Int),
            stretch_ptr=np.concatenate(([0], np.cumsum(kept))).astype(_Int),
            stretch_links=links[np.arange(links.shape[1]) < kept[:, None]],
            stuck=stuck,
        )
