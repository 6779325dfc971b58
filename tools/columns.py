# SPDX-License-Identifier: Apache-2.0
"""Columns of a drawing: the hosts of a group each, drawn one by one or collapsed into a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.graph import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["COLLAPSE_ABOVE", "Column", "columns_of", "host_groups", "host_racks", "peers_of_hosts"]

COLLAPSE_ABOVE: Final = 1024  # GPUs that a drawing shows one by one if it is not asked
_COLUMNS: Final = 64  # of collapsed groups; beyond, a column stands for several
_WORDS: Final = ("all", "none")


@dataclass(frozen=True)
class Column:
    """The hosts of one group, or of several next to each other.

    ``label`` is what the command line calls it (``3``, or the name of a leaf where the fabric
    names no groups), ``title`` what the drawing calls it; both are empty for hosts without a group
    in a drawing of all hosts. ``groups`` are the numbers of its groups, ``count`` how many columns
    of an unfolded drawing it stands for.
    """

    label: str
    title: str
    hosts: tuple[int, ...]
    groups: tuple[int, ...]
    count: int = 1
    collapsed: bool = False


def columns_of(fabric: Fabric, expand: Sequence[str] | None) -> list[Column]:
    """Divide the hosts of a fabric into columns.

    Parameters
    ----------
    fabric
        What is drawn.
    expand
        Labels of the groups to draw host by host, ``all`` or ``none``; by default all up to
        1,024 GPUs and none above.

    Raises
    ------
    InputError
        There is no group of that label.
    """
    if expand is None:
        expand = ("all" if len(fabric.gpus) <= COLLAPSE_ABOVE else "none",)
    group = host_groups(fabric)
    everybody = np.arange(len(group))
    if "all" in expand:
        return _numbered(group, everybody, named=True)
    front = _front_hosts(fabric)
    columns = _numbered(group, np.setdiff1d(everybody, front), named=False)
    if len(columns) < 2:  # no groups, or one of all hosts, which would say nothing
        columns = max(columns, _by_leaf(fabric), key=len)
    if len(front):
        columns.append(Column("front-end", "front end", tuple(front.tolist()), ()))
    labels = {column.label for column in columns}
    for asked in expand:
        if asked not in labels and asked not in _WORDS:
            shown = [column.label for column in columns]
            raise InputError(
                f"there is no group '{asked}' to expand",
                field="--expand",
                expected=f"all, none, or a group: {shown[0]} to {shown[-1]}",
                nearest=nearest_name(asked, (*_WORDS, *shown)),
            )
    closed = sum(column.label not in expand for column in columns)
    per = -(-closed // _COLUMNS)
    found: list[Column] = []
    waiting: list[Column] = []
    for column in (*columns, None):
        opened = column is None or column.label in expand
        if waiting and (opened or len(waiting) == per):
            found.append(_folded(waiting))
            waiting = []
        if column is not None and opened:
            found.append(column)
        elif column is not None:
            waiting.append(column)
    return found


def _folded(columns: Sequence[Column]) -> Column:
    """Return the one collapsed column that stands for some in a row."""
    first, last = columns[0], columns[-1]
    label, title = first.label, first.title
    if len(columns) > 1:
        label = f"{first.label}\N{EN DASH}{last.label}"
        title = f"groups {label}" if first.groups else f"hosts of {label}"
    return Column(
        label=label,
        title=title,
        hosts=tuple(host for column in columns for host in column.hosts),
        groups=tuple(group for column in columns for group in column.groups),
        count=len(columns),
        collapsed=True,
    )


def _front_hosts(fabric: Fabric) -> NDArray[np.int64]:
    """Return the hosts that stand in the front-end network alone: gateway, clients, storage."""
    own = fabric.host[~fabric.front_end & (fabric.host >= 0)]
    return np.setdiff1d(np.arange(len(fabric.host_names)), own)


def _numbered(group: NDArray[np.int64], hosts: NDArray[np.int64], *, named: bool) -> list[Column]:
    """Return a column per group of some hosts; without ``named``, none if one is of no group."""
    order = hosts[np.argsort(group[hosts], kind="stable")]
    numbers, starts = np.unique(group[order], return_index=True)
    if not len(numbers) or (numbers[0] < 0 and not named):
        return []
    parts = np.split(order, starts[1:])
    return [
        Column(
            label=str(number) if number >= 0 else "",
            title=f"group {number}" if number >= 0 else "",
            hosts=tuple(hosts.tolist()),
            groups=(number,) if number >= 0 else (),
        )
        for number, hosts in zip(numbers.tolist(), parts, strict=True)
    ]


def _by_leaf(fabric: Fabric) -> list[Column]:
    """Return a column per set of switches that hosts are cabled to, named after its first."""
    found: dict[frozenset[int], list[int]] = {}
    aside = set(_front_hosts(fabric).tolist())
    for host, peers in enumerate(peers_of_hosts(fabric)):
        if host not in aside:
            own = frozenset(peer for peer in peers if not fabric.front_end[peer])
            found.setdefault(own, []).append(host)
    columns: list[Column] = []
    taken: set[str] = set()
    for peers, hosts in found.items():
        name = fabric.device_names[min(peers)] if peers else fabric.host_names[hosts[0]]
        label = name if name not in taken else fabric.host_names[hosts[0]]
        taken.add(label)
        columns.append(
            Column(label=label, title=f"hosts of {label}", hosts=tuple(hosts), groups=())
        )
    return columns


def host_groups(fabric: Fabric) -> NDArray[np.int64]:
    """int64 (hosts,): group of each host, its own or that which all its switches share, or -1."""
    parts = np.flatnonzero(fabric.host >= 0)[::-1]  # the first part of a host is written last
    group = np.full(len(fabric.host_names), -1, np.int64)
    group[fabric.host[parts]] = fabric.group[parts]
    if (group < 0).any():
        for host, peers in enumerate(peers_of_hosts(fabric)):
            found = {int(fabric.group[peer]) for peer in peers if not fabric.front_end[peer]}
            if group[host] < 0 and len(found) == 1:
                group[host] = found.pop()
    return group


def host_racks(fabric: Fabric) -> NDArray[np.int64]:
    """int64 (hosts,): the NVSwitch outside hosts that joins the GPUs of a host to others, or -1."""
    rack = np.full(len(fabric.host_names), -1, np.int64)
    shared = (fabric.kind == DeviceKind.NVSWITCH) & (fabric.host < 0)
    links = shared[fabric.link_src] & (fabric.host[fabric.link_dst] >= 0)
    rack[fabric.host[fabric.link_dst[links]]] = fabric.link_src[links]
    return rack


def peers_of_hosts(fabric: Fabric) -> list[frozenset[int]]:
    """Return the devices outside each host that its network cables lead to."""
    peers: list[set[int]] = [set() for _ in fabric.host_names]
    src, dst = fabric.link_src, fabric.link_dst
    host = fabric.host[src]
    leaving = fabric.link_network & (host >= 0) & (host != fabric.host[dst])
    for number, peer in zip(host[leaving].tolist(), dst[leaving].tolist(), strict=True):
        peers[number].add(peer)
    return [frozenset(found) for found in peers]
