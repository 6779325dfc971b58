# SPDX-License-Identifier: Apache-2.0
"""What a command prints and writes: results to stdout, all else to stderr, files never by surprise.

Imports nothing heavy: every command uses it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

__all__ = [
    "JSON_SCHEMA",
    "aligned",
    "check_free",
    "emit",
    "emit_json",
    "note",
    "paint",
    "readers_may_leave",
    "write_output",
]

JSON_SCHEMA: Final = 1
_STYLES: Final = {"bold": "1", "red": "31", "yellow": "33", "green": "32"}


class _Forgiving(io.FileIO):
    """A stream that goes on into nothing once its reader has left."""

    def write(self, data: Any, /) -> int:
        """Write some bytes and return how many."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return super().write(data)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let the process's stdout and stderr outlast their readers (``head``, ``less``).

    A command then runs to its end, writes its files, and its exit code is its own.
    """
    whole: list[tuple[str, TextIO]] = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # another's stream, in memory or of a test
        stream.flush()
        raw = _Forgiving(stream.fileno(), "w", closefd=False)
        lasting = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)
        whole.append((name, stream))
    try:
        yield
    finally:
        for name, stream in whole:
            getattr(sys, name).flush()
            setattr(sys, name, stream)


def emit(text: str) -> None:
    """Print a part of the result on stdout."""
    print(text)


def emit_json(result: Mapping[str, Any]) -> None:
    """Print the whole result as one JSON object, led by its ``schema`` number."""
    print(json.dumps({"schema": JSON_SCHEMA, **result}, indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print anything that is not the result on stderr."""
    print(text, file=sys.stderr, flush=True)


def paint(text: str, style: str, *, stream: TextIO | None = None) -> str:
    """Colour ``text`` if ``stream`` (stdout) is a terminal and NO_COLOR is unset (no-color.org)."""
    target = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not target.isatty():
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def aligned(
    rows: Iterable[Sequence[object]],
    *,
    header: Sequence[str] = (),
    right: Sequence[int] = (),
    indent: str = "",
) -> str:
    """Lay rows out in columns two blanks apart.

    Parameters
    ----------
    rows
        Cells; each is written with ``str``.
    header
        Column titles, or none.
    right
        Numbers of the columns that are set flush right.
    indent
        Put before each line.

    Examples
    --------
    >>> print(aligned([("leaf", 8), ("spine", 16)], header=("tier", "switches"), right=(1,)))
    tier   switches
    leaf          8
    spine        16
    """
    table = [[str(cell) for cell in row] for row in ([header] if header else [])]
    table += [[str(cell) for cell in row] for row in rows]
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def check_free(path: Path | None, *, force: bool) -> None:
    """Refuse a file that exists before the work that would be written there is done.

    Raises
    ------
    InputError
        It exists and ``force`` is off, or its folder does not.
    """
    if path is None:
        return
    if path.exists() and not force:
        raise InputError(
            "exists already", file=str(path), expected="another name, or --force to replace it"
        )
    if not path.parent.is_dir():
        raise InputError(
            "cannot be written: No such file or directory",
            file=str(path),
            expected="a writable place",
        )


def write_output(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a whole file or nothing; an existing one is replaced only with ``force``.

    Raises
    ------
    InputError
        The file exists and ``force`` is off, or it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not force:
            raise FileExistsError
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            umask = os.umask(0)
            os.umask(umask)
            Path(draft).chmod(0o666 & ~umask)
            if force:
                Path(draft).replace(path)
            else:
                os.link(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
    except FileExistsError:
        raise InputError(
            "exists already", file=str(path), expected="another name, or --force to replace it"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", file=str(path), expected="a writable place"
        ) from None
