# SPDX-License-Identifier: Apache-2.0
"""Opens a file of measurements, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError
from railweave.tools.measured.ib_text import looks_like_ib_text, read_ib_text
from railweave.tools.measured.nccl_text import looks_like_nccl_text, read_nccl_text
from railweave.tools.measured.records import looks_like_json, read_json
from railweave.tools.measured.tables import looks_like_table, read_table

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.tools.measured.data import DataSet

__all__ = ["FORMATS", "read_measured"]

FORMATS: Final = (
    "the probe's JSON, the text or JSON of nccl-tests, the text of ib_write_bw, or a CSV table "
    "with a size_bytes column"
)


def read_measured(path: Path, *, op: str | None = None) -> list[DataSet]:
    """Return the data sets in a file.

    Parameters
    ----------
    path
        A file in one of `FORMATS`.
    op
        Operation, where nccl-tests' output does not say it.

    Raises
    ------
    InputError
        It cannot be read, is of another program, or holds nothing sound.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}", file=str(path)) from None
    if b"\x00" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("this is no text", file=str(path), expected=FORMATS)
    wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))  # PowerShell's redirection
    text = raw.decode("utf-16" if wide else "utf-8", errors="replace")
    if not text.strip("\ufeff \t\r\n\x00"):
        raise InputError("the file is empty", file=str(path), expected=FORMATS)
    name = path.name
    try:
        if looks_like_json(text):
            return read_json(text, name=name, op=op)
        if looks_like_table(text):
            return read_table(text, name=name)
        if looks_like_nccl_text(text):
            return read_nccl_text(text, name=name, op=op)
        if looks_like_ib_text(text):
            return read_ib_text(text, name=name)
    except InputError as error:
        error.file = None
        raise error.located(file=str(path)) from None
    raise InputError("this is of another program", file=str(path), expected=FORMATS)
