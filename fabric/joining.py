# SPDX-License-Identifier: Apache-2.0
"""Two fabrics as one: what is added keeps its own links, what was there keeps its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["joined"]


def joined(fabric: Fabric, more: Fabric) -> Fabric:
    """Return a fabric with the devices and cables of another after its own.

    Devices, hosts, links, NICs and switches of ``fabric`` keep their numbers, so that hashes and
    the paths that they choose are the same with and without ``more``.

    Parameters
    ----------
    fabric
        What is there.
    more
        What is added; the host numbers of its devices are those of the whole: hosts of ``fabric``
        first, then its own.
    """
    first = np.int32(fabric.n_devices)

    def column(name: str) -> NDArray[np.int32]:
        return np.concatenate((getattr(fabric, name), getattr(more, name)))

    return replace(
        fabric,
        device_names=fabric.device_names + more.device_names,
        kind=column("kind"),
        host=column("host"),
        index=column("index"),
        tier=column("tier"),
        group=column("group"),
        rail=column("rail"),
        model=fabric.model + more.model,
        host_names=fabric.host_names + more.host_names,
        link_src=np.concatenate((fabric.link_src, more.link_src + first)),
        link_dst=np.concatenate((fabric.link_dst, more.link_dst + first)),
        link_src_port=column("link_src_port"),
        link_dst_port=column("link_dst_port"),
        link_rate_bps=np.concatenate((fabric.link_rate_bps, more.link_rate_bps)),
        link_delay_ps=np.concatenate((fabric.link_delay_ps, more.link_delay_ps)),
        link_model=column("link_model"),
        link_tier=fabric.link_tier + more.link_tier,
        link_up=np.concatenate((fabric.link_up, more.link_up)),
        gpu_nic=np.concatenate(
            (fabric.gpu_nic, np.where(more.gpu_nic < 0, np.int32(-1), more.gpu_nic + first))
        ),
    )
