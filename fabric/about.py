# SPDX-License-Identifier: Apache-2.0
"""What the schema says of a setting: its meaning, unit, default, and where that comes from."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASSUMED",
    "ASTRA",
    "DCQCN",
    "EQDS",
    "HPCC",
    "IBTA",
    "NCCL",
    "NVIDIA",
    "PFC",
    "ROCE",
    "SONIC",
    "UEC",
    "about",
]

ASSUMED: Final = "assumed"
ASTRA: Final = "ASTRA-sim's sample configuration of ns-3"
DCQCN: Final = "Zhu et al., Congestion control for large-scale RDMA deployments, SIGCOMM 2015"
EQDS: Final = "Olteanu et al., An edge-queued datagram service, NSDI 2022"
HPCC: Final = "public code of Li et al., HPCC: high precision congestion control, SIGCOMM 2019"
IBTA: Final = "InfiniBand Architecture Specification, volume 1"
NCCL: Final = "NCCL's own default"
NVIDIA: Final = "NVIDIA, DCQCN parameters (enterprise-support.nvidia.com)"
PFC: Final = "IEEE 802.1Qbb and IEEE 802.3 annex 31B"
ROCE: Final = "RoCEv2: InfiniBand Architecture Specification, annex A17"
SONIC: Final = "PFC Watchdog in SONiC (github.com/sonic-net/SONiC/wiki)"
UEC: Final = "Ultra Ethernet Specification 1.0 and its public model"


def about(what: str, default: str | None = None, source: str = ASSUMED, *, unit: str = "") -> str:
    """Return the description of a setting.

    Parameters
    ----------
    what
        What it means.
    default
        What holds where nothing is said; None: it must be given.
    source
        Where the default comes from.
    unit
        Of its value; none for words, truth values and names.

    Examples
    --------
    >>> about("What one pull grants", "4", unit="packets")
    'What one pull grants. Unit: packets. Default: 4 (assumed).'
    >>> about("What happens")
    'What happens. Required.'
    """
    text = f"{what}."
    if unit:
        text += f" Unit: {unit}."
    if default is None:
        return f"{text} Required."
    return f"{text} Default: {default} ({source})."
