# SPDX-License-Identifier: Apache-2.0
"""What RDMA writes of perftest should reach: the line, less the headers of each packet.

RoCEv2 carries 82 bytes beside the payload of a packet: preamble 8, Ethernet 14, IPv4 20, UDP 8,
BTH 12, ICRC 4, FCS 4 and gap 12 (IEEE 802.3; InfiniBand Architecture Specification, annex A17), and
16 of RETH in the first. InfiniBand carries LRH 8, BTH 12, ICRC 4, VCRC 2 (section 5.2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from railweave.tools.measured.data import DataSet

__all__ = ["line_rate_bps", "predict_write_s"]

_ROCE: Final = 82
_INFINIBAND: Final = 26
_RETH: Final = 16
_LINES: Final = tuple(rate * 10**9 for rate in (10, 25, 40, 50, 56, 100, 200, 400, 800))


def line_rate_bps(data: DataSet) -> int:
    """Return the rate of the line: as the link says, else the least that carries the best row.

    Raises
    ------
    InputError
        The best row is faster than any line.
    """
    told = re.search(r"(\d+)\s*G(?!B)", data.link)
    if told:
        return int(told[1]) * 10**9
    best = max(row.size_bytes * 8e6 / row.time_us for row in data.rows)
    for line in _LINES:
        if best <= line:
            return line
    raise InputError(f"{best / 1e9:g} Gb/s is faster than any port", expected="a rate of one NIC")


def predict_write_s(data: DataSet, size_bytes: int) -> float:
    """Return the time of a message in a stream of them, in s, on the wire alone."""
    roce = not re.search(r"\bIB\b|infiniband", data.link, re.IGNORECASE)
    mtu = int(re.sub(r"\D.*", "", str(data.facts.get("mtu", "4096"))) or 4096)
    packets = -(-size_bytes // mtu)
    extra = packets * (_ROCE if roce else _INFINIBAND) + _RETH
    return (size_bytes + extra) * 8 / line_rate_bps(data)
