# SPDX-License-Identifier: Apache-2.0
"""How a model is divided over ranks: tensor and pipeline parallelism, and the order of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.workloads.shapes_model import GroupedAttention, MoeFeedForward

if TYPE_CHECKING:
    from railweave.workloads.shapes_model import FeedForward, ModelShape

__all__ = ["ParallelismPlan"]


@dataclass(frozen=True)
class ParallelismPlan:
    """A tensor-parallel and a pipeline-parallel degree.

    Ranks are numbered with tensor parallelism innermost, as vLLM and Megatron-LM do: rank
    ``stage * tp + tp_rank``.

    Parameters
    ----------
    tp
        Ranks that share every layer.
    pp
        Pipeline stages, each with its own layers.

    Raises
    ------
    InputError
        A degree is not a whole number of at least one.

    Examples
    --------
    >>> plan = ParallelismPlan(tp=8, pp=2)
    >>> plan.n_ranks, plan.rank(stage=1, tp_rank=3), list(plan.tp_group(0))
    (16, 11, [0, 1, 2, 3, 4, 5, 6, 7])
    """

    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name, value in (("tp", self.tp), ("pp", self.pp)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"{value!r} is not a degree of parallelism",
                    field=name,
                    expected="a whole number of at least 1",
                )

    @property
    def n_ranks(self) -> int:
        """Number of ranks of one replica."""
        return self.tp * self.pp

    def rank(self, *, stage: int, tp_rank: int) -> int:
        """Return the rank at a place of the grid."""
        return stage * self.tp + tp_rank

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // self.tp

    def tp_group(self, stage: int) -> range:
        """Return the ranks of a stage."""
        return range(stage * self.tp, (stage + 1) * self.tp)

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

        ``tp`` must divide the query heads and every feed-forward width. Key/value heads are
        divided when there are enough of them, else each is replicated on ``tp / kv_heads`` ranks
        (vLLM's ``QKVParallelLinear``), so one number must divide the other.

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
        for layer in dict.fromkeys(shape.layers):
            attention = layer.attention
            self._divides(attention.heads, "attention heads", shape)
            if isinstance(attention, GroupedAttention):
                kv = attention.kv_heads
                if kv % self.tp and self.tp % kv:
                    raise InputError(
                        f"{self.tp} neither divides the {kv} key/value heads of {shape.name} "
                        "nor is a multiple of them",
                        field="tp",
                        expected=f"a divisor or a multiple of {kv}",
                    )
            for width, what in _widths(layer.feed_forward):
                self._divides(width, what, shape)

    def _divides(self, number: int, what: str, shape: ModelShape) -> None:
        if number % self.tp:
            raise InputError(
                f"{self.tp} does not divide the {number} {what} of {shape.name}",
                field="tp",
                expected=f"a divisor of {number}",
            )


def _widths(feed_forward: FeedForward) -> list[tuple[int, str]]:
    if not isinstance(feed_forward, MoeFeedForward):
        return [(feed_forward.size, "feed-forward columns")]
    return [
        (feed_forward.size, "columns of an expert"),
        (feed_forward.shared_size, "columns of the shared expert"),
    ]
