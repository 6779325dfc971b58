# SPDX-License-Identifier: Apache-2.0
"""Placement: which GPU each rank sits on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.graph import DeviceKind
from railweave.fabric.words import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric

__all__ = ["POLICIES", "place"]

POLICIES: Final = ("packed", "random", "list")
_STREAM_DOMAIN: Final = 5  # random streams of workloads
_FIRST_STREAM: Final = 2**31  # placements count from here, processes from 0


def place(
    fabric: Fabric,
    policy: str,
    n: int | None,
    *,
    gpus: Sequence[str] | None = None,
    seed: int = 1,
    stream: int = 0,
    taken: Collection[int] = (),
) -> NDArray[np.int32]:
    """Choose the GPU of each rank.

    Parameters
    ----------
    fabric
        The fabric.
    policy
        ``packed``: GPUs in host order; ``random``: a random order; ``list``: as ``gpus`` says.
    n
        Number of ranks; None: as many as there are free GPUs (or names in the list).
    gpus
        For ``list``: names of GPUs, or of hosts for all their GPUs; rank r gets the r-th.
    seed, stream
        For ``random``: the run's seed, and the number of this placement within the run.
    taken
        Device indices of GPUs that are not free.

    Returns
    -------
    int32, shape (n,): device index of each rank's GPU.

    Raises
    ------
    InputError
        More ranks than GPUs, an unknown policy or GPU, or a GPU named twice or taken.

    Notes
    -----
    Random orders come from NumPy's PCG64 over ``SeedSequence(seed, spawn_key=(5, 2**31 + stream))``
    so that no other random stream of a run shifts them.
    """
    if policy not in POLICIES:
        raise InputError(
            f"there is no placement policy '{policy}'",
            field="policy",
            expected=" | ".join(POLICIES),
            nearest=nearest_name(policy, POLICIES),
        )
    if (gpus is not None) != (policy == "list"):
        expected = "a list of GPUs" if policy == "list" else "no such key, or policy: list"
        raise InputError(
            "it is missing" if policy == "list" else f"policy {policy} takes no list",
            field="gpus",
            expected=expected,
        )
    held = set(taken)
    if gpus is not None:
        order = _named(fabric, gpus, held)
    else:
        order = [gpu for gpu in fabric.gpus.tolist() if gpu not in held]
    count = len(order) if n is None else n
    if count < 0:
        raise InputError(f"there cannot be {count} ranks", field="ranks", expected="0 or more")
    if count > len(order):
        there = "there is" if len(order) == 1 else "there are"
        where = "the list has" if gpus is not None else there
        noun = "free GPU" if held and gpus is None else "GPU"
        raise InputError(
            f"{plural(count, 'rank')}, but {where} {plural(len(order), noun)}", field="ranks"
        )
    chosen = np.array(order, np.int32)
    if policy == "random":
        key = np.random.SeedSequence(seed, spawn_key=(_STREAM_DOMAIN, _FIRST_STREAM + stream))
        chosen = np.random.Generator(np.random.PCG64(key)).permutation(chosen)
    return chosen[:count]


def _named(fabric: Fabric, names: Sequence[str], held: set[int]) -> list[int]:
    """Return the GPUs of a list of GPU and host names, each once and none of them taken."""
    order: list[int] = []
    seen: set[int] = set()
    for position, name in enumerate(names):
        field = f"gpus.{position}"
        if name in fabric.host_names:
            found = fabric.parts(name, DeviceKind.GPU)
        else:
            try:
                found = [fabric.device(name)]
            except InputError as error:
                raise error.located(field=field) from None
        for gpu in found:
            if fabric.kind[gpu] != DeviceKind.GPU:
                raise InputError(f"'{name}' is not a GPU", field=field, expected="a GPU or a host")
            if gpu in seen or gpu in held:
                how = "named twice" if gpu in seen else "taken by another workload"
                raise InputError(f"'{fabric.device_names[gpu]}' is {how}", field=field)
            seen.add(gpu)
            order.append(gpu)
    return order
