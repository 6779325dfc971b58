# SPDX-License-Identifier: Apache-2.0
"""What starts, fails and recovers together: a replica, or attention replicas of shared experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    import simpy

    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.sequence import Sequence

__all__ = ["Group", "groups_of"]


@dataclass(frozen=True, eq=False)
class Group:
    """Replicas that are there all or not at all: one, or those that share experts.

    Parameters
    ----------
    members
        At least one.
    """

    members: tuple[Replica, ...]

    @property
    def pool(self) -> str:
        """Its pool."""
        return self.members[0].plan.pool

    @property
    def name(self) -> str:
        """``decode3``."""
        return self.members[0].plan.group_name

    @property
    def devices(self) -> tuple[int, ...]:
        """Device index of the GPU of every rank."""
        return tuple(device for one in self.members for device in one.plan.devices)

    @property
    def up(self) -> bool:
        """Whether it serves."""
        return self.members[0].up

    @property
    def empty(self) -> bool:
        """Whether no request is here."""
        return all(one.empty for one in self.members)

    @property
    def lost(self) -> simpy.Event:
        """Fails when it goes down."""
        return self.members[0].lost

    def fail(self) -> list[Sequence]:
        """Go down and return what is lost."""
        return [sequence for one in self.members for sequence in one.fail()]

    def recover(self) -> None:
        """Serve again, with nothing in memory."""
        for one in self.members:
            one.recover()


def groups_of(replicas: Many[Replica]) -> list[Group]:
    """Return the groups of a pool, in order."""
    found: dict[str, list[Replica]] = {}
    for replica in replicas:
        found.setdefault(replica.plan.group_name, []).append(replica)
    return [Group(tuple(members)) for members in found.values()]
