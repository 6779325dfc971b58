# SPDX-License-Identifier: Apache-2.0
"""Finds out, from the inside, what this kernel has: by trying, as its tools list what it lacks."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railweave.tools.emulate.shaping import PORT_CLASSIFIER
from railweave.tools.emulate.spaces import entered, run_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONGESTION", "probe"]

CONGESTION: Final = ("cubic", "reno")
"""Congestion controls that fill a shaped cable evenly; bbr does not."""

_A, _B = "railweave-a", "railweave-b"
_SHAPERS: Final = {
    "htb": ["qdisc add dev probe0 root handle 1: htb default 1",
            "class add dev probe0 parent 1: classid 1:1 htb rate 1mbit quantum 20000"],
    "bpf classifier": [
        f'filter add dev probe0 parent 1: protocol ip bpf bytecode "{PORT_CLASSIFIER}"'
    ],
    "tbf": ["qdisc replace dev probe1 root handle 1: tbf rate 1mbit burst 24kb limit 1mb"],
}  # fmt: skip
_LINKS: Final = {
    "gso_max_size": ["link set dev probe0 gso_max_size 16000"],
    "multipath routes": [
        "addr add 192.0.2.0/31 dev probe0",
        "addr add 192.0.2.2/31 dev probe0",
        "route add 198.51.100.1/32 "
        "nexthop via 192.0.2.1 dev probe0 nexthop via 192.0.2.3 dev probe0",
    ],
    "policy routing": ["rule add from 192.0.2.0 lookup 1000"],
    "route metrics": [
        "route add 198.51.100.2/32 via 192.0.2.1 dev probe0 rto_min 20ms congctl reno"
    ],
}
_SYSCTLS: Final = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/fib_multipath_hash_policy": "3",
    "net/ipv4/fib_multipath_hash_fields": "55",
    "net/ipv4/fib_multipath_hash_seed": "1",
    "net/ipv4/tcp_rmem": "4096 131072 262144",
}


def _try(tool: str, namespace: str | None, lines: Sequence[str]) -> str | None:
    """Return why the lines fail, or None."""
    process = run_batch(tool, namespace, lines)
    _, err = process.communicate()
    if not process.returncode:
        return None
    said = err.decode(errors="replace").strip().split("\n")
    return next((line for line in said if "rror" in line or "nknown" in line), said[0])


def probe() -> dict[str, str | None]:
    """Return feature -> why it is missing, or None where it works; leaves nothing behind."""
    found: dict[str, str | None] = {}
    made = _try("ip", None, [f"netns add {_A}", f"netns add {_B}"])
    found["network namespaces"] = made
    if made:
        return found
    pair = f"link add name probe0 netns {_A} type veth peer name probe1 netns {_B}"
    found["veth"] = _try("ip", None, [pair])
    if found["veth"] is None:
        _try("ip", _A, ["link set dev probe0 up"])
        _try("ip", _B, ["link set dev probe1 up"])
        for name, lines in _LINKS.items():
            found[name] = _try("ip", _A, lines)
        for name, lines in _SHAPERS.items():
            found[name] = _try("tc", _B if name == "tbf" else _A, lines)
    with entered(_A):
        for path, value in _SYSCTLS.items():
            try:
                Path("/proc/sys", path).write_text(value, encoding="ascii")
            except OSError as error:
                found[f"sysctl {path}"] = error.strerror
            else:
                found[f"sysctl {path}"] = None
        for name in CONGESTION:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
                try:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
                except OSError as error:
                    found[f"TCP {name}"] = error.strerror
                else:
                    found[f"TCP {name}"] = None
    _try("ip", None, [f"netns del {_A}", f"netns del {_B}"])
    return found
