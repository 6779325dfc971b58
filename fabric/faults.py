# SPDX-License-Identifier: Apache-2.0
"""Faults: links and nodes taken out or slowed before a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import format_rate, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["Fault", "apply_faults", "links_of"]

_CABLE: Final = re.compile(r"(?P<a>.+:\d+)(?P<sign>[->])(?P<b>[^:]+:\d+)")
_DEEDS: Final = ("down", "up", "degrade")
_LATER: Final = "comes with a later engine"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong.

    Parameters
    ----------
    at_ps
        When; only 0, before the run, so far.
    link, node
        One of them: a cable ``leaf0.r0:33-spine1:0`` or one direction ``leaf0.r0:33>spine1:0``;
        a host, or a device (all its links).
    do
        ``down``, ``up`` again, or ``degrade`` to ``rate_bps`` in bit/s.
    """

    at_ps: int = 0
    link: str | None = None
    node: str | None = None
    do: str = "down"
    rate_bps: int | None = None


def links_of(fabric: Fabric, *, link: str | None = None, node: str | None = None) -> list[int]:
    """Return the links that a fault names: of a cable or one direction of it, or of a node.

    Raises
    ------
    InputError
        No such link or node; the nearest name is given.
    """
    if node is not None:
        if node in fabric.host_names:
            devices = np.flatnonzero(fabric.host == fabric.host_names.index(node))
        else:
            devices = np.array([fabric.device(node)])
        touched = np.isin(fabric.link_src, devices) | np.isin(fabric.link_dst, devices)
        return [int(number) for number in np.flatnonzero(touched)]
    match = _CABLE.fullmatch(link or "")
    if match is None:
        raise InputError(
            f"'{link}' is not the name of a link", expected="A:port-B:port, or A:port>B:port"
        )
    ends = [tuple(match[side].rsplit(":", 1)) for side in ("a", "b")]
    (a, a_port), (b, b_port) = ((fabric.device(name), int(port)) for name, port in ends)
    found = np.flatnonzero(
        (fabric.link_src == a)
        & (fabric.link_src_port == a_port)
        & (fabric.link_dst == b)
        & (fabric.link_dst_port == b_port)
    )
    if len(found) == 0:
        mine = np.flatnonzero((fabric.link_src == a) | (fabric.link_src == b)).tolist()
        names = [fabric.link_name(number) for number in mine]
        if match["sign"] == "-":
            names = [name.replace(">", "-") for name in names]
        raise InputError(
            f"{fabric.name} has no link '{link}'", nearest=nearest_name(link or "", names)
        )
    number = int(found[0])
    return [number, number ^ 1] if match["sign"] == "-" else [number]


def apply_faults(fabric: Fabric, faults: Iterable[Fault]) -> Fabric:
    """Return the fabric with all faults in force; routes are made on what is left.

    Raises
    ------
    InputError
        An unknown link or node, a fault that is not at 0, or a rate that is not a loss.
    """
    up: NDArray[np.bool_] = fabric.link_up.copy()
    rate: NDArray[np.int64] = fabric.link_rate_bps.copy()
    for position, fault in enumerate(faults):
        try:
            _apply(fabric, fault, up, rate)
        except InputError as error:
            inner = error.field or ("link" if fault.link is not None else "node")
            raise InputError(
                error.message,
                field=f"faults.{position}.{inner}",
                expected=error.expected,
                nearest=error.nearest,
            ) from None
    return fabric.with_links(up=up, rate_bps=rate)


def _apply(fabric: Fabric, fault: Fault, up: NDArray[np.bool_], rate: NDArray[np.int64]) -> None:
    if (fault.link is None) == (fault.node is None):
        raise InputError("a fault names one thing", field="link", expected="either link or node")
    if fault.at_ps != 0:
        what = f"a fault in mid-run ({format_time(fault.at_ps)}) {_LATER}"
        raise InputError(what, field="at", expected="0s")
    if fault.do not in _DEEDS:
        known = fault.do == "pause-storm"
        raise InputError(
            f"'{fault.do}' {_LATER}" if known else f"there is no fault '{fault.do}'",
            field="do",
            expected=" | ".join(_DEEDS),
            nearest=None if known else nearest_name(fault.do, _DEEDS),
        )
    links = links_of(fabric, link=fault.link, node=fault.node)
    if fault.do != "degrade":
        if fault.rate_bps is not None:
            raise InputError(f"'{fault.do}' takes no rate", field="rate", expected="no rate")
        up[links] = fault.do == "up"
        return
    if fault.rate_bps is None or fault.rate_bps <= 0:
        raise InputError("a degraded link needs a rate", field="rate", expected="more than 0bps")
    slower = min(int(rate[number]) for number in links) if links else 0
    if fault.rate_bps > slower:
        raise InputError(
            f"{format_rate(fault.rate_bps)} is no loss",
            field="rate",
            expected=f"at most {format_rate(slower)}",
        )
    rate[links] = fault.rate_bps
