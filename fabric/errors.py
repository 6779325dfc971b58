# SPDX-License-Identifier: Apache-2.0
"""Every error that railweave raises on purpose, under one root."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CheckError",
    "InputError",
    "InterruptedRunError",
    "LivelockError",
    "MissingToolError",
    "PhysicsError",
    "RailweaveError",
    "StalledError",
    "TooLargeError",
    "UnreachableError",
    "nearest_name",
    "one_line",
]


def one_line(text: str) -> str:
    r"""Write what no line of a terminal holds as escapes: names may hold anything.

    Examples
    --------
    >>> print(one_line("h\n0"))
    h\n0
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RailweaveError(Exception):
    """Root of railweave's errors; ``exit_code`` is what the command line exits with."""

    exit_code = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class InputError(RailweaveError):
    """Something a person wrote is wrong: one line with file, line, field and what was expected.

    Parameters
    ----------
    message
        What is wrong, without file or field.
    file, line, field
        Where: file name, 1-based line, dotted path of the field (``hosts.count``).
    expected
        What would have been right.
    nearest
        The nearest valid name to what was written.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        expected: str | None = None,
        nearest: str | None = None,
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.field = field
        self.expected = expected
        self.nearest = nearest
        super().__init__(str(self))

    def located(
        self, *, file: str | None = None, line: int | None = None, field: str | None = None
    ) -> InputError:
        """Return the same error with whatever part of its place was still unknown filled in."""
        return type(self)(
            self.message,
            file=self.file or file,
            line=self.line or line,
            field=self.field or field,
            expected=self.expected,
            nearest=self.nearest,
        )

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        head = ": ".join(part for part in (place, self.field) if part)
        text = f"{head}: {self.message}" if head else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.nearest:
            text += f"; did you mean '{self.nearest}'?"
        return one_line(text)


class UnreachableError(InputError):
    """No route joins two endpoints."""


class TooLargeError(InputError):
    """What is asked for would not fit into this machine's memory."""


class CheckError(RailweaveError):
    """A check or a threshold failed (exit code 1)."""


class PhysicsError(RailweaveError):
    """A result beat its own lower bound: a defect in railweave, never a finding."""


class StalledError(RailweaveError):
    """A run that can never finish; the message names who waits for whom."""


class LivelockError(RailweaveError):
    """A run that moves packets and gets nowhere; the message names who waits for what."""


class MissingToolError(RailweaveError):
    """An optional tool is absent; the message carries the line that installs it."""

    exit_code = 3


class InterruptedRunError(RailweaveError):
    """The run was interrupted; partial results were kept."""

    exit_code = 130


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to ``name``, or None when nothing is near.

    Examples
    --------
    >>> nearest_name("h3/gup5", ["h3/gpu5", "h3/nic5"])
    'h3/gpu5'
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
