# SPDX-License-Identifier: Apache-2.0
"""Checks of what is plugged in where: ports, idle switches, missing and odd cables."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.devices import nic_model, switch_model
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.units import format_rate
from railweave.fabric.words import plural
from railweave.topologies.budgets import overfull_switches
from railweave.topologies.review.case import SHOWN, TIERS, listed
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.topologies.review.case import Case

__all__ = ["protocol_problems"]

_MAJORITY: Final = 0.75
"""Share of the likes of a cable that must agree before one that does not is called odd."""
_LIKES: Final = 3


@check_named(
    "port-once",
    about="No port has two cables.",
    why="One of the two cables cannot be plugged in.",
    mend="move one of them to a free port",
    part="cause",
)
def port_once(case: Case) -> Iterator[Found | Fact]:
    """Find ports at which several cables end."""
    fabric = case.fabric
    span = int(fabric.link_src_port.max(initial=0)) + 1
    ends = fabric.link_src.astype(np.int64) * span + fabric.link_src_port
    used, first, number = np.unique(ends, return_index=True, return_counts=True)
    twice = number > 1
    for i in np.argsort(first[twice]).tolist():  # in the order of the cables
        key = int(used[twice][i])
        device, port = divmod(key, span)
        links = np.flatnonzero(ends == key).tolist()
        yield Found(
            level="error",
            message=f"{len(links)} cables use port {fabric.device_names[device]}:{port}",
            where=(f"{case.name(device)}:{port}", *(fabric.cable_name(k) for k in links[:SHOWN])),
            devices=frozenset((device, *(int(fabric.link_dst[link]) for link in links))),
            at=~links[-1],
        )


@check_named(
    "port-budget",
    about="No switch carries more ports, or more Tb/s, than its model has.",
    why="The switch cannot be built or bought with these ports.",
    mend="take a larger switch, fewer hosts to a leaf, or more oversubscription",
    part="effect",
)
def port_budget(case: Case) -> Iterator[Found | Fact]:
    """Compare the ports of every switch with its model, and count what is left."""
    fabric = case.fabric
    for switch, lacking in overfull_switches(fabric):
        device = fabric.device(switch)
        yield Found(
            level="error",
            message=f"{switch} {lacking}",
            where=(switch,),
            devices=frozenset((device,)),
            at=device,
        )
    used, whole, carried, most = (Counter[str]() for _ in range(4))
    rates = np.bincount(
        fabric.link_src[fabric.link_network],
        fabric.link_rate_bps[fabric.link_network].astype(np.float64),
        fabric.n_devices,
    )
    for device in fabric.switches.tolist():
        if fabric.model[device]:
            tier = TIERS.get(int(fabric.tier[device]), "other")
            capacity = switch_model(fabric.model[device]).capacity_bps
            used[tier] += 1
            whole[tier] += capacity
            carried[tier] += int(rates[device])
            most[tier] = max(most[tier], int(rates[device]))
    for tier, number in used.items():
        verb = "carries" if number == 1 else "carry"
        yield Fact(
            rule="port-budget",
            text=f"{tier}: {plural(number, 'switch')} {verb} {format_rate(carried[tier])} of "
            f"{format_rate(whole[tier])}, {100 * carried[tier] / whole[tier]:.1f} %",
            values={"tier": tier, "used_bps": carried[tier], "capacity_bps": whole[tier]},
        )


@check_named(
    "protocol",
    about="Links end on devices that speak their protocol.",
    why="InfiniBand and Ethernet do not talk to each other; the link stays down.",
    mend="take a switch or NIC of the link's protocol, or the other link model",
    part="effect",
)
def protocol(case: Case) -> Iterator[Found | Fact]:
    """Find RoCE links on InfiniBand devices and the other way."""
    for message, link in protocol_problems(case.fabric):
        yield Found(
            level="error",
            message=message,
            where=(case.fabric.cable_name(link),),
            at=~link,
        )


def protocol_problems(fabric: Fabric) -> Iterator[tuple[str, int]]:
    """Say which devices end links of a protocol that they do not speak, once per device model."""
    number: dict[str, int] = {}
    named = np.array([number.setdefault(name, len(number)) for name in fabric.model])
    names = list(number)
    alike = named[fabric.link_src] == named[fabric.link_dst]
    second = np.arange(fabric.n_links) % 2 == 1  # a cable between two of a model counts once
    links = np.flatnonzero(fabric.link_network & ~(alike & second))
    kinds = np.stack([fabric.link_model[links], named[fabric.link_src[links]]])
    found, first, counts = np.unique(kinds, axis=1, return_index=True, return_counts=True)
    wrong: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], int] = {}
    for i in np.argsort(first).tolist():
        name, link = names[found[1, i]], int(links[first[i]])
        if not name:
            continue
        is_nic = fabric.kind[fabric.link_src[link]] == DeviceKind.NIC
        spoken = (nic_model(name) if is_nic else switch_model(name)).protocols
        model = LinkModel(int(found[0, i]))
        needed = "infiniband" if model == LinkModel.INFINIBAND else "ethernet"
        if needed not in spoken:
            key = (model.label, name, " and ".join(sorted(spoken)))
            wrong[key] += int(counts[i])
            example.setdefault(key, link)
    for key, count in wrong.items():
        label, name, speaks = key
        link = example[key]
        yield (
            f"{plural(count, 'cable')} {'is' if count == 1 else 'are'} {label}, "
            f"but {name} speaks {speaks} only ({fabric.cable_name(link)} first)",
            link,
        )


@check_named(
    "unused-switch",
    about="Every switch has a cable in service.",
    why="It is paid for and carries nothing; where others of its tier carry traffic, the fabric "
    "has less bandwidth than the design.",
    mend="plug it in, or leave it out of the design",
    part="cause",
)
def unused_switch(case: Case) -> Iterator[Found | Fact]:
    """Find switches without a cable in service."""
    fabric = case.fabric
    ends = np.bincount(fabric.link_src[fabric.link_up], minlength=fabric.n_devices)
    idle = [device for device in fabric.switches.tolist() if ends[device] == 0]
    if idle:
        names = [case.name(device) for device in idle]
        yield Found(
            level="warning",
            message=f"no link ends on {listed(names)}",
            where=tuple(names[:SHOWN]),
            devices=frozenset(idle),
            at=idle[0],
        )


@check_named(
    "missing-nic",
    about="Every NIC of a host has a cable, if some of its kin have.",
    why="The GPUs that use it have no way onto the network.",
    mend="plug it in; a host with fewer NICs is another model of host",
    part="cause",
)
def missing_nic(case: Case) -> Iterator[Found | Fact]:
    """Find NICs without a cable, and bare hosts with fewer NICs than most."""
    fabric = case.fabric
    cabled = np.zeros(fabric.n_devices, np.bool_)
    cabled[fabric.link_src[fabric.link_network]] = True
    for nics in _by_host(fabric, fabric.nics[~cabled[fabric.nics]]):
        host = case.host_of(nics[0])
        names = [case.name(nic).removeprefix(f"{host}/") for nic in nics]
        users = fabric.gpus[np.isin(fabric.gpu_nic[fabric.gpus], nics)].tolist()
        yield Found(
            level="error",
            message=f"{host}: no cable in {listed(names, most=8)}",
            where=tuple(case.name(nic) for nic in nics[:SHOWN]),
            devices=frozenset((*nics, *users)),
            at=nics[0],
        )
    yield from _bare_hosts(case)


def _by_host(fabric: Fabric, nics: NDArray[np.int32]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for nic in nics.tolist():
        found.setdefault(int(fabric.host[nic]), []).append(nic)
    return list(found.values())


def _bare_hosts(case: Case) -> Iterator[Found]:
    """Find bare hosts, whose NICs are their cables, that have fewer than most others."""
    fabric = case.fabric
    bare = fabric.nics[[not fabric.model[nic] for nic in fabric.nics.tolist()]]
    number = np.bincount(fabric.host[bare], minlength=len(fabric.host_names))
    hosts = np.flatnonzero(number)
    if len(hosts) <= _LIKES:
        return
    usual, share = _majority(number[hosts])
    if share < _MAJORITY:
        return
    for host in hosts[number[hosts] < usual].tolist():
        nics = bare[fabric.host[bare] == host].tolist()
        gpus = fabric.gpus[fabric.host[fabric.gpus] == host].tolist()
        yield Found(
            level="warning",
            message=f"{fabric.host_names[host]}: {plural(number[host], 'NIC')}, "
            f"where most hosts have {usual}",
            where=(fabric.host_names[host],),
            devices=frozenset((*nics, *gpus, *_switches_without(case, host, nics))),
            at=nics[0],
        )


def _switches_without(case: Case, host: int, nics: list[int]) -> set[int]:
    """Return the switches that most hosts have a cable to, and this one has not."""
    nic, switch, _ = case.access
    own = set(switch[np.isin(nic, nics)].tolist())
    return {s for s in np.unique(switch).tolist() if s not in own}


def _majority(values: NDArray[np.int64]) -> tuple[int, float]:
    """Return the most frequent value, and the share that has it."""
    found, counts = np.unique(values, return_counts=True)
    best = int(counts.argmax())
    return int(found[best]), float(counts[best] / len(values))


@check_named(
    "odd-rate",
    about="Cables that should be alike have one rate.",
    why="The slow cable holds up every collective that crosses it.",
    mend="put a cable, optic or port mode of the usual rate there",
    part="cause",
)
def odd_rate(case: Case) -> Iterator[Found | Fact]:
    """Find a cable that is slower or faster than its kin at the same host or switch."""
    fabric = case.fabric
    rate = np.minimum(fabric.link_rate_bps, fabric.link_rate_bps[np.arange(fabric.n_links) ^ 1])
    nic, switch, link = case.access
    lower, upper, trunk = case.trunks
    told: set[int] = set()
    number: dict[str, int] = {}
    kind = np.array([number.setdefault(fabric.model[n], len(number)) for n in nic.tolist()], int)
    by_leaf = switch * (len(number) + 1) + kind  # NICs of several models may well differ
    for group, links in (
        (fabric.host[nic].astype(np.int64), link),
        (lower * fabric.n_devices + np.maximum(fabric.tier[upper], 0), trunk),
        (by_leaf, link),
    ):
        mixed = _mixed_groups(group, rate[links])
        for one in mixed:
            mine = links[group == one]
            usual, share = _majority(rate[mine])
            odd = [k for k in mine[rate[mine] != usual].tolist() if k not in told]
            if len(mine) <= _LIKES - 1 or share < _MAJORITY or not odd:
                continue
            if group is by_leaf and not _alone(case, odd, nic, link):
                continue
            told.update(mine.tolist())
            for k in odd:
                slower = "slower" if rate[k] < usual else "faster"
                yield Found(
                    level="error" if slower == "slower" else "warning",
                    message=f"{fabric.cable_name(k)} is {format_rate(int(rate[k]))}, {slower} than "
                    f"the {format_rate(usual)} of its {len(mine) - len(odd)} likes",
                    where=(fabric.cable_name(k),),
                    devices=frozenset((int(fabric.link_src[k]), int(fabric.link_dst[k]))),
                    at=~k,
                )


def _mixed_groups(group: NDArray[np.int64], rate: NDArray[np.int64]) -> list[int]:
    """Return the groups whose members have several rates."""
    pairs = np.unique(np.stack([group, rate]), axis=1)
    found, counts = np.unique(pairs[0], return_counts=True)
    return [int(one) for one in found[counts > 1]]


def _alone(case: Case, odd: list[int], nic: NDArray[np.int64], link: NDArray[np.int64]) -> bool:
    """Whether the odd cables at a leaf are of hosts too small to be compared with themselves."""
    fabric = case.fabric
    hosts = fabric.host[nic]
    sizes = Counter(hosts.tolist())
    place = {int(k): int(h) for k, h in zip(link, hosts, strict=True)}
    return len(odd) == 1 and sizes[place[odd[0]]] < _LIKES


@check_named(
    "uneven-uplinks",
    about="Switches of a tier have equally many cables up.",
    why="Hosts below the switch with fewer cables get less bandwidth than the others.",
    mend="plug in the missing cable",
    part="cause",
)
def uneven_uplinks(case: Case) -> Iterator[Found | Fact]:
    """Find switches with fewer uplinks than most of their tier."""
    fabric = case.fabric
    if not case.tiered:
        return
    lower, upper, _link = case.trunks
    upward = fabric.tier[lower] < fabric.tier[upper]
    lower, upper = lower[upward], upper[upward]
    number = np.bincount(lower, minlength=fabric.n_devices)
    idle = np.bincount(fabric.link_src, minlength=fabric.n_devices) == 0
    by_model: dict[tuple[int, str], list[int]] = defaultdict(list)
    for device in fabric.switches.tolist():
        if not idle[device]:
            by_model[int(fabric.tier[device]), fabric.model[device]].append(device)
    for (tier, _), members in by_model.items():
        counts = number[members]
        usual, share = _majority(counts)
        if len(members) < _LIKES or share <= 0.5:
            continue
        for device in [d for d in members if number[d] < usual]:
            peers = upper[lower == device]
            fewest = _fewest(peers, upper[np.isin(lower, members)], device, lower, upper)
            names = [case.name(peer) for peer in fewest]
            yield Found(
                level="error" if number[device] else "warning",
                message=f"{case.name(device)} has {number[device]} cables up, where most of the "
                f"{TIERS.get(tier, 'other')} switches have {usual}"
                + (f": fewer than usual to {listed(names)}" if names else ""),
                where=(case.name(device), *names[:SHOWN]),
                devices=frozenset((device, *fewest)),
                at=device,
            )


def _fewest(
    own: NDArray[np.int64],
    all_peers: NDArray[np.int64],
    device: int,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
) -> list[int]:
    """Return the peers to which a switch has fewer cables than other switches have to them."""
    mine = Counter(own.tolist())
    found = []
    for peer in np.unique(all_peers).tolist():
        bundles = Counter(lower[upper == peer].tolist())
        bundles.pop(device, None)
        usual = Counter(bundles.values()).most_common(1)
        shares_pod = bool(set(own.tolist()) & set(upper[np.isin(lower, list(bundles))].tolist()))
        if usual and shares_pod and mine[peer] < usual[0][0]:
            found.append(peer)
    return found


@check_named(
    "parallel-cables",
    about="Parallel cables between two switches are alike.",
    why="Equal-cost routing gives each parallel cable the same share, so the slowest or longest "
    "sets the pace.",
    mend="give them one rate and one length",
    part="effect",
)
def parallel_cables(case: Case) -> Iterator[Found | Fact]:
    """Count bundles of parallel cables, and find those that differ in length or model."""
    fabric = case.fabric
    lower, upper, link = case.trunks
    pair = lower * fabric.n_devices + upper
    kinds = np.stack([pair, fabric.link_delay_ps[link], fabric.link_model[link].astype(np.int64)])
    found, first = np.unique(kinds, axis=1, return_index=True)
    bundles, sizes = np.unique(pair, return_counts=True)
    several, counts = np.unique(found[0], return_counts=True)
    for one in several[counts > 1].tolist():
        k = int(link[first[found[0] == one][0]])
        low, high = divmod(one, fabric.n_devices)
        yield Found(
            level="warning",
            message=f"the cables between {case.name(low)} and {case.name(high)} differ in length "
            "or model",
            where=(fabric.cable_name(k),),
            devices=frozenset((low, high)),
            at=~k,
        )
    if len(bundles):
        by_size = Counter(sizes.tolist())
        words = ", ".join(f"{count} of {size}" for size, count in sorted(by_size.items()))
        yield Fact(
            rule="parallel-cables",
            text=f"bundles of cables between two switches: {words}",
            values={"bundles": {str(size): count for size, count in sorted(by_size.items())}},
        )
