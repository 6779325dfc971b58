# SPDX-License-Identifier: Apache-2.0
"""Read a YAML file safely, and say where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from railweave.fabric._yaml_reader import Key, field_name, read_marked
from railweave.fabric.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from railweave.fabric._yaml_reader import Marked

__all__ = ["Document", "Key", "field_name", "load_yaml", "parse_yaml"]

Model = TypeVar("Model")

MAX_FILE_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """The plain content of a file, with the line of every key.

    Parameters
    ----------
    data
        Mappings, lists, text, numbers, booleans and None.
    file
        Name of the file, for messages.
    """

    data: Any
    file: str | None = None
    marks: Marked | None = field(default=None, repr=False, compare=False)

    def line(self, loc: tuple[Key, ...]) -> int | None:
        r"""Return the 1-based line of a key path, or of its nearest parent that is there.

        Examples
        --------
        >>> parse_yaml("a:\n  - b: 1\n  - b: 2\n", file="x.yaml").line(("a", 1, "b"))
        3
        """
        here = self.marks
        if here is None:
            return None
        line = here.line
        for key in loc:
            if key not in here.children:
                break
            line = here.key_lines[key]
            here = here.children[key]
        return line

    def get(self, loc: tuple[Key, ...]) -> Any:
        """Return the value at a key path.

        Raises
        ------
        InputError
            The path is not there.
        """
        value = self.data
        for depth, key in enumerate(loc):
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                raise self.error("it is missing", at=loc[: depth + 1]) from None
        return value

    def error(
        self,
        message: str,
        *,
        at: tuple[Key, ...] = (),
        expected: str | None = None,
        nearest: str | None = None,
    ) -> InputError:
        """Make the error that says ``message`` about the value at a key path."""
        return InputError(
            message,
            file=self.file,
            line=self.line(at),
            field=field_name(at) or None,
            expected=expected,
            nearest=nearest,
        )

    def check(self, model: type[Model] | TypeAdapter[Model], *, at: tuple[Key, ...] = ()) -> Model:
        """Validate the value at a key path with a pydantic model (or type adapter).

        Raises
        ------
        InputError
            The first fault in the order of the file: its line, field, what was expected, and the
            nearest known name.
        """
        from railweave.fabric.validation import validate  # pydantic costs time: only when needed

        return validate(self, model, at)


def load_yaml(path: Path | str) -> Document:
    """Read a YAML file whose root is a mapping.

    Raises
    ------
    InputError
        The file cannot be read, is not UTF-8 text, is larger than 64 MiB, or is not safe YAML.
    """
    file = str(path)
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", file=file) from None
    except IsADirectoryError:
        raise InputError("this is a directory", file=file, expected="a YAML file") from None
    except ValueError:  # a NUL in the name
        raise InputError("this is not a file name", file=repr(file)) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"the file cannot be read ({reason})", file=file) from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError("the file is too large", file=file, expected="at most 64MiB of YAML")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "the file is not text",
            file=file,
            line=raw.count(b"\n", 0, error.start) + 1,
            expected="YAML in UTF-8",
        ) from None
    return parse_yaml(text, file=file)


def parse_yaml(text: str, *, file: str) -> Document:
    """Read YAML text whose root is a mapping; ``file`` is its name in messages.

    Examples
    --------
    >>> parse_yaml("hosts: {count: 8}", file="x.yaml").data
    {'hosts': {'count': 8}}

    Raises
    ------
    InputError
        Not safe YAML: bad syntax, a tag, a repeated key, aliases that explode, a root that is not
        a mapping, or a word that YAML 1.1 misreads.
    """
    root = read_marked(text, file=file)
    if root is None or root.value is None:
        raise InputError("the file is empty", file=file, expected="key: value lines")
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        raise InputError(f"this is {kind}", file=file, line=root.line, expected="key: value lines")
    return Document(root.value, file, root)
