# SPDX-License-Identifier: Apache-2.0
"""A plan as lines for ``ip -batch`` and ``tc -batch``, and each namespace's kernel settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from railweave.tools.emulate.plan import Interface, NetworkPlan
    from railweave.tools.emulate.routes import NextHops
    from railweave.tools.emulate.shaping import Shaping

__all__ = ["neighbour_line", "route_changes", "setup_request"]

_TABLE: Final = 1000  # of a host's first NIC; below the kernel's own 253 to 255 none is used
_TCP: Final = "rto_min 20ms congctl cubic"
_HASH_FIELDS: Final = 0x37
"""Addresses, protocol and ports: fib_multipath_hash_fields in ip-sysctl.rst (Linux)."""

_COMMON: Final = {
    "net/ipv6/conf/all/disable_ipv6": 1,
    "net/ipv6/conf/default/disable_ipv6": 1,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/conf/all/ignore_routes_with_linkdown": 1,
    "net/ipv4/conf/default/ignore_routes_with_linkdown": 1,
    "net/ipv4/fib_multipath_hash_policy": 3,  # 1 would take the sender's own hash, unforeseeably
    "net/ipv4/fib_multipath_hash_fields": _HASH_FIELDS,
}
_HOST: Final = {
    "net/ipv4/tcp_no_metrics_save": 1,
    "net/ipv4/tcp_slow_start_after_idle": 0,
    "net/ipv4/tcp_ecn": 0,
    "net/ipv4/tcp_rmem": "4096 131072 262144",  # bounds the queue that one connection can build
}


def _namespace_sysctls(plan: NetworkPlan) -> dict[str, dict[str, Any]]:
    names = plan.fabric.device_names
    found: dict[str, dict[str, Any]] = {}
    for k, host in enumerate(plan.fabric.host_names):
        seed = {"net/ipv4/fib_multipath_hash_seed": (plan.seed * 31 + k) % (2**32 - 1) + 1}
        found[host] = {**_COMMON, **_HOST, **seed}
    for switch in plan.switches:
        found[names[switch]] = {
            **_COMMON,
            "net/ipv4/ip_forward": 1,
            "net/ipv4/fib_multipath_hash_seed": plan.hash_seed(switch),
        }
    return found


def _cable(a: Interface, b: Interface) -> str:
    return (
        f"link add name {a.name} netns {a.namespace} address {a.mac} type veth "
        f"peer name {b.name} netns {b.namespace} address {b.mac}"
    )


def _on_host(plan: NetworkPlan, one: Interface) -> bool:
    return int(plan.fabric.host[one.device]) >= 0


def _via(plan: NetworkPlan, links: Iterable[int]) -> str:
    """Return the next hops of a route: ``via A dev X`` for one, ``nexthop ...`` for several."""
    ways = []
    for link in links:
        one, other = plan.interfaces[link], plan.interfaces[link ^ 1]
        onlink = " onlink" if _on_host(plan, one) else ""
        ways.append(f"via {other.address} dev {one.name}{onlink}")
    return ways[0] if len(ways) == 1 else " ".join(f"nexthop {way}" for way in ways)


def _host_routes(plan: NetworkPlan, host: str, hops: NextHops) -> list[str]:
    """Return the routes of a host: a table per NIC for what leaves from its address."""
    lines = []
    for k, nic in enumerate(plan.nics(host)):
        ways = sorted({links for links in hops.get(nic, {}).values() if links})
        table = _TABLE + k
        lines.append(f"rule add from {plan.address(nic)} lookup {table}")
        for target, links in sorted(hops.get(nic, {}).items()):
            if len(ways) > 1:
                to = f"{plan.address(target)}/32"
                lines.append(f"route add {to} table {table} {_metrics(plan, links)}")
        if len(ways) == 1:
            lines.append(f"route add default table {table} {_metrics(plan, ways[0])}")
        if k == 0 and ways:  # for sockets that chose no address
            source = f"src {plan.address(nic)}"
            lines.append(f"route add default {source} {_metrics(plan, ways[0])}")
    return lines


def _metrics(plan: NetworkPlan, links: tuple[int, ...]) -> str:
    via = _via(plan, links)
    return f"{_TCP} {via}" if via.startswith("nexthop") else f"{via} {_TCP}"


def neighbour_line(one: Interface, other: Interface) -> str:
    """Return the line that tells an interface who is at the other end of its cable."""
    return f"neigh replace {other.address} lladdr {other.mac} dev {one.name} nud permanent"


def _interface_lines(plan: NetworkPlan, one: Interface, shaping: Shaping) -> list[str]:
    other = plan.interfaces[one.link ^ 1]
    gso = "" if shaping.gso_bytes is None else f" gso_max_size {shaping.gso_bytes}"
    lines = [f"link set dev {one.name}{gso}"] if gso else []
    # A host's interface has its NIC's address alone: programs take an interface's first one.
    own = [] if _on_host(plan, one) else [f"addr add {one.address}/31 dev {one.name}"]
    return [
        *lines,
        *own,
        neighbour_line(one, other),
        *([f"link set dev {one.name} up"] if one.up and other.up else []),
    ]


def setup_request(plan: NetworkPlan, shaping: Shaping) -> dict[str, Any]:
    """Return what the inside is told to build the network.

    Returns
    -------
    dict
        ``namespaces``: names; ``sysctls``: namespace -> path below /proc/sys -> value; ``cables``:
        lines for ``ip`` outside of any namespace; ``first`` and ``then``: namespace -> lines for
        ``ip`` before and after every link is up (a route needs the carrier of its link); ``tc``:
        namespace -> lines for ``tc``; ``hosts``: text of /etc/hosts.
    """
    fabric = plan.fabric
    first: dict[str, list[str]] = {name: ["link set lo up"] for name in plan.namespaces}
    shapers: dict[str, list[str]] = {name: [] for name in plan.namespaces}
    for one in plan.interfaces.values():
        first[one.namespace] += _interface_lines(plan, one, shaping)
        shapers[one.namespace] += shaping.lines(one.name, one.rate_bps)
    then: dict[str, list[str]] = {name: [] for name in plan.namespaces}
    for host in fabric.host_names:
        for nic in plan.nics(host):
            ways = plan.leaving(nic)
            if ways:
                first[host].append(f"addr add {plan.address(nic)}/32 dev {ways[0].name}")
        then[host] = _host_routes(plan, host, plan.hops)
    for switch in plan.switches:
        name = fabric.device_names[switch]
        then[name] = [
            f"route add {plan.address(target)}/32 {_via(plan, links)}"
            for target, links in sorted(plan.hops.get(switch, {}).items())
        ]
    return {
        "namespaces": list(plan.namespaces),
        "sysctls": _namespace_sysctls(plan),
        "cables": [
            _cable(one, plan.interfaces[link ^ 1])
            for link, one in plan.interfaces.items()
            if link % 2 == 0
        ],
        "first": {name: lines for name, lines in first.items() if lines},
        "tc": {name: lines for name, lines in shapers.items() if lines},
        "then": {name: lines for name, lines in then.items() if lines},
        "hosts": plan.hosts_file(),
    }


def route_changes(
    plan: NetworkPlan, before: NextHops, after: NextHops, *, came: Set[int] = frozenset()
) -> dict[str, list[str]]:
    """Return, per switch namespace, the ``ip`` lines that lead from one set of routes to another.

    Routes over links that just ``came`` back are written whether they change or not, as the kernel
    drops a route with its last next hop. Hosts keep their routes.
    """
    lines: dict[str, list[str]] = {}
    for switch in plan.switches:
        old, new = before.get(switch, {}), after.get(switch, {})
        here = []
        for target in sorted({*old, *new}):
            to = f"{plan.address(target)}/32"
            if target in new:
                if new[target] != old.get(target) or not came.isdisjoint(new[target]):
                    here.append(f"route replace {to} {_via(plan, new[target])}")
            else:
                here.append(f"route replace unreachable {to}")
        if here:
            lines[plan.fabric.device_names[switch]] = here
    return lines
