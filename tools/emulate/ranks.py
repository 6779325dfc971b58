# SPDX-License-Identifier: Apache-2.0
"""Runs a program once per rank, each on its host of the emulated network, as torchrun would.

Every rank gets the environment of torchrun (PyTorch, "torchrun (Elastic Launch)", environment
variables) and ``GLOO_SOCKET_IFNAME`` with the interface of its GPU's NIC.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from railweave.tools.emulate.lab import Lab
    from railweave.tools.emulate.plan import NetworkPlan

__all__ = ["RankEnd", "check_command", "first_failure", "rank_environment", "run_ranks"]

_MASTER_PORT: Final = 29500
_TURN_NS: Final = 100_000_000


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended: its exit code, -N where signal N ended it."""

    rank: int
    code: int


def rank_environment(plan: NetworkPlan, gpus: Sequence[int]) -> list[dict[str, str]]:
    """Return the environment of each rank.

    Parameters
    ----------
    plan
        The network.
    gpus
        Device index of each rank's GPU (or NIC).

    Raises
    ------
    InputError
        A rank's GPU has no NIC with a cable.
    """
    fabric = plan.fabric
    hosts = [int(fabric.host[gpu]) for gpu in gpus]
    sizes = Counter(hosts)
    groups = {host: k for k, host in enumerate(dict.fromkeys(hosts))}
    seen: Counter[int] = Counter()
    found = []
    for rank, (gpu, host) in enumerate(zip(gpus, hosts, strict=True)):
        nic = plan.nic_of(gpu)
        ways = plan.leaving(nic) if nic >= 0 else []
        if not ways:
            raise InputError(
                f"'{fabric.device_names[gpu]}' of rank {rank} has no NIC on the network",
                expected="GPUs that have one",
            )
        found.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(gpus)),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(sizes[host]),
                "GROUP_RANK": str(groups[host]),
                "GROUP_WORLD_SIZE": str(len(groups)),
                "ROLE_RANK": str(rank),
                "ROLE_WORLD_SIZE": str(len(gpus)),
                "MASTER_ADDR": plan.address(plan.nic_of(gpus[0])),
                "MASTER_PORT": str(_MASTER_PORT),
                "TORCHELASTIC_RUN_ID": "railweave",
                "GLOO_SOCKET_IFNAME": ways[0].name,
                "OMP_NUM_THREADS": "1",
            }
        )
        seen[host] += 1
    return found


def run_ranks(
    lab: Lab,
    gpus: Sequence[int],
    command: Sequence[str],
    *,
    said: Callable[[int, str, str], None],
    extra: Mapping[str, str] | None = None,
) -> list[RankEnd]:
    """Run a command once per rank and wait for all; one that fails ends the others.

    Parameters
    ----------
    said
        Called with rank, ``out`` or ``err``, and a line of its output.
    extra
        More variables for every rank.

    Raises
    ------
    OverTimeError
        The time limit has come.
    """
    environments = rank_environment(lab.plan, gpus)
    lab.begin()
    for rank, (gpu, environment) in enumerate(zip(gpus, environments, strict=True)):
        lab.sandbox.call(
            "spawn",
            rank=rank,
            namespace=lab.plan.namespace(gpu),
            command=list(command),
            env={**environment, **(extra or {})},
        )
    ends: list[RankEnd] = []
    try:
        while len(ends) < len(gpus):
            event = lab.sandbox.event(time.monotonic_ns() + _TURN_NS)
            lab.check_time(time.monotonic_ns())
            if event is None:
                continue
            if event["event"] == "said":
                said(event["rank"], event["stream"], event["line"])
            elif event["event"] == "exited":
                ends.append(RankEnd(rank=event["rank"], code=event["code"]))
                if event["code"] and len(ends) < len(gpus):
                    lab.sandbox.call("end_ranks")
            else:
                lab.heard(event)
    finally:
        lab.sandbox.call("end_ranks")
        lab.end(programs=True)
    return ends


def first_failure(ends: Sequence[RankEnd]) -> RankEnd | None:
    """Return the first rank that failed, in order of their ends."""
    return next((end for end in ends if end.code), None)


def check_command(command: Sequence[str]) -> None:
    """Raise `InputError` where there is no program to run."""
    if shutil.which(command[0]) is None:
        raise InputError(
            f"there is no program '{command[0]}'", field="command", expected="one on the PATH"
        )
