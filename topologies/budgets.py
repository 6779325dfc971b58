# SPDX-License-Identifier: Apache-2.0
"""What a switch can carry: ports of each rate, and its total."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from railweave.fabric.devices import SwitchModel
    from railweave.fabric.graph import Fabric

__all__ = ["check_budget", "overfull_switches", "shortage"]


def shortage(model: SwitchModel, ports: Mapping[int, int]) -> str | None:
    """Say what a switch lacks to carry ``ports`` (rate in bit/s -> number), or None.

    A link occupies the slowest port that is fast enough for it; ports of several rates share the
    switch's total.

    Examples
    --------
    >>> from railweave.fabric.devices import switch_model
    >>> shortage(switch_model("quantum-2"), {400 * 10**9: 72})
    'needs 72 ports of 400Gbps, but quantum-2 has 64'
    """
    used: Counter[int] = Counter()
    for rate_bps, number in ports.items():
        mode = model.port_mode_bps(rate_bps)
        if mode is None:
            fastest = format_rate(max(model.ports))
            return f"needs ports of {format_rate(rate_bps)}, but those of {model.name} do {fastest}"
        used[mode] += number
    for mode, number in used.items():
        if number > model.ports[mode]:
            has = model.ports[mode]
            return f"needs {number} ports of {format_rate(mode)}, but {model.name} has {has}"
    total = sum(mode * number for mode, number in used.items())
    if total > model.capacity_bps:
        carries = format_rate(model.capacity_bps)
        return f"needs {format_rate(total)} of ports, but {model.name} carries {carries}"
    return None


def check_budget(what: str, model: SwitchModel, ports: Mapping[int, int], *, field: str) -> None:
    """Refuse a switch that cannot carry its ports, with both numbers."""
    lacking = shortage(model, ports)
    if lacking:
        raise InputError(f"{what} {lacking}", field=field)


def overfull_switches(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Yield the name of each switch of a fabric that lacks ports, and what it lacks."""
    src, rate_bps = fabric.link_src[fabric.link_network], fabric.link_rate_bps[fabric.link_network]
    if not len(src):  # one host alone
        return
    rates, mode = np.unique(rate_bps, return_inverse=True)
    used = np.bincount(src * len(rates) + mode, minlength=fabric.n_devices * len(rates))
    found: dict[tuple[str, bytes], str | None] = {}  # most switches of a fabric are alike
    for device, row in zip(
        fabric.switches.tolist(), used.reshape(-1, len(rates))[fabric.switches], strict=True
    ):
        model = fabric.model[device]
        if not model or not row.any():
            continue
        key = (model, row.tobytes())
        if key not in found:
            ports = {int(r): int(n) for r, n in zip(rates, row, strict=True) if n}
            found[key] = shortage(switch_model(model), ports)
        lacking = found[key]
        if lacking:
            yield fabric.device_names[device], lacking
