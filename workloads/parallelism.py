# SPDX-License-Identifier: Apache-2.0
"""How a model is divided over ranks: degrees of parallelism, the order of ranks, their groups.

Ranks are numbered with tensor parallelism innermost. Serving engines put data parallelism
outermost (vLLM, ``vllm/distributed/parallel_state.py``: ``[dp, pp, cp, tp]``), Megatron-LM the
pipeline (``megatron/core/parallel_state.py``, order ``tp-cp-ep-dp-pp``). Their expert-parallel
groups differ too: vLLM's lie within the data-parallel and tensor-parallel ranks of one stage,
Megatron's within its data-parallel and context-parallel ranks, each expert divided over ``tp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from railweave.fabric.errors import InputError
from railweave.workloads.limits import MOST_RANKS
from railweave.workloads.shapes_model import GroupedAttention, MoeFeedForward

if TYPE_CHECKING:
    from railweave.workloads.shapes_model import FeedForward, ModelShape

__all__ = ["AXES", "Order", "ParallelismPlan"]

Order = Literal["dp-pp-cp-tp", "pp-dp-cp-tp"]
"""Axes from the outermost to the innermost: as vLLM numbers ranks, or as Megatron-LM does."""

AXES: Final = ("tp", "cp", "dp", "ep", "edp", "pp", "embedding")


@dataclass(frozen=True)
class ParallelismPlan:
    """Degrees of parallelism.

    Parameters
    ----------
    tp
        Ranks that share every layer.
    pp
        Pipeline stages, each with its own layers.
    cp
        Ranks that share every sequence.
    dp
        Replicas that share nothing but gradients or, with ``ep``, experts.
    ep
        Ranks that the experts of a layer are divided over.
    order
        How ranks are numbered, which also says where expert-parallel groups lie.

    Raises
    ------
    InputError
        A degree is not a whole number of at least one, there are too many ranks, or ``ep`` does not
        divide what its groups lie in.

    Examples
    --------
    >>> plan = ParallelismPlan(tp=8, pp=2)
    >>> plan.n_ranks, plan.rank(stage=1, tp_rank=3), list(plan.tp_group(0))
    (16, 11, [0, 1, 2, 3, 4, 5, 6, 7])
    >>> ParallelismPlan(tp=2, pp=2, dp=2).groups("dp", stage=1)
    [(2, 6), (3, 7)]
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    order: Order = "dp-pp-cp-tp"

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dp", "ep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"{value!r} is not a degree of parallelism",
                    field=name,
                    expected="a whole number of at least 1",
                )
        if self.n_ranks > MOST_RANKS:
            degrees = {name: getattr(self, name) for name in ("tp", "pp", "cp", "dp")}
            raise InputError(
                f"{self.n_ranks:,} ranks are more than are listed",
                field=max(degrees, key=lambda name: degrees[name]),
                expected=f"tp x pp x cp x dp of at most {MOST_RANKS:,}",
            )
        if self.ep > 1:
            self._check_expert_groups()

    def _check_expert_groups(self) -> None:
        if not self.ep_over_tp:
            room = self.dp * self.cp
            if room % self.ep:
                raise InputError(
                    f"{self.ep} does not divide the {room} data- and context-parallel ranks",
                    field="ep",
                    expected=f"a divisor of dp x cp = {room}",
                )
        elif self.ep % self.tp or (self.dp * self.tp) % self.ep or self.cp > 1:
            raise InputError(
                f"{self.ep} ranks are no whole replicas of tp {self.tp} out of dp {self.dp}",
                field="ep",
                expected="1, or tp times a divisor of dp; and cp 1 beside it",
            )

    @property
    def ep_over_tp(self) -> bool:
        """Whether expert-parallel groups include tensor-parallel ranks, as in serving."""
        return self.order == "dp-pp-cp-tp"

    @property
    def n_ranks(self) -> int:
        """Number of ranks of all replicas."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def ep_members(self) -> int:
        """Replicas whose tokens meet in one expert-parallel group of a serving engine."""
        return max(self.ep // self.tp, 1)

    def rank(self, *, stage: int, tp_rank: int, dp_rank: int = 0, cp_rank: int = 0) -> int:
        """Return the rank at a place of the grid."""
        outer = (
            dp_rank * self.pp + stage if self.order == "dp-pp-cp-tp" else stage * self.dp + dp_rank
        )
        return (outer * self.cp + cp_rank) * self.tp + tp_rank

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        outer = rank // (self.tp * self.cp)
        return outer % self.pp if self.order == "dp-pp-cp-tp" else outer // self.dp

    def tp_group(self, stage: int, *, dp_rank: int = 0, cp_rank: int = 0) -> range:
        """Return the ranks of a stage of one replica, of one part of the sequence."""
        first = self.rank(stage=stage, tp_rank=0, dp_rank=dp_rank, cp_rank=cp_rank)
        return range(first, first + self.tp)

    def stage_ranks(self, stage: int, *, member: int | None = None) -> tuple[int, ...]:
        """Return all ranks of a stage, replica by replica, or those of replica ``member``."""
        members = range(self.dp) if member is None else (member,)
        return tuple(
            rank
            for d in members
            for c in range(self.cp)
            for rank in self.tp_group(stage, dp_rank=d, cp_rank=c)
        )

    def groups(self, axis: str, *, stage: int, member: int | None = None) -> list[tuple[int, ...]]:
        """Return the groups of an axis among the ranks of a stage.

        Parameters
        ----------
        axis
            ``tp``, ``cp``; ``dp``: who holds the same weights, over the context-parallel ranks
            too; ``ep``: who shares the experts; ``edp``: who holds the same experts.
        stage
            Pipeline stage.
        member
            Only the groups within this replica.
        """
        members = range(self.dp) if member is None else (member,)
        tps, cps = range(self.tp), range(self.cp)

        def at(d: int, c: int, t: int) -> int:
            return self.rank(stage=stage, tp_rank=t, dp_rank=d, cp_rank=c)

        if axis == "tp":
            return [tuple(at(d, c, t) for t in tps) for d in members for c in cps]
        if axis == "cp":
            return [tuple(at(d, c, t) for c in cps) for d in members for t in tps]
        columns = [[at(d, c, t) for d in members for c in cps] for t in tps]
        if axis == "dp":
            return [tuple(column) for column in columns]
        if axis == "ep" and self.ep_over_tp:
            ranks = self.stage_ranks(stage)
            return [ranks[i : i + self.ep] for i in range(0, len(ranks), self.ep)]
        if axis == "ep":
            return [
                tuple(column[i : i + self.ep])
                for column in columns
                for i in range(0, len(column), self.ep)
            ]
        if axis == "edp":
            return [tuple(column[i :: self.ep]) for column in columns for i in range(self.ep)]
        raise InputError(f"'{axis}' has no groups in a stage", expected="tp, cp, dp, ep or edp")

    def layers_per_stage(self, n_layers: int) -> tuple[int, ...]:
        """Return how many layers each stage has, by vLLM's rule (``get_pp_indices``).

        Even; of a remainder, one layer each goes to the stages just before the last, counting
        backwards, because the last stage also has the norm and the output head.

        Parameters
        ----------
        n_layers
            Layers of the model.

        Raises
        ------
        InputError
            There are more stages than layers.

        Examples
        --------
        >>> ParallelismPlan(pp=4).layers_per_stage(61)
        (15, 15, 16, 15)
        """
        if self.pp > n_layers:
            raise InputError(
                f"{self.pp} stages are more than {n_layers} layers",
                field="pp",
                expected=f"at most {n_layers}",
            )
        even, rest = divmod(n_layers, self.pp)
        counts = [even] * self.pp
        for back in range(2, rest + 2):
            counts[-back] += 1
        return tuple(counts)

    def stage_layers(self, n_layers: int) -> tuple[range, ...]:
        """Return the layers of each stage as ranges."""
        ranges, first = [], 0
        for count in self.layers_per_stage(n_layers):
            ranges.append(range(first, first + count))
            first += count
        return tuple(ranges)

    def check(self, shape: ModelShape) -> None:
        """Raise unless the model can be divided so.

        ``tp`` must divide the query heads and every feed-forward width (not of experts that a
        serving engine divides whole). Key/value heads are divided when there are enough of them,
        else each is replicated on ``tp / kv_heads`` ranks (vLLM's ``QKVParallelLinear``), so one
        number must divide the other. ``ep`` must divide the experts.

        Parameters
        ----------
        shape
            The model.

        Raises
        ------
        InputError
            A degree does not fit; the message has both numbers.
        """
        self.layers_per_stage(shape.n_layers)
        experts = False
        for layer in dict.fromkeys(shape.layers):
            attention = layer.attention
            if attention is not None:
                self._divides(attention.heads, "attention heads", shape)
            if layer.mixer is not None:
                self._divides(layer.mixer.heads, "heads of recurrent layers", shape)
            if isinstance(attention, GroupedAttention):
                kv = attention.kv_heads
                if kv % self.tp and self.tp % kv:
                    raise InputError(
                        f"{self.tp} neither divides the {kv} key/value heads of {shape.name} "
                        "nor is a multiple of them",
                        field="tp",
                        expected=f"a divisor or a multiple of {kv}",
                    )
            block = layer.feed_forward
            if block is None:
                continue
            if isinstance(block, MoeFeedForward):
                experts = True
                if block.experts % self.ep:
                    raise InputError(
                        f"{self.ep} does not divide the {block.experts} experts of {shape.name}",
                        field="ep",
                        expected=f"a divisor of {block.experts}",
                    )
            whole = self.ep > 1 and self.ep_over_tp
            for width, what in _widths(block, whole_experts=whole):
                self._divides(width, what, shape)
        if self.ep > 1 and not experts:
            raise InputError(f"{shape.name} has no experts", field="ep", expected="1")

    def _divides(self, number: int, what: str, shape: ModelShape) -> None:
        if number % self.tp:
            raise InputError(
                f"{self.tp} does not divide the {number} {what} of {shape.name}",
                field="tp",
                expected=f"a divisor of {number}",
            )


def _widths(feed_forward: FeedForward, *, whole_experts: bool) -> list[tuple[int, str]]:
    if not isinstance(feed_forward, MoeFeedForward):
        return [(feed_forward.size, "feed-forward columns")]
    shared = [(feed_forward.shared_size, "columns of the shared expert")]
    return shared if whole_experts else [(feed_forward.size, "columns of an expert"), *shared]
