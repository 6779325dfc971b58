# SPDX-License-Identifier: Apache-2.0
"""KV caches between a prefill and a decode replica, as flows between their ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from railweave.fabric.chain import parallel
from railweave.fabric.flow import Flow
from railweave.fabric.units import PS_PER_S
from railweave.workloads.kv_transfer import KvTransfer, kv_matrix
from railweave.workloads.serving.handoff.posting import Posting, Posts

if TYPE_CHECKING:
    from railweave.fabric.engine import Engine
    from railweave.fabric.graph import Fabric
    from railweave.fabric.routing import Routing
    from railweave.workloads.serving.replica_plan import ReplicaPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["KvMover", "Piece"]


class Piece(NamedTuple):
    """Bytes from a prefill rank to a decode rank, and the messages that they are posted as."""

    src_rank: int
    dst_rank: int
    size_bytes: int
    messages: int

    def part(self, number: int, parts: int) -> Piece:
        """Return one of some parts as even as whole bytes and messages are.

        Examples
        --------
        >>> pieces = [Piece(0, 1, 10, 3).part(number, 2) for number in range(2)]
        >>> [(piece.size_bytes, piece.messages) for piece in pieces]
        [(5, 1), (5, 2)]
        """
        size, messages = (
            whole * (number + 1) // parts - whole * number // parts
            for whole in (self.size_bytes, self.messages)
        )
        return Piece(self.src_rank, self.dst_rank, size, messages)


@dataclass(kw_only=True)
class KvMover:
    """Moves caches between replicas of two pools.

    Parameters
    ----------
    shape
        The model.
    prefill_tp, prefill_pp, decode_tp, decode_pp
        How it is divided on both sides.
    block
        Tokens of a KV block; whole blocks move.
    kv_dtype
        Number format of the cache.
    prefix
        What the ids of its flows begin with.
    message_ps
        Time that a rank takes to post a message (`KvTransfer.messages`), in ps; it posts one after
        another, of all that it sends or reads.
    nic
        ``affine``: each GPU sends through its own NIC; ``single``: all over NVLink to the replica's
        first and out through its; ``rail``: over NVLink to the GPU on the rail of the receiver.
    efficiency
        Payload per wire byte.
    routing
        Where the paths over other NICs come from; None if there are none.
    """

    shape: ModelShape
    prefill_tp: int
    prefill_pp: int
    decode_tp: int
    decode_pp: int = 1
    block: int
    kv_dtype: str | None
    prefix: str
    message_ps: int = 0
    nic: str = "affine"
    efficiency: float = 1.0
    routing: Routing | None = None
    _known: dict[int, KvTransfer] = field(default_factory=dict, repr=False)
    _posts: Posts = field(default_factory=Posts, repr=False)
    _paths: dict[tuple[int, int, int], tuple[int, ...] | None] = field(
        default_factory=dict, repr=False
    )

    def matrix(self, tokens: int) -> KvTransfer:
        """Return which rank sends what to which rank for so many tokens of a cache."""
        whole = -(-tokens // self.block) * self.block
        known = self._known.get(whole)
        if known is None:
            known = self._known[whole] = kv_matrix(
                self.shape,
                self.prefill_tp,
                self.decode_tp,
                whole,
                block=self.block,
                prefill_pp=self.prefill_pp,
                decode_pp=self.decode_pp,
                kv_dtype=self.kv_dtype,
            )
        return known

    def between(self, first: int, end: int) -> list[Piece]:
        """Return what moves for the tokens ``first`` to ``end - 1`` of those that are to move."""
        old, new = self.matrix(first), self.matrix(end)
        before = {
            flow[:2]: (flow.size_bytes, messages)
            for flow, messages in zip(old.transfers, old.messages, strict=True)
        }
        found = []
        for flow, messages in zip(new.transfers, new.messages, strict=True):
            sent, posted = before.get(flow[:2], (0, 0))
            if flow.size_bytes > sent:
                found.append(Piece(*flow[:2], flow.size_bytes - sent, max(messages - posted, 1)))
        return found

    def send(
        self,
        name: str,
        pieces: list[Piece],
        source: ReplicaPlan,
        target: ReplicaPlan,
        engine: Engine,
        *,
        read: bool,
    ) -> list[Posting]:
        """Start the flows of some pieces now, or as soon as their rank has posted what it has.

        Parameters
        ----------
        name
            What their ids begin with.
        read
            Whether the decode side posts (RDMA READ), or the prefill side (WRITE).
        """
        started = []
        for piece in pieces:
            src, dst = source.devices[piece.src_rank], target.devices[piece.dst_rank]
            posting_ps = piece.messages * self.message_ps
            cap = None
            if posting_ps:
                wire_bits = piece.size_bytes * 8 / self.efficiency
                cap = max(int(wire_bits * PS_PER_S / posting_ps), 1)
            flow = Flow(
                id=f"{self.prefix}{name}.kv{piece.src_rank}-{piece.dst_rank}",
                src=src,
                dst=dst,
                size_bytes=piece.size_bytes,
                cap_bps=cap,
                path=self._path(src, dst, source.devices[0], engine.fabric),
                tag="kv",
            )
            started.append(self._posts.post(flow, dst if read else src, posting_ps, engine))
        return started

    def _path(self, src: int, dst: int, first: int, fabric: Fabric) -> tuple[int, ...] | None:
        """Return the links over another NIC than the sender's own; None where it is its own."""
        key = (src, dst, first)
        if self.nic == "affine" or self.routing is None:
            return None
        if key not in self._paths:
            self._paths[key] = self._detour(src, dst, first, fabric)
        return self._paths[key]

    def _detour(self, src: int, dst: int, first: int, fabric: Fabric) -> tuple[int, ...] | None:
        if fabric.host[src] == fabric.host[dst]:
            return None
        over = first
        if self.nic == "rail":
            hosts = fabric.host[fabric.gpus]
            place = int(np.flatnonzero(fabric.gpus[hosts == fabric.host[dst]] == dst)[0])
            siblings = fabric.gpus[hosts == fabric.host[src]]
            over = int(siblings[place]) if place < len(siblings) else src
        if over == src or fabric.host[over] != fabric.host[src]:
            return None
        assert self.routing is not None
        ends = np.array([[src, over], [over, dst]], np.int32)
        routes = self.routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), np.zeros(2, np.int32))
        return (*routes.path(0), *routes.path(1))

    def together_ps(
        self, pieces: list[Piece], source: ReplicaPlan, target: ReplicaPlan, engine: Engine
    ) -> int:
        """Return the least that pieces together take on an empty fabric, in ps."""
        if not pieces or self.nic != "affine":
            return 0
        ranks = (*source.devices, *target.devices)
        first = len(source.devices)  # rank of the first target
        together = parallel(
            len(ranks),
            tuple((piece.src_rank, first + piece.dst_rank) for piece in pieces),
            tuple(piece.size_bytes for piece in pieces),
            op="kv",
        )
        return engine.bound_ps(together, ranks)
