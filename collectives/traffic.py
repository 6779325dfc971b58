# SPDX-License-Identifier: Apache-2.0
"""What each algorithm of NCCL sends: steps one after another, and bytes over the busiest links.

These counts are those of the schedules that `railweave.collectives.plan` makes of the same
algorithms; a device profile turns them into a time (`railweave.collectives.predict`).
"""

from __future__ import annotations

from dataclasses import dataclass

from railweave.collectives.double_tree import tree_depth, tree_load
from railweave.collectives.operations import canonical_op, operation
from railweave.fabric.errors import InputError

__all__ = ["Traffic", "traffic_of"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Counts of one operation.

    Parameters
    ----------
    steps, net_steps
        Messages that wait for each other, within nodes and between them.
    link_bytes
        Payload over the busiest direction of a GPU's links in its node.
    node_bytes
        Payload that the busiest node sends (or receives) over all its NICs.
    copy_bytes
        What a GPU moves from one of its buffers to the other.
    """

    steps: int
    net_steps: int
    link_bytes: float
    node_bytes: float
    copy_bytes: float = 0.0


def traffic_of(
    op: str, algorithm: str, *, size_bytes: int, nodes: int, gpus_per_node: int
) -> Traffic:
    """Return the counts of an operation by one of NCCL's algorithms.

    Parameters
    ----------
    op
        Operation, by any of its names.
    algorithm
        One of NCCL's; ``P2P`` for operations made of sends.
    size_bytes
        The full logical buffer.
    nodes, gpus_per_node
        Who takes part.

    Examples
    --------
    >>> two = traffic_of("all_reduce", "NVLSTree", size_bytes=800, nodes=2, gpus_per_node=8)
    >>> two.node_bytes, two.net_steps  # half of what a ring's 1.875 * 800 would be
    (800.0, 2)
    """
    op, size, per_node = canonical_op(op), float(size_bytes), gpus_per_node
    ranks, levels = nodes * per_node, tree_depth(nodes)
    if ranks == 1:
        return Traffic(steps=0, net_steps=0, link_bytes=0.0, node_bytes=0.0)
    share = float(operation(op).bus_factor(ranks))
    inside = per_node > 1
    if algorithm == "P2P":
        return _point_to_point(op, size, nodes, per_node)
    if algorithm == "Ring":
        turns = 2 if op == "all_reduce" else 1
        over = turns * (nodes - 1)
        moved = share * size
        shared = op in ("all_reduce", "all_gather", "reduce_scatter")
        return Traffic(
            steps=turns * (ranks - 1) - over,
            net_steps=over,
            link_bytes=moved if inside else 0.0,
            node_bytes=moved if nodes > 1 else 0.0,
            copy_bytes=size / ranks if shared else 0.0,
        )
    if algorithm == "Tree":
        return Traffic(
            steps=2 * (per_node - 1),
            net_steps=2 * levels,
            link_bytes=2 * size * (per_node - 1) / per_node,  # chains of channels begin anywhere
            node_bytes=float(tree_load(nodes)) * size,
        )
    if algorithm == "PAT":
        return Traffic(steps=0, net_steps=levels, link_bytes=0.0, node_bytes=share * size)
    if algorithm in ("NVLS", "NVLSTree", "CollNetDirect", "CollNetChain"):
        return _in_network(op, algorithm, size, nodes, per_node)
    raise InputError(f"{op} by {algorithm} is not known", field="algorithm")


def _in_network(op: str, algorithm: str, size: float, nodes: int, per_node: int) -> Traffic:
    levels = tree_depth(nodes)
    others = (per_node - 1) / per_node
    if algorithm == "CollNetDirect":  # parts of a slice to its owner, copies of it back
        return Traffic(
            steps=2 if per_node > 1 else 0,
            net_steps=2 if nodes > 1 else 0,
            link_bytes=2 * size * others,
            node_bytes=size if nodes > 1 else 0.0,
        )
    if algorithm == "CollNetChain":
        return Traffic(
            steps=2 * (per_node - 1),
            net_steps=2 if nodes > 1 else 0,
            link_bytes=2 * size if per_node > 1 else 0.0,
            node_bytes=size if nodes > 1 else 0.0,
        )
    if op == "all_reduce":
        link = size * (per_node + 1) / per_node if per_node > 1 else 0.0
    else:
        link = size * (others if op == "all_gather" else 1.0)
    if algorithm == "NVLSTree":
        return Traffic(
            steps=1,
            net_steps=2 * levels,
            link_bytes=link,
            node_bytes=float(tree_load(nodes)) * size,
        )
    return Traffic(
        steps=1,
        net_steps=2 if nodes > 1 else 0,
        link_bytes=link,
        node_bytes=size if nodes > 1 else 0.0,
    )


def _point_to_point(op: str, size: float, nodes: int, per_node: int) -> Traffic:
    ranks = nodes * per_node
    if op in ("send", "recv"):
        return Traffic(
            steps=1 if nodes == 1 else 0,
            net_steps=0 if nodes == 1 else 1,
            link_bytes=size if per_node > 1 else 0.0,
            node_bytes=size if nodes > 1 else 0.0,
        )
    away = (ranks - per_node) / ranks
    senders = per_node if op == "all_to_all" else 1  # gather and scatter have one root
    return Traffic(
        steps=1,
        net_steps=1 if nodes > 1 else 0,
        link_bytes=size * (per_node - 1) / ranks,
        node_bytes=senders * size * away if nodes > 1 else 0.0,
        copy_bytes=size / ranks,
    )
