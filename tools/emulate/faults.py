# SPDX-License-Identifier: Apache-2.0
"""Faults that happen for real in mid-run, and the control plane that reroutes after them.

A kernel that loses a cable of its own drops the next hop at once. One that is a hop away knows
nothing: static routes lead into the gap until somebody changes them. So some time after every
change the routes of all switches are set to those of the fabric as it then stands, as a routing
protocol would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.fabric.faults import Fault, links_of
from railweave.fabric.graph import DeviceKind
from railweave.fabric.routing import Routing
from railweave.tools.emulate.batches import neighbour_line, route_changes
from railweave.tools.emulate.plan import scaled_rate_bps
from railweave.tools.emulate.routes import next_hops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric
    from railweave.tools.emulate.plan import NetworkPlan
    from railweave.tools.emulate.routes import NextHops
    from railweave.tools.emulate.shaping import Shaping

__all__ = ["Deed", "TimedFault", "deeds"]

_DEEDS: Final = ("down", "up", "degrade")


@dataclass(frozen=True, kw_only=True)
class TimedFault:
    """A fault at a time, and for a time.

    Parameters
    ----------
    fault
        What happens; its ``at_ps`` is when, in the fabric's time.
    for_ps
        After which it is undone; None: never.
    """

    fault: Fault
    for_ps: int | None = None


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


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Links that change at a time: taken down, brought up, or given another rate."""

    at_ps: int
    name: str
    links: tuple[int, ...]
    do: str
    rate_bps: int


def _changes(fabric: Fabric, faults: Sequence[TimedFault]) -> list[_Change]:
    """Return the changes of faults in the order of their times, undoing ones included."""
    found = []
    for i, timed in enumerate(faults):
        fault = timed.fault
        if fault.do not in _DEEDS:
            raise InputError(
                f"'{fault.do}' cannot be done to a Linux network",
                field=f"faults.{i}.do",
                expected=" | ".join(_DEEDS),
            )
        links = [
            link
            for link in links_of(fabric, link=fault.link, node=fault.node)
            if fabric.link_network[link]
        ]
        if fault.do != "degrade" and {link ^ 1 for link in links} != set(links):
            raise InputError(
                "one direction of a cable cannot go down by itself here",
                field=f"faults.{i}.link",
                expected="the cable, A:port-B:port",
            )
        what = fault.link or fault.node or ""
        rate = fault.rate_bps or 0
        found.append(
            _Change(
                at_ps=fault.at_ps,
                name=f"{what} {fault.do}",
                links=tuple(links),
                do=fault.do,
                rate_bps=rate,
            )
        )
        if timed.for_ps is not None:
            undo = "up" if fault.do == "down" else "down" if fault.do == "up" else "restore"
            found.append(
                _Change(
                    at_ps=fault.at_ps + timed.for_ps,
                    name=f"{what} {undo}",
                    links=tuple(links),
                    do=undo,
                    rate_bps=0,
                )
            )
    return sorted(found, key=lambda change: change.at_ps)


def deeds(
    plan: NetworkPlan,
    shaping: Shaping,
    faults: Sequence[TimedFault],
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
    faults
        What happens.
    policy, seed
        Of the fabric's routing.
    reroute_ns
        How long after a cable went down or came up the control plane changes the routes, in ns of
        the wall clock.

    Raises
    ------
    InputError
        A fault names nothing, or cannot be done here.
    """
    fabric = plan.fabric
    up, hops = fabric.link_up.copy(), plan.hops
    done: list[Deed] = []
    for change in _changes(fabric, faults):
        if change.do in ("degrade", "restore"):
            done.append(_paced(plan, shaping, change))
            continue
        up[list(change.links)] = change.do == "up"
        done.append(_switched(plan, change))
        now = fabric.with_links(up=up.copy())
        after = next_hops(now, Routing(now, policy=policy, seed=seed))
        came = frozenset(change.links) if change.do == "up" else frozenset()
        done.append(
            Deed(
                at_ps=change.at_ps,
                wall_ns=reroute_ns,
                name=f"reroute after {change.name}",
                ip=_in_stages(plan, hops, after, route_changes(plan, hops, after, came=came)),
            )
        )
        hops = after
    return sorted(done, key=lambda deed: deed.wall_after(plan.scale))


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


def _switched(plan: NetworkPlan, change: _Change) -> Deed:
    """Take the switches' ends of cables down or bring them up; a host sees its carrier go."""
    lines: dict[str, list[str]] = {}
    for link in change.links:
        one = plan.interfaces[link]
        if plan.fabric.kind[one.device] != DeviceKind.SWITCH:
            other = plan.interfaces[link ^ 1]
            if plan.fabric.kind[other.device] == DeviceKind.SWITCH:
                continue
        here = lines.setdefault(one.namespace, [])
        here.append(f"link set dev {one.name} {change.do}")
        if change.do == "up":  # going down has cost it its neighbour
            here.append(neighbour_line(one, plan.interfaces[link ^ 1]))
    return Deed(at_ps=change.at_ps, wall_ns=0, name=change.name, ip=(lines,))


def _paced(plan: NetworkPlan, shaping: Shaping, change: _Change) -> Deed:
    lines: dict[str, list[str]] = {}
    rates = {}
    for link in change.links:
        one = plan.interfaces[link]
        built = int(plan.fabric.link_rate_bps[link])
        rates[link] = change.rate_bps if change.do == "degrade" else built
        slower = scaled_rate_bps(rates[link], plan.scale)
        lines.setdefault(one.namespace, []).extend(shaping.change(one.name, slower))
    return Deed(at_ps=change.at_ps, wall_ns=0, name=change.name, ip=(), tc=lines, rates=rates)
