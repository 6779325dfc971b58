# SPDX-License-Identifier: Apache-2.0
"""The plan of a Linux network: namespaces, interfaces, addresses, rates and routes of a fabric.

Hosts and switches become network namespaces, cables become veth pairs. The plan is made from the
fabric alone, so it can be read and tested where no namespace may be made.

Address plan
------------
- NIC k (dense number, file order): 10.0.0.0 + k, as railweave's own ECMP hash has it;
- the two ends of cable c: 10.128.0.0 + 2 c and 10.128.0.1 + 2 c, a /31 (RFC 3021); on a host's end
  it only names the next hop, so that an interface of a host has one address;
- hardware addresses are locally administered (IEEE 802, bit 1 of the first octet): 02:00 and the
  number of the link that leaves there. Neighbours are permanent entries: no ARP on the links.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind
from railweave.tools.emulate.routes import next_hops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.graph import Fabric
    from railweave.fabric.routing import Routing
    from railweave.tools.emulate.routes import NextHops

__all__ = ["Interface", "NetworkPlan", "make_plan", "scaled_rate_bps"]

_NICS: Final = ipaddress.IPv4Address("10.0.0.0")
_CABLES: Final = ipaddress.IPv4Address("10.128.0.0")
_LONGEST_NAME: Final = 15
"""An interface's name has at most 15 characters (IFNAMSIZ 16 with its NUL, linux/if.h)."""

MOST_NAMESPACES: Final = 1024
"""More are refused: far beyond what the CPUs of one machine can carry traffic for."""
SLOWEST_BPS: Final = 100_000


def scaled_rate_bps(rate_bps: int, scale: int) -> int:
    """Return the rate of a cable in the emulation, in whole bit/s."""
    return rate_bps // scale


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One end of a cable.

    Parameters
    ----------
    link
        The directed link that leaves here; the other end's is ``link ^ 1``.
    device
        Device index: a NIC or a switch.
    namespace, name
        Where it is, and what it is called there.
    mac, address
        Hardware address and the address of this end of the cable.
    rate_bps
        What leaves here at most, in the emulation's bit/s.
    up
        Whether the cable is in service when the emulation begins.
    """

    link: int
    device: int
    namespace: str
    name: str
    mac: str
    address: str
    rate_bps: int
    up: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkPlan:
    """A fabric laid out as namespaces.

    Parameters
    ----------
    fabric
        The fabric, faults of the start included.
    scale
        Rates are divided by it, and time runs that much slower.
    seed, polarised
        Seed of the kernel's path hash, and whether all switches share it.
    interfaces
        By link number; links inside hosts have none.
    hops
        Device -> destination NIC -> links to go on by.
    """

    fabric: Fabric
    scale: int
    seed: int
    polarised: bool
    interfaces: Mapping[int, Interface]
    hops: NextHops

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """Devices that forward."""
        return tuple(self.fabric.switches.tolist())

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all namespaces: hosts in order, then switches."""
        names = self.fabric.device_names
        return (*self.fabric.host_names, *(names[device] for device in self.switches))

    def namespace(self, device: int) -> str:
        """Return the namespace a device lives in: its host's, or its own."""
        host = int(self.fabric.host[device])
        return self.fabric.host_names[host] if host >= 0 else self.fabric.device_names[device]

    @cached_property
    def _dense_nic(self) -> Mapping[int, int]:
        return {device: k for k, device in enumerate(self.fabric.nics.tolist())}

    def address(self, nic: int) -> str:
        """Return the address of a NIC (device index)."""
        return str(_NICS + self._dense_nic[nic])

    def nic_of(self, device: int) -> int:
        """Return the NIC by which a GPU or NIC reaches the network."""
        if self.fabric.kind[device] == DeviceKind.NIC:
            return device
        return int(self.fabric.gpu_nic[device])

    def nics(self, host: str) -> list[int]:
        """Return the NICs of a host."""
        return self.fabric.parts(host, DeviceKind.NIC)

    def leaving(self, device: int) -> list[Interface]:
        """Return the interfaces of a NIC or switch."""
        return self._leaving.get(device, [])

    @cached_property
    def _leaving(self) -> Mapping[int, list[Interface]]:
        found: dict[int, list[Interface]] = {}
        for interface in self.interfaces.values():
            found.setdefault(interface.device, []).append(interface)
        return found

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], Interface]:
        """(Namespace, interface name) -> interface."""
        return {(one.namespace, one.name): one for one in self.interfaces.values()}

    @cached_property
    def slowest_bps(self) -> int:
        """Rate of the slowest interface, in the emulation's bit/s."""
        return min((one.rate_bps for one in self.interfaces.values()), default=0)

    def hash_seed(self, switch: int) -> int:
        """Return the seed of a switch's path hash; never 0, which would mean a random one."""
        own = 0 if self.polarised else 1 + self.switches.index(switch)
        return (self.seed * 1_000_003 + own * 7919) % (2**32 - 1) + 1

    def hosts_file(self) -> str:
        """Return the text of ``/etc/hosts`` inside: hosts and NICs by name.

        A host's name is its first NIC's address; ``h3-nic1`` is another of its NICs.
        """
        lines = ["127.0.0.1 localhost"]
        for host in self.fabric.host_names:
            for k, nic in enumerate(self.nics(host)):
                part = self.fabric.device_names[nic].replace("/", "-")
                lines.append(f"{self.address(nic)} {part}" + (f" {host}" if k == 0 else ""))
        return "\n".join(lines) + "\n"


