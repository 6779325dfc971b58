# SPDX-License-Identifier: Apache-2.0
"""What messages between ranks cost on an idle network, and errors in the words of who asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.collectives import plan
from railweave.collectives.algorithm import Links
from railweave.fabric.errors import InputError, UnreachableError
from railweave.fabric.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.fabric.engine import Engine

__all__ = ["links_between", "renamed"]

_LONG_BYTES: Final = 2**26  # a message whose time is its size over the rate


def links_between(engine: Engine, ranks: Sequence[int], hosts: Sequence[int]) -> Links | None:
    """Return what a message between two ranks costs on an idle network, or None if none gets there.

    Parameters
    ----------
    engine
        Over the fabric and with the settings that count.
    ranks, hosts
        Device index of each rank's GPU, and its host. Between hosts the first ranks of the first
        and of the last host are looked at, within one its first and last rank.
    """
    first, last = hosts.index(hosts[0]), hosts.index(hosts[-1])
    within = max(at for at, host in enumerate(hosts) if host == hosts[0])
    try:
        local = _message(engine, ranks[first], ranks[within]) if within != first else None
        across = _message(engine, ranks[first], ranks[last]) if last != first else None
    except UnreachableError:
        return None  # whoever sends there says so
    between, inside = across or local, local or across
    if between is None or inside is None:
        return None
    return Links(
        alpha_ps=between[0],
        rate_bps=between[1],
        local_alpha_ps=inside[0],
        local_rate_bps=inside[1],
    )


def _message(engine: Engine, source: int, target: int) -> tuple[int, int]:
    """Return latency in ps and rate in bit/s of messages between two GPUs."""
    alpha_ps, long_ps = (
        engine.bound_ps(plan("send", ranks=2, size_bytes=size, algorithm="pair"), [source, target])
        for size in (0, _LONG_BYTES)
    )
    return alpha_ps, max(round(_LONG_BYTES * 8 * PS_PER_S / max(long_ps - alpha_ps, 1)), 1)


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """Return an error that speaks of options by the names that ``names`` gives them."""
    if error.field is None:
        return error
    message, expected = error.message, error.expected
    for name, shown in names.items():
        message = message.replace(f"'{name}'", f"'{shown}'")
        expected = expected.replace(name, shown) if expected else expected
    return InputError(
        message,
        file=error.file,
        line=error.line,
        field=names.get(error.field, error.field),
        expected=expected,
        nearest=error.nearest,
    )
