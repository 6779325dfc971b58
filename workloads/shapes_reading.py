# SPDX-License-Identifier: Apache-2.0
"""What the readers of model families share: their registry, heads, windows and experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from railweave.workloads.shapes_model import LayerShape, MoeFeedForward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from railweave.workloads.shapes_fields import Fields

    Reader = Callable[[Fields, int, int], "Body"]

__all__ = ["FAMILIES", "Body", "experts", "family", "heads", "layer_kinds", "refuse", "windows"]

FAMILIES: Final[dict[str, Reader]] = {}


@dataclass(frozen=True)
class Body:
    """What a family's reader makes of a config; see `ModelShape` for the parts."""

    layers: list[LayerShape]
    final_norms: int = 1
    head_bias: bool = False
    position_table: int = 0
    tied_by_default: bool = False


def family(*model_types: str) -> Callable[[Reader], Reader]:
    """Register a function of (fields, hidden size, layer count) that makes the body."""

    def register(reader: Reader) -> Reader:
        FAMILIES.update(dict.fromkeys(model_types, reader))
        return reader

    return register


def refuse(fields: Fields, **expected: object) -> None:
    """Raise if a field has another value than the only one that is understood."""
    for name, value in expected.items():
        found = fields.data.get(name)
        if found is not None and found != value:
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            fields.fail(name, f"{found!r} is not understood for this family", expected=shown)
        fields.ask(name)


def heads(
    fields: Fields,
    hidden: int,
    *,
    explicit_dim: bool = False,
    defaults: tuple[int | None, int | None, int | None] = (None, None, None),
) -> tuple[int, int, int]:
    """Return query heads, key/value heads and head width.

    Parameters
    ----------
    fields
        The config.
    hidden
        Width of the residual stream.
    explicit_dim
        Refuse a missing ``head_dim``: in this family it differs from hidden size over heads.
    defaults
        What the family's configuration class assumes for a field that its files leave out.
    """
    count = fields.integer("num_attention_heads", "n_head", default=defaults[0])
    kv = fields.integer("num_key_value_heads", "num_kv_heads", default=defaults[1] or count)
    if count % kv:
        name = "num_kv_heads" if "num_kv_heads" in fields.data else "num_key_value_heads"
        fields.fail(
            name,
            f"{kv} does not divide num_attention_heads {count}",
            expected=f"a divisor of {count}",
        )
    return count, kv, head_width(fields, hidden, count, explicit=explicit_dim, default=defaults[2])


def head_width(
    fields: Fields, hidden: int, count: int, *, explicit: bool, default: int | None = None
) -> int:
    """Return the width of a head: ``head_dim``, else hidden size over heads if that is safe."""
    width = fields.optional_integer("head_dim")
    if width is None:
        width = default
    if width is not None:
        return width
    if explicit:
        fields.fail("head_dim", "is missing", expected="the width of a head")
    if hidden % count:
        fields.fail(
            "head_dim",
            f"is missing and hidden_size {hidden} is no multiple of {count} heads",
            expected="the width of a head",
        )
    return hidden // count


def layer_kinds(fields: Fields, count: int, known: Iterable[str]) -> list[str] | None:
    """Read ``layer_types``, one name per layer; None if absent."""
    kinds = fields.optional_list("layer_types", str)
    if kinds is None:
        return None
    if len(kinds) != count:
        fields.fail("layer_types", f"has {len(kinds)} entries", expected=f"{count}, one per layer")
    for kind in kinds:
        if kind not in known:
            fields.fail(
                "layer_types", f"'{kind}' is not understood", expected=" or ".join(sorted(known))
            )
    return kinds


def windows(
    fields: Fields,
    count: int,
    *,
    used_by_default: bool,
    slides: Callable[[int], bool] | None,
) -> list[int | None]:
    """Return each layer's window in tokens.

    ``layer_types`` decides where the file has it, else ``slides(layer)``; a window that is
    switched off, or that is no shorter than the longest sequence, is none.
    """
    window = fields.optional_integer("sliding_window", "sliding_window_size")
    if not fields.flag("use_sliding_window", default=used_by_default):
        window = None
    longest = fields.optional_integer("max_position_embeddings")
    kinds = layer_kinds(fields, count, ("full_attention", "sliding_attention"))
    if kinds is not None:
        if window is None and "sliding_attention" in kinds:
            fields.fail("layer_types", "has sliding layers, but no sliding_window is in use")
        sliding = [kind == "sliding_attention" for kind in kinds]
    elif window is None:
        sliding = [False] * count
    elif slides is None:
        fields.fail("layer_types", "is missing", expected="which layers have the sliding window")
    else:
        sliding = [slides(layer) for layer in range(count)]
    if window is not None and longest is not None and window >= longest:
        window = None
    return [window if here else None for here in sliding]


def experts(
    fields: Fields,
    *,
    size: int,
    shared_size: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    expert_bias: bool = False,
    correction_bias: bool = False,
    gated: bool = True,
) -> MoeFeedForward:
    """Read how many experts there are and how many a token visits, under any known key."""
    count = fields.integer(
        "num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts"
    )
    top_k = fields.integer("num_experts_per_tok", "experts_per_token")
    if top_k > count:
        _over(fields, "num_experts_per_tok", top_k, count, "experts")
    groups = fields.integer("n_group", default=1)
    chosen = fields.integer("topk_group", default=groups)
    if chosen > groups:
        _over(fields, "topk_group", chosen, groups, "groups")
    return MoeFeedForward(
        experts=count,
        top_k=top_k,
        size=size,
        shared_size=shared_size,
        shared_gate=shared_gate,
        router_bias=router_bias,
        expert_bias=expert_bias,
        correction_bias=correction_bias,
        gated=gated,
        node_groups=groups,
        top_groups=chosen,
    )


def _over(fields: Fields, name: str, value: int, most: int, what: str) -> NoReturn:
    fields.fail(name, f"{value} is more than {most} {what}", expected=f"at most {most}")
