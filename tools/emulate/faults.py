# SPDX-License-Identifier: Apache-2.0
"""Faults that happen for real in mid-run, and the control plane that reroutes after them.

A kernel that loses a cable of its own drops the next hop at once. One that is a hop away knows
nothing: static routes lead into the gap until somebody changes them. So some time after every
change the routes of all switches are set to those of the fabric as it then stands, as a routing
protocol would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind
from railweave.fabric.routing import Routing
from railweave.tools.emulate.batches import neighbour_line, route_changes
from railweave.tools.emulate.plan import scaled_rate_bps
from railweave.tools.emulate.routes import next_hops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.faults import LinkChange
    from railweave.fabric.graph import Fabric
    from railweave.tools.emulate.plan import NetworkPlan
    from railweave.tools.emulate.routes import NextHops
    from railweave.tools.emulate.shaping import Shaping

__all__ = ["Deed", "deeds"]


@dataclass(frozen=True, kw_only=True)
class Deed:
    """Something done to the network at a time.

    Parameters
    ----------
    at_ps
        When, in the fabric's time; ``wall_ns`` of the wall clock are added.
    wall_ns
        Delay of the control plane after the change it answers.
    name
        For messages: ``leaf0:2-spine0:0 down``, ``reroute``.
    ip
        Stages, each when the one before is done: namespace -> lines for ``ip``.
    tc
        Namespace -> lines for ``tc``.
    rates
        Link -> its rate from then on, in bit/s of the fabric, where it changes.
    """

    at_ps: int
    wall_ns: int
    name: str
    ip: tuple[dict[str, list[str]], ...]
    tc: dict[str, list[str]] = field(default_factory=dict)
    rates: dict[int, int] = field(default_factory=dict)

    def wall_after(self, scale: int) -> int:
        """Return when it is done, in ns of the wall clock after the fabric's time 0."""
        return self.at_ps * scale // 1000 + self.wall_ns


def deeds(
    plan: NetworkPlan,
    shaping: Shaping,
    changes: Sequence[LinkChange],
    *,
    policy: str,
    seed: int,
    reroute_ns: int,
) -> list[Deed]:
    """Return everything that is done to the network for faults, in order.

    Parameters
    ----------
    plan, shaping
        The network as it begins.
    changes
        What happens to its links, from `railweave.fabric.faults.plan_faults`.
    policy, seed
        Of the fabric's routing.
    reroute_ns
        How long after a cable went down or came up the control plane changes the routes, in ns of
        the wall clock.

    Raises
    ------
    InputError
        One direction of a cable is to go down by itself.
    """
    fabric = plan.fabric
    up, rates, hops = fabric.link_up.copy(), fabric.link_rate_bps.copy(), plan.hops
    done: list[Deed] = []
    for at_ps, several in groupby(changes, key=lambda change: change.at_ps):
        together = [change for change in several if fabric.link_network[change.link]]
        slower = {one.link: one.rate_bps for one in together if one.rate_bps != rates[one.link]}
        if slower:
            rates[list(slower)] = list(slower.values())
            done.append(_paced(plan, shaping, at_ps, slower))
        switched = [one for one in together if one.up != up[one.link]]
        if not switched:
            continue
        up[[one.link for one in switched]] = [one.up for one in switched]
        _check_cables(fabric, up)
        name = f"{fabric.cable_name(switched[0].link)} {'up' if switched[0].up else 'down'}"
        done.append(Deed(at_ps=at_ps, wall_ns=0, name=name, ip=(_switched(plan, switched),)))
        now = fabric.with_links(up=up.copy())
        after = next_hops(now, Routing(now, policy=policy, seed=seed))
        came = frozenset(one.link for one in switched if one.up)
        lines = route_changes(plan, hops, after, came=came)
        done.append(
            Deed(
                at_ps=at_ps,
                wall_ns=reroute_ns,
                name=f"reroute after {name}",
                ip=_in_stages(plan, hops, after, lines),
            )
        )
        hops = after
    return sorted(done, key=lambda deed: deed.wall_after(plan.scale))


def _check_cables(fabric: Fabric, up: NDArray[np.bool_]) -> None:
    half = np.flatnonzero(up[0::2] != up[1::2])
    if len(half):
        raise InputError(
            f"one direction of {fabric.cable_name(2 * int(half[0]))} cannot go down by itself here",
            field="faults",
            expected="the cable, A:port-B:port",
        )


def _in_stages(
    plan: NetworkPlan, before: NextHops, after: NextHops, lines: dict[str, list[str]]
) -> tuple[dict[str, list[str]], ...]:
    """Put first those that can reach more than before: nobody is to lead there too early."""
    names = plan.fabric.device_names
    gaining = {
        names[device] for device in after if set(after[device]) - set(before.get(device, ()))
    }
    stages = (
        {name: several for name, several in lines.items() if (name in gaining) == first}
        for first in (True, False)
    )
    return tuple(stage for stage in stages if stage)


def _switched(plan: NetworkPlan, switched: Sequence[LinkChange]) -> dict[str, list[str]]:
    """Take the switches' ends of cables down or bring them up; a host sees its carrier go."""
    lines: dict[str, list[str]] = {}
    for change in switched:
        one, other = plan.interfaces[change.link], plan.interfaces[change.link ^ 1]
        ends = [plan.fabric.kind[end.device] == DeviceKind.SWITCH for end in (one, other)]
        if ends == [False, True]:
            continue
        here = lines.setdefault(one.namespace, [])
        here.append(f"link set dev {one.name} {'up' if change.up else 'down'}")
        if change.up:  # going down has cost it its neighbour
            here.append(neighbour_line(one, other))
    return lines


def _paced(plan: NetworkPlan, shaping: Shaping, at_ps: int, rates: dict[int, int]) -> Deed:
    lines: dict[str, list[str]] = {}
    for link, rate in rates.items():
        one = plan.interfaces[link]
        slower = scaled_rate_bps(rate, plan.scale)
        lines.setdefault(one.namespace, []).extend(shaping.change(one.name, slower))
    names = ", ".join(plan.fabric.link_name(link) for link in rates)
    return Deed(at_ps=at_ps, wall_ns=0, name=f"{names} paced", ip=(), tc=lines, rates=rates)
