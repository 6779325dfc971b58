# SPDX-License-Identifier: Apache-2.0
"""Pinned paths: device names as a person writes them become links."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric

__all__ = ["pinned_path"]


def pinned_path(fabric: Fabric, names: Sequence[str], *, src: int, dst: int) -> tuple[int, ...]:
    """Return the links that join the named devices one after another.

    A bare host at either end stands for the endpoint itself. Between two devices with several
    cables the lowest port is taken; ``leaf0:33`` after the device chooses its egress port.

    Parameters
    ----------
    fabric
        Where the devices are.
    names
        Devices from ``src`` to ``dst``: ``[h0, s1, h1]``.
    src, dst
        Device indices of the flow's endpoints.

    Raises
    ------
    InputError
        Unknown device, wrong first or last device, or two devices that no cable joins.

    Examples
    --------
    >>> from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
    >>> build = FabricBuilder("line")
    >>> ends = [build.add_device(n, DeviceKind.NIC, host=build.add_host(n[:2]))
    ...         for n in ("h0/nic0", "h1/nic0")]
    >>> s1 = build.add_device("s1", DeviceKind.SWITCH, tier=1)
    >>> for end in ends:
    ...     _ = build.add_cable(end, s1, rate_bps=10**11, delay_ps=0,
    ...                         model=LinkModel.ROCE_LOSSLESS)
    >>> line = build.finish()
    >>> [line.link_name(i) for i in pinned_path(line, ["h0", "s1", "h1"], src=0, dst=1)]
    ['h0/nic0:0>s1:0', 's1:1>h1/nic0:0']
    """
    if len(names) < 2:
        raise InputError("a path needs two devices", expected="the devices from src to dst")
    hops = [_hop(fabric, name, ends=(src, dst)) for name in names]
    for (device, _), end, name, side in (
        (hops[0], src, names[0], "begins"),
        (hops[-1], dst, names[-1], "ends"),
    ):
        if device != end:
            raise InputError(
                f"the path {side} at '{name}'", expected=f"'{fabric.device_names[end]}'"
            )
    ptr, links = fabric.out_links
    path = []
    for i, ((here, port), (there, _)) in enumerate(itertools.pairwise(hops)):
        leaving = links[ptr[here] : ptr[here + 1]]
        joining = leaving[fabric.link_dst[leaving] == there]
        if port is not None:
            joining = joining[fabric.link_src_port[joining] == port]
        if not len(joining):
            peers = dict.fromkeys(fabric.device_names[fabric.link_dst[link]] for link in leaving)
            shown = ", ".join(list(peers)[:8]) + (", ..." if len(peers) > 8 else "")
            raise InputError(
                f"no cable joins '{names[i]}' to '{names[i + 1]}'",
                expected=f"a neighbour of {fabric.device_names[here]}: {shown}",
            )
        path.append(int(joining[np.argmax(fabric.link_up[joining])]))
    return tuple(path)


def _hop(fabric: Fabric, name: str, *, ends: tuple[int, int]) -> tuple[int, int | None]:
    """Return the device that ``name`` means and the egress port it asks for."""
    for end in ends:
        host = int(fabric.host[end])
        if host >= 0 and name == fabric.host_names[host]:
            return end, None
    if name in fabric.host_names:
        nics = fabric.nics_of(name)
        if len(nics) == 1:
            return nics[0], None
    device, colon, port = name.partition(":")
    if colon and port.isascii() and port.isdigit():
        return fabric.device(device), int(port)
    return fabric.device(name), None
