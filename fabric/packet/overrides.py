# SPDX-License-Identifier: Apache-2.0
"""Links whose buffers, pauses, marks or losses are not those of the whole network.

Marks, losses and the response to pauses belong to the link that sends; thresholds, reserve and
headroom to what arrives by a link in the switch at its end. A key of a link goes before that of the
network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.packet import layout as lay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.state import PacketState

__all__ = ["link_keys", "override"]

LinkKeys = tuple["NDArray[np.int64]", "Mapping[str, Any]"]
_INGRESS: Final = ("reserve", "room", "xoff", "hysteresis")


def link_keys(fabric: Fabric) -> list[LinkKeys]:
    """Return the links of a fabric that have keys of their own, and these."""
    given = fabric.meta.get("link_keys", ())
    return [(np.array(links, np.int64), keys) for links, keys in given]


def override(state: PacketState, links: NDArray[np.int64], keys: Mapping[str, Any]) -> None:
    """Write the keys of some links over those of the network."""
    classes, settings = len(state.priorities), state.settings
    if "response_ps" in keys:
        state.ports.response[links] = keys["response_ps"]
    for klass, priority in enumerate(state.priorities[:-1]):
        queues = links * classes + klass
        _set_marks(state, queues, keys)
        if priority not in settings.lossless:
            continue
        paused = queues[state.ingress.kind[queues] == 1]
        if keys.get("pfc") is False:
            for name in ("kind", "reserve", "room"):
                state.ingress[name][paused] = 0
            continue
        for name in _INGRESS:
            if name in keys:
                state.ingress[name][paused] = keys[name]
        if "xoff" in keys:
            below = max(keys["xoff"] - keys.get("hysteresis", settings.hysteresis_bytes), 0)
            state.ingress.alpha[paused] = 0.0
            state.ingress.xon[paused] = keys.get("xon", below)
        elif "alpha" in keys:
            state.ingress.alpha[paused] = keys["alpha"]


def _set_marks(state: PacketState, queues: NDArray[np.int64], keys: Mapping[str, Any]) -> None:
    if keys.get("ecn") is False:
        state.egress.kmin[queues] = state.egress.kmax[queues] = lay.FOREVER
        return
    for name in ("kmin", "kmax", "pmax"):
        if name in keys:
            state.egress[name][queues] = keys[name]
