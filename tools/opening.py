# SPDX-License-Identifier: Apache-2.0
"""Open what a command was given: a topology by its file or its name."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.fabric.graph import Fabric
    from railweave.topologies.spec import TopologySpec

__all__ = ["in_option", "open_topology"]


def open_topology(source: str) -> "tuple[TopologySpec, Fabric]":
    """Load and build a topology file or a shipped design."""
    from railweave.topologies.load import build_topology, load_topology

    spec = load_topology(source)
    return spec, build_topology(spec)


@contextmanager
def in_option(name: str) -> "Iterator[None]":
    """Say of what is wrong with a value which option it was given for."""
    from railweave.fabric.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.located(field=name) from None
