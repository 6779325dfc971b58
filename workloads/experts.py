# SPDX-License-Identifier: Apache-2.0
"""What the experts of a layer exchange with the tokens: four ways, by name.

``replicated``: every rank of the group has all tokens (tensor-parallel attention, one replica);
only the outputs are summed. ``allgather_reducescatter``: vLLM's default beside data-parallel
attention; hidden states and router logits of all tokens are gathered, outputs scattered, padded
to the replica with the most tokens; with ``tp`` each rank takes a part of its replica's tokens
and gathers the rest of the outputs at the end. ``mixed``: SGLang without DeepEP; the sum after
attention becomes a reduce_scatter, then the group gathers, and backwards after the experts
(``moe_dispatch`` of ai-dynamo/aiconfigurator). ``all_to_all``: tokens go to their experts and
back, by the byte matrix of a draw (`railweave.workloads.gates`).

The all_to_all is DeepEP's (deepseek-ai/DeepEP, README and ``csrc``). *Low latency*, for decode:
one message for each token and expert, in fp8 ``h`` bytes, a fp32 scale for every 128 and 16 bytes
of source; results come back in bf16. *Normal*, for prefill and training: a token crosses the
network once for each host it visits, to the GPU of its own rail there, and goes on over NVLink
once for each rank; results are summed on the way back. Every MoE layer of a step routes by the
same draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from railweave.fabric.errors import InputError, nearest_name
from railweave.workloads.gates import draw_experts, message_matrix
from railweave.workloads.limits import MOST_DRAWN, check_range
from railweave.workloads.ops import collective, matrix_op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes_model import MoeFeedForward

__all__ = [
    "BACKENDS",
    "ExpertStyle",
    "backend_of",
    "combine_bytes",
    "dispatch_bytes",
    "expert_ops",
    "joins_attention",
]

BACKENDS: Final = ("replicated", "allgather_reducescatter", "mixed", "all_to_all")
_SCALE_GROUP: Final = 128  # elements of a token that share an fp32 scale
_SOURCE_BYTES: Final = 16  # of a low-latency message: where the token came from (an int4)


@dataclass(frozen=True, kw_only=True)
class ExpertStyle:
    """How tokens get to their experts.

    Parameters
    ----------
    backend
        One of `BACKENDS`; None: ``replicated`` for one replica, else
        ``allgather_reducescatter``.
    mode
        Of the all_to_all: ``low_latency`` or ``normal``.
    dispatch_dtype
        Format of hidden states on the way to experts: ``fp8`` or ``bf16``.
    seed, skew
        Of the draw.
    node_limit
        Most hosts that a token's experts may lie on, or None (DeepSeek-V3: 4).
    gpus_per_host
        Ranks of a host.
    """

    backend: str | None = None
    mode: Literal["low_latency", "normal"] = "normal"
    dispatch_dtype: Literal["fp8", "bf16"] = "fp8"
    seed: int = 1
    skew: float = 0.0
    node_limit: int | None = None
    gpus_per_host: int = 8


def backend_of(style: ExpertStyle, plan: ParallelismPlan) -> str:
    """Return the name of the backend that a plan uses.

    Raises
    ------
    InputError
        The name is unknown, or the plan cannot use it.
    """
    if style.backend is None:
        return "replicated" if plan.ep_members == 1 else "allgather_reducescatter"
    if style.backend not in BACKENDS:
        raise InputError(
            f"'{style.backend}' is no way to reach experts",
            field="ep_backend",
            expected=" | ".join(BACKENDS),
            nearest=nearest_name(style.backend, BACKENDS),
        )
    if style.backend == "replicated" and plan.ep_members > 1:
        raise InputError(
            f"the tokens of {plan.ep_members} replicas are not on every rank",
            field="ep_backend",
            expected="another than replicated, or ep no more than tp",
        )
    return style.backend


def joins_attention(style: ExpertStyle, plan: ParallelismPlan) -> bool:
    """Return whether the backend also sums the outputs of the attention block before it."""
    return backend_of(style, plan) == "mixed" and plan.tp > 1


def dispatch_bytes(hidden: int, *, dtype: str, mode: str) -> int:
    """Return the bytes of one message to an expert.

    Examples
    --------
    >>> dispatch_bytes(7168, dtype="fp8", mode="low_latency")
    7408
    >>> dispatch_bytes(7168, dtype="fp8", mode="normal") / (2 * 7168)
    0.515625
    """
    if dtype not in ("fp8", "bf16"):
        raise InputError(f"'{dtype}' is not dispatched", field="dispatch_dtype",
                         expected="fp8 | bf16")  # fmt: skip
    payload = 2 * hidden if dtype == "bf16" else hidden + 4 * -(-hidden // _SCALE_GROUP)
    return payload + (_SOURCE_BYTES if mode == "low_latency" else 0)


def combine_bytes(hidden: int) -> int:
    """Return the bytes of one message back: bf16.

    Examples
    --------
    >>> combine_bytes(7168)
    14336
    """
    return 2 * hidden


def expert_ops(
    block: MoeFeedForward,
    plan: ParallelismPlan,
    style: ExpertStyle,
    *,
    stage: int,
    count: int,
    hidden: int,
    element: int,
    tokens: Sequence[int],
) -> Iterator[TrafficOp]:
    """Yield what ``count`` layers of experts exchange in one stage.

    Parameters
    ----------
    block
        The layer's experts.
    plan, style
        How the model is divided, and how tokens reach experts.
    stage, count
        The stage, and how many such layers it has.
    hidden, element
        Width of a token and bytes of its elements.
    tokens
        Tokens of each replica, padded as the engine does.
    """
    backend, tp, ep = backend_of(style, plan), plan.tp, plan.ep
    busy = any(tokens)
    columns = {"stage": stage, "count": count}
    if not busy:
        return
    if backend == "replicated":
        yield from _of_members(
            "all_reduce", plan, tokens, hidden * element, "outputs of experts", columns
        )
        return
    most = max(tokens)  # replicas with fewer are padded
    if backend == "allgather_reducescatter":
        each = -(-most // tp)
        size = ep * each * element
        yield from collective(
            "all_gather", "ep", ep, size * (hidden + block.experts),
            what="hidden states and router logits", **columns,
        )  # fmt: skip
        yield from collective(
            "reduce_scatter", "ep", ep, size * hidden, what="outputs of experts", **columns
        )
        yield from _of_members(
            "all_gather", plan, [tp * each] * plan.dp, hidden * element, "outputs of experts",
            columns,
        )  # fmt: skip
        return
    if backend == "mixed":
        size = plan.ep_members * most * hidden * element
        whole = [most] * plan.dp
        yield from _of_members(
            "reduce_scatter", plan, whole, hidden * element, "attention outputs", columns
        )
        yield from collective("all_gather", "ep", ep, size, what="hidden states", **columns)
        yield from collective(
            "reduce_scatter", "ep", ep, size, what="outputs of experts", **columns
        )
        yield from _of_members(
            "all_gather", plan, whole, hidden * element, "outputs of experts", columns
        )
        return
    yield from _all_to_all(block, plan, style, stage, count, hidden, tokens)
    shares = [-(-n // tp) for n in tokens]
    yield from _of_members(
        "all_gather",
        plan,
        [tp * n for n in shares],
        hidden * element,
        "outputs of experts",
        columns,
    )


def _of_members(
    op: str,
    plan: ParallelismPlan,
    tokens: Sequence[int],
    token_bytes: int,
    what: str,
    columns: dict[str, int],
) -> Iterator[TrafficOp]:
    """Yield a tensor-parallel operation over each replica's tokens."""
    alike = len(set(tokens)) == 1
    for member, n in [(None, tokens[0])] if alike else enumerate(tokens):
        yield from collective(
            op, "tp", plan.tp, n * token_bytes, member=member, what=what, **columns
        )


