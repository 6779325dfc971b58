# SPDX-License-Identifier: Apache-2.0
"""How many users one replica serves at once: contiguous reservation against pages, in closed form.

A server that keeps each sequence's cache in one piece sets room for its longest possible length
aside before it begins (FasterTransformer, Orca). Paged attention takes pages as a sequence grows
(Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023): what a sequence holds at a time is its length so far, rounded up to a page.

A sequence of p prompt and o output tokens takes o steps, the first of which is its prefill, and
holds the cache of p, p + 1, ..., p + o - 1 tokens in them: the last token's is never kept. Where
steps take equally long, the mean that a running sequence holds is the sum of those over all
sequences, divided by all steps: long outputs count more, because they stay longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Lengths", "Reservation", "UsersAtOnce", "held_tokens", "users_at_once"]

Lengths = tuple[int, int]
"""Prompt and output tokens of a request, each at least 1."""

Reservation = Literal["longest", "power-of-two", "exact", "pages"]
"""What is set aside for a sequence: the longest that is allowed; its own length rounded up to a
power of two, or its own length, as if it were known (Orca's variants Max, Pow2 and Oracle in the
paper); or pages as it grows."""


@dataclass(frozen=True, kw_only=True)
class UsersAtOnce:
    """Sequences that fit beside one another, in the long run of a full server.

    Parameters
    ----------
    held_tokens
        Tokens of room that a running sequence takes, in the mean over time.
    used_tokens
        Tokens of cache in them, in the mean over time.
    users
        Room over held tokens, not rounded where what is held changes.
    """

    held_tokens: Fraction
    used_tokens: Fraction
    users: Fraction

    @property
    def used_share(self) -> Fraction:
        """Share of the room that holds a token's cache."""
        return self.used_tokens / self.held_tokens


def held_tokens(
    lengths: Iterable[Lengths], reservation: Reservation, *, page: int = 16, longest: int = 0
) -> Fraction:
    """Return the room in tokens that a running sequence takes, in the mean over time.

    Parameters
    ----------
    lengths
        Prompt and output of each request.
    reservation
        What is set aside for it.
    page
        Tokens of a page.
    longest
        Tokens of the longest sequence that is allowed, for ``longest``.

    Examples
    --------
    >>> held_tokens([(50, 1)], "pages")  # 4 pages of 16
    Fraction(64, 1)
    >>> held_tokens([(50, 1), (1, 3)], "longest", longest=2048)
    Fraction(2048, 1)
    >>> held_tokens([(15, 3)], "pages")  # 15, 16 and 17 tokens: 1, 1 and 2 pages
    Fraction(64, 3)

    Raises
    ------
    InputError
        A length or the page is below 1, or a request is longer than the longest; none at all.
    """
    if page < 1:
        raise InputError(f"{page} is too few", field="page", expected="at least 1")
    held = steps = 0
    for prompt, output in lengths:
        if prompt < 1 or output < 1:
            raise InputError(
                f"a request of {prompt} and {output} tokens", expected="at least 1 of each"
            )
        total = prompt + output
        if reservation == "longest":
            if total > longest:
                raise InputError(
                    f"a request of {total} tokens is longer than the longest", expected=f"{longest}"
                )
            room = output * longest
        elif reservation == "power-of-two":
            room = output * (1 << (total - 1).bit_length())
        elif reservation == "exact":
            room = output * total
        else:
            room = page * (_pages_up_to(total - 1, page) - _pages_up_to(prompt - 1, page))
        held += room
        steps += output
    if not steps:
        raise InputError("there are no requests", expected="at least one")
    return Fraction(held, steps)


def _pages_up_to(tokens: int, page: int) -> int:
    """Return the sum of ``ceil(x / page)`` over x = 1..tokens."""
    whole, rest = divmod(tokens, page)
    return page * whole * (whole + 1) // 2 + rest * (whole + 1)


def users_at_once(
    lengths: Iterable[Lengths],
    reservation: Reservation,
    *,
    room_tokens: int,
    page: int = 16,
    longest: int = 0,
) -> UsersAtOnce:
    """Return how many sequences a full server runs at once, in the long run.

    Equal reservations are a whole number; what changes with the sequence is a mean.

    Parameters
    ----------
    lengths, reservation, page, longest
        As for `held_tokens`.
    room_tokens
        Tokens of cache that there is room for.

    Examples
    --------
    >>> found = users_at_once([(50, 1)], "longest", room_tokens=15_700, longest=2048)
    >>> found.users, float(found.used_share)
    (Fraction(7, 1), 0.0244140625)
    """
    asked = list(lengths)
    held = held_tokens(asked, reservation, page=page, longest=longest)
    used = held_tokens(asked, "pages", page=1)
    users = Fraction(room_tokens) / held
    if reservation == "longest":
        users = Fraction(int(users))
    return UsersAtOnce(held_tokens=held, used_tokens=used, users=users)