def make_plan(fabric: Fabric, routing: Routing, *, scale: int, seed: int = 1) -> NetworkPlan:
    """Lay a fabric out as a Linux network.

    Parameters
    ----------
    fabric, routing
        What is to be emulated, and its routes.
    scale
        Rates are divided by it: 2000 turns 400 Gbit/s into 200 Mbit/s.
    seed
        Of the kernels' path hashes.

    Raises
    ------
    InputError
        The fabric has no network, is too large, becomes too slow, or its routes are not a kernel's.
    """
    network = np.flatnonzero(fabric.link_network).tolist()
    if not network:
        raise InputError(
            "no cable joins hosts or switches", field="topology", expected="a network to emulate"
        )
    count = len(fabric.host_names) + len(fabric.switches)
    if count > MOST_NAMESPACES:
        raise InputError(
            f"{count} hosts and switches are too many for one machine",
            field="topology",
            expected=f"at most {MOST_NAMESPACES}",
        )
    slowest = min(scaled_rate_bps(int(fabric.link_rate_bps[link]), scale) for link in network)
    if slowest < SLOWEST_BPS:
        raise InputError(
            f"a scale of {scale} leaves {slowest} bit/s of the slowest cable",
            field="scale",
            expected=f"a scale that leaves {SLOWEST_BPS} bit/s or more",
        )
    interfaces = {link: _interface(fabric, link, scale) for link in network}
    return NetworkPlan(
        fabric=fabric,
        scale=scale,
        seed=seed,
        polarised=routing.policy == "ecmp-polarised",
        interfaces=interfaces,
        hops=next_hops(fabric, routing),
    )


def _interface(fabric: Fabric, link: int, scale: int) -> Interface:
    device, port = int(fabric.link_src[link]), int(fabric.link_src_port[link])
    host = int(fabric.host[device])
    if host < 0:
        namespace, name = fabric.device_names[device], f"p{port}"
    else:
        cables = int(((fabric.link_src == device) & fabric.link_network).sum())
        name = f"nic{int(fabric.index[device])}" + (f"p{port}" if cables > 1 else "")
        namespace = fabric.host_names[host]
    assert len(name) <= _LONGEST_NAME
    octets = link.to_bytes(4, "big")
    return Interface(
        link=link,
        device=device,
        namespace=namespace,
        name=name,
        mac="02:00:" + ":".join(f"{octet:02x}" for octet in octets),
        address=str(_CABLES + link),
        rate_bps=scaled_rate_bps(int(fabric.link_rate_bps[link]), scale),
        up=bool(fabric.link_up[link]),
    )