def _sources(plan: ParallelismPlan, tokens: Sequence[int]) -> NDArray[np.int32]:
    """Return the rank, counted in a group, that sends each token; ``tp`` ranks share a replica's.

    Where groups have different numbers of tokens, those of the largest.
    """
    blocks = [
        list(tokens[first : first + plan.ep_members])
        for first in range(0, plan.dp, plan.ep_members)
    ]
    fullest = max(blocks, key=sum)
    held = []
    for n in fullest:
        share = -(-n // plan.tp)
        held += [max(min(share, n - t * share), 0) for t in range(plan.tp)]
    return np.repeat(np.arange(len(held), dtype=np.int32), held)


def _all_to_all(
    block: MoeFeedForward,
    plan: ParallelismPlan,
    style: ExpertStyle,
    stage: int,
    count: int,
    hidden: int,
    tokens: Sequence[int],
) -> Iterator[TrafficOp]:
    """Yield dispatch and combine by a draw."""
    ep = plan.ep
    hosts = _Hosts.of(plan, stage, style.gpus_per_host)
    limited = style.node_limit is not None and style.node_limit < hosts.count
    if limited and not hosts.even:
        raise InputError(
            "the hosts of a group have different numbers of its ranks",
            field="node_limit",
            expected="none, or as many ranks of each group on every host",
        )
    groups = range(0, plan.dp, plan.ep_members)
    check_range(
        max(sum(tokens[first : first + plan.ep_members]) for first in groups), "tokens",
        MOST_DRAWN // block.experts, what=f"tokens of a group that visit {block.experts} experts",
    )  # fmt: skip
    source = _sources(plan, tokens)
    routes = draw_experts(
        len(source), block.experts, block.top_k, seed=style.seed, skew=style.skew,
        groups=hosts.count if limited else 1, group_limit=style.node_limit if limited else None,
    )  # fmt: skip
    target = routes // np.int32(block.experts // ep)
    there = dispatch_bytes(hidden, dtype=style.dispatch_dtype, mode=style.mode)
    back = combine_bytes(hidden)
    steps = [("dispatch", message_matrix(source, target, ep, once=False))]
    if style.mode == "normal":
        steps = _by_host(source, target, hosts)
    for name, messages in steps:
        yield from matrix_op(
            messages * there, messages=_most(messages), stage=stage, count=count, what=name
        )
    for name, messages in reversed(steps):
        yield from matrix_op(
            messages.T * back, messages=_most(messages.T), stage=stage, count=count,
            what=name.replace("dispatch", "combine"),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Hosts:
    """Where the ranks of an expert-parallel group sit, counted within the group.

    ``of_rank`` int32 (ranks,): host of each, numbered from 0; ``rail`` int32 (ranks,): its place
    among the ranks of its host; ``peer`` int32 (hosts, rails): the rank of a host that takes what
    comes from a rail.
    """

    of_rank: NDArray[np.int32]
    rail: NDArray[np.int32]
    peer: NDArray[np.int32]
    even: bool

    @property
    def count(self) -> int:
        """Number of hosts."""
        return len(self.peer)

    @classmethod
    def of(cls, plan: ParallelismPlan, stage: int, gpus_per_host: int) -> _Hosts:
        """Find the hosts of the first group: rank r of a job sits on host r / gpus_per_host."""
        group = plan.groups("ep", stage=stage)[0]
        members: dict[int, list[int]] = {}
        for place, rank in enumerate(group):
            members.setdefault(rank // gpus_per_host, []).append(place)
        of_rank, rail = np.zeros((2, len(group)), np.int32)
        rails = max(map(len, members.values()))
        for host, own in enumerate(members.values()):
            of_rank[own], rail[own] = host, np.arange(len(own))
        peer = [[own[r % len(own)] for r in range(rails)] for own in members.values()]
        even = len({len(own) for own in members.values()}) == 1
        return cls(of_rank, rail, np.array(peer, np.int32), even)


def _by_host(
    source: NDArray[np.int32], target: NDArray[np.int32], hosts: _Hosts
) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the messages between hosts, to the GPU of the same rail, and those within hosts."""
    ep = len(hosts.of_rank)
    rail = hosts.rail[source][:, None]
    # A token lands on each host it visits at the GPU of its rail, at home where it is already.
    landed = np.where(
        hosts.of_rank[target] == hosts.of_rank[source][:, None],
        source[:, None],
        hosts.peer[hosts.of_rank[target], rail],
    )
    across = message_matrix(source, landed, ep, once=True)
    order = np.argsort(target, axis=1, kind="stable")
    where = np.take_along_axis(target, order, axis=1)
    kept = np.ones(where.shape, np.bool_)
    kept[:, 1:] = where[:, 1:] != where[:, :-1]  # a rank with two of its experts gets it once
    code = (np.take_along_axis(landed, order, axis=1).astype(np.int64) * ep + where)[kept]
    within = np.bincount(code, minlength=ep * ep).reshape(ep, ep)
    named = [("dispatch, once for each host", across), ("dispatch, within hosts", within)]
    return [(name, messages) for name, messages in named if messages.sum() - messages.trace()]


def _most(messages: NDArray[np.int64]) -> int:
    """Return the messages of the rank that sends the most, what it keeps left out."""
    return int((messages.sum(axis=1) - messages.diagonal()).max())
