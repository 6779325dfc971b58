# SPDX-License-Identifier: Apache-2.0
"""Whether replicas are alike, so that one schedule may run all of them in step.

Replicas whose messages take paths of equal links in the same pattern, and that meet on no link
that could hold anyone back, take equal times to the picosecond: running them in lockstep changes
nothing. A link cannot hold anyone back if all the links of single replicas that feed it, NICs in
the end, bring less together than it carries.

Only messages within replicas are looked at. What all replicas do together, such as summing their
gradients, may share links with them; replicas in lockstep are then delayed alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.routing import Routing

__all__ = ["alike"]


def alike(fabric: Fabric, routing: Routing, pairs: Sequence[NDArray[np.int32]]) -> bool:
    """Tell whether replicas would take equal times for the same messages.

    Parameters
    ----------
    fabric, routing
        Where they run; with one queue pair for each connection.
    pairs
        For each replica, int32 (messages, 2): sending and receiving device of each of its
        messages, in the same order for all.
    """
    if len(pairs) < 2 or not len(pairs[0]):
        return len({len(own) for own in pairs}) <= 1
    if len({len(own) for own in pairs}) > 1:
        return False
    links, lane, path, share = [], [], [], []
    like: tuple[NDArray[np.int64], ...] | None = None
    for number, own in enumerate(pairs):
        found = routing.routes(own[:, 0], own[:, 1])
        lengths = np.diff(found.ptr)
        at = found.links.astype(np.int64)
        shape = (
            lengths.astype(np.int64),
            fabric.link_rate_bps[at],
            fabric.link_delay_ps[at],
            fabric.link_model[at].astype(np.int64),
            found.share.view(np.int64),
            _pattern(at),
            _pattern(at >> 1),
        )
        if like is None:
            like = shape
        elif not all(
            np.array_equal(mine, theirs) for mine, theirs in zip(shape, like, strict=True)
        ):
            return False
        links.append(at)
        share.append(found.share)
        lane.append(np.full(len(at), number))
        path.append(np.repeat(np.arange(len(own)), lengths) + number * len(own))
    return _never_meet(
        fabric, np.concatenate(links), np.concatenate(share), np.concatenate(lane),
        np.concatenate(path),
    )  # fmt: skip


def _pattern(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each value, where it appears first: what renumbering would not change."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _never_meet(
    fabric: Fabric,
    links: NDArray[np.int64],
    share: NDArray[np.float64],
    lane: NDArray[np.int64],
    path: NDArray[np.int64],
) -> bool:
    """Tell whether no link of several replicas can ever be full."""
    cable = links >> 1
    lowest = np.full(int(cable.max()) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, cable, lane)
    np.maximum.at(highest, cable, lane)
    shared = (lowest < highest)[cable]
    if not shared.any():
        return True
    # The narrowest link of each path that is one replica's own; unsprayed, since all pass it.
    rate = fabric.link_rate_bps[links].astype(np.float64)
    own = np.where(shared | (share < 1.0), np.inf, rate)
    order = np.lexsort((own, path))
    first = np.unique(path[order], return_index=True)[1]
    narrowest = order[first]  # by path
    if np.isinf(own[narrowest]).any():
        return False
    feeder = links[narrowest][path[shared]]
    fed = links[shared]
    load = np.zeros(fabric.n_links)
    # Data, and on the way back their acknowledgements, which leave by the same NICs.
    for to, source in ((fed, feeder), (fed ^ 1, feeder ^ 1)):
        code = to * fabric.n_links + source
        used, row = np.unique(code, return_inverse=True)
        most = np.zeros(len(used))
        np.maximum.at(most, row, share[shared])
        rates = fabric.link_rate_bps[used % fabric.n_links]
        np.add.at(load, used // fabric.n_links, most * rates)
    return bool((load <= fabric.link_rate_bps * (1 + 1e-9))[np.unique(fed)].all())
