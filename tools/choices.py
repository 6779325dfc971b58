# SPDX-License-Identifier: Apache-2.0
"""Options whose values are names out of a few."""

from collections.abc import Sequence

from railweave.fabric.errors import InputError, nearest_name

__all__ = ["check_choice"]


def check_choice(value: str | None, option: str, known: Sequence[str]) -> None:
    """Raise `InputError` for a name that is not among those known; None is not given.

    Examples
    --------
    >>> check_choice("decode", "--phase", ("prefill", "decode"))
    >>> check_choice("decodes", "--phase", ("prefill", "decode"))
    Traceback (most recent call last):
    railweave.fabric.errors.InputError: --phase: there is no 'decodes'; expected prefill | decode; \
did you mean 'decode'?
    """
    if value is not None and value not in known:
        raise InputError(
            f"there is no '{value}'", field=option, expected=" | ".join(known),
            nearest=nearest_name(value, known),
        )  # fmt: skip
