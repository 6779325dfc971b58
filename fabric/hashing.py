# SPDX-License-Identifier: Apache-2.0
"""The hash by which a switch picks one of its equal-cost next hops, bit by bit.

Vendors keep their hashes secret; what matters for collisions is that the hash mixes well, that
every switch is seeded differently (or, polarised, alike) and that the same flow always takes the
same path. This one is built on the finaliser of splitmix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014; public-domain code by Sebastiano Vigna,
https://prng.di.unimi.it/splitmix64.c). All arithmetic is modulo 2**64.

What is here is the plain reference; ``_walk`` holds the same in compiled form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ROCE_PORT",
    "UDP",
    "choose",
    "connection_id",
    "flow_hash",
    "hash_states",
    "mix",
    "nic_address",
    "roce_source_port",
    "source_ports",
    "switch_seed",
]

UDP = 17  # IANA protocol number
ROCE_PORT = 4791  # IANA: RoCEv2 (InfiniBand Architecture Specification, annex A17)
_FIRST_SOURCE_PORT = 49152  # RFC 6335: the dynamic ports
_SOURCE_PORTS = 16384
_FIRST_ADDRESS = 10 << 24  # 10.0.0.0, RFC 1918

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(value: int) -> int:
    """Return the splitmix64 output for state ``value``, modulo 2**64.

    Examples
    --------
    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def switch_seed(seed: int, switch_id: int) -> int:
    """Return the hash seed of a switch under the run's global seed.

    Examples
    --------
    >>> hex(switch_seed(42, 0))
    '0x4d9b3f1ec9cf6b1b'
    """
    return mix((seed & _MASK) ^ mix(switch_id))


def flow_hash(
    seed: int,
    source_address: int,
    destination_address: int,
    source_port: int,
    destination_port: int = ROCE_PORT,
    protocol: int = UDP,
) -> int:
    """Return a switch's 64-bit hash of an IPv4 five-tuple.

    Parameters
    ----------
    seed
        The switch's own seed, from `switch_seed`.
    source_address, destination_address
        IPv4 addresses as integers.
    source_port, destination_port, protocol
        UDP ports and IP protocol number.
    """
    ports = source_port << 32 | destination_port << 16 | protocol
    value = mix(seed)
    for word in (source_address, destination_address, ports):
        value = mix(value ^ word)
    return value


def choose(value: int, count: int) -> int:
    """Return which of ``count`` sorted next hops a hash value picks (its upper half, scaled)."""
    return ((value >> 32) * count) >> 32


def nic_address(nic: int) -> int:
    """Return the IPv4 address of dense NIC number ``nic``: 10.0.0.0 and up."""
    return _FIRST_ADDRESS + nic


def connection_id(source_nic: int, destination_nic: int) -> int:
    """Return the identity of a connection between two dense NIC numbers."""
    return source_nic << 32 | destination_nic


def roce_source_port(queue_pair: int, connection: int) -> int:
    """Return the UDP source port of a queue pair: its entropy for the hash.

    RoCEv2 leaves the source port to the sender so that switches can spread queue pairs; drivers
    derive it from the queue pair number and keep it among the dynamic ports.
    """
    return _FIRST_SOURCE_PORT + mix(queue_pair ^ mix(connection)) % _SOURCE_PORTS


def source_ports(
    queue_pair: NDArray[np.uint64], connection: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return `roce_source_port` of many queue pairs at once, uint64 (n,)."""
    mixed = _mix_words(queue_pair ^ _mix_words(connection))
    return np.uint64(_FIRST_SOURCE_PORT) + mixed % np.uint64(_SOURCE_PORTS)


def _mix_words(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = np.uint64
    value = value + word(_GOLDEN)
    value = (value ^ (value >> word(30))) * word(_FIRST)
    value = (value ^ (value >> word(27))) * word(_SECOND)
    return value ^ (value >> word(31))


def hash_states(seed: int, count: int, *, polarised: bool = False) -> NDArray[np.uint64]:
    """Return for switch identities 0..count-1 the hash before any word of the flow is mixed in.

    Parameters
    ----------
    seed
        Global seed of the run.
    count
        Number of identities.
    polarised
        Give every switch the seed of switch 0.
    """
    identities = np.zeros(count, np.uint64) if polarised else np.arange(count, dtype=np.uint64)
    return _mix_words(_mix_words(np.uint64(seed & _MASK) ^ _mix_words(identities)))
