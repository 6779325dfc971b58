# SPDX-License-Identifier: Apache-2.0
"""Read the fields of a Hugging Face ``config.json`` without guessing.

Every field is read with its type and its range; a wrong one raises one `InputError` that names
the file, the line and the field. Fields that would change the structure of a layer and that the
family did not ask for are refused as well.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from railweave.fabric.errors import InputError, nearest_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_CONFIG_BYTES", "Fields", "read_config"]

MAX_CONFIG_BYTES: Final = 4 * 2**20
_MAX_INTEGER: Final = 2**31 - 1

# Fields that change what a layer is made of. A family that does not read one of them must not
# meet it: the shape would be wrong without a word.
_STRUCTURAL: Final = frozenset(
    {
        "attention_bias",
        "attention_chunk_size",
        "attn_layer_period",
        "attn_output_gate",
        "attn_type_list",
        "block_configs",
        "cla_share_factor",
        "expert_layer_period",
        "ffn_hidden_size",
        "first_k_dense_replace",
        "full_attention_interval",
        "global_attn_every_n_layers",
        "hybrid_layer_pattern",
        "hybrid_override_pattern",
        "hidden_size_per_layer_input",
        "index_head_dim",
        "index_topk",
        "interleave_moe_layer_step",
        "intermediate_size_mlp",
        "kv_lora_rank",
        "layer_types",
        "layers_block_type",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "lm_head_bias",
        "mamba_d_ssm",
        "mamba_d_state",
        "mamba_expand",
        "mamba_n_heads",
        "mamba_num_heads",
        "mlp_bias",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_layer_freq",
        "moe_num_experts",
        "moe_shared_expert_intermediate_size",
        "multi_query",
        "n_routed_experts",
        "n_shared_experts",
        "new_decoder_architecture",
        "no_rope_layers",
        "num_experts",
        "num_kv_shared_layers",
        "num_local_experts",
        "num_routed_experts",
        "num_shared_experts",
        "parallel_attn",
        "q_lora_rank",
        "qk_layernorm",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "sliding_window",
        "sliding_window_pattern",
        "ssm_state_size",
        "swa_num_key_value_heads",
        "use_qk_norm",
        "v_head_dim",
    }
)


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Read a JSON object from a file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    tuple
        The object and the text that it was read from (for line numbers).

    Raises
    ------
    InputError
        The file cannot be read, is larger than `MAX_CONFIG_BYTES`, is not UTF-8 text or is not
        a JSON object.
    """
    file, expected = str(path), "a Hugging Face config.json"
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read: {reason}", file=file, expected=expected) from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputError(
            f"is larger than {MAX_CONFIG_BYTES // 2**20} MiB", file=file, expected=expected
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", file=file, expected=expected) from error
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg}", file=file, line=error.lineno, expected=expected
        ) from error
    except _DuplicateKeyError as error:
        raise InputError(
            "is written twice", file=file, line=_line_of(text, error.key), field=error.key
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError("is not JSON that can be read", file=file, expected=expected) from error
    if not isinstance(data, dict):
        raise InputError(f"holds a JSON {_kind(data)}", file=file, line=1, expected="a JSON object")
    return data, text


class Fields:
    """Typed access to the fields of one config, remembering which were asked for.

    Parameters
    ----------
    data
        The JSON object.
    file, text
        File name and whole text, for the place in errors.
    prefix
        Path of ``data`` within the file, such as ``text_config.``.
    """

    def __init__(self, data: dict[str, Any], *, file: str, text: str, prefix: str = "") -> None:
        self.data = data
        self.file = file
        self.prefix = prefix
        self._text = text
        self._asked: set[str] = set()

    def fail(self, name: str, message: str, *, expected: str | None = None) -> NoReturn:
        """Raise the one error that names this file and field."""
        near = None
        if name not in self.data:
            near = nearest_name(name, self.data)
        raise InputError(
            message,
            file=self.file,
            line=_line_of(self._text, name, after=self.prefix.removesuffix(".")),
            field=self.prefix + name,
            expected=expected,
            nearest=near,
        )

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the one name that is present, and its value; null counts as absent."""
        self._asked.update(names)
        present = [name for name in names if self.data.get(name) is not None]
        for other in present[1:]:
            if self.data[other] != self.data[present[0]]:
                self.fail(other, f"contradicts {self.prefix}{present[0]}")
        return (present[0], self.data[present[0]]) if present else (names[0], None)

    def optional_integer(
        self, *names: str, minimum: int = 1, maximum: int = _MAX_INTEGER
    ) -> int | None:
        """Read a whole number under any of ``names``; None if absent or null."""
        name, value = self._find(names)
        if value is None:
            return None
        expected = f"a whole number from {minimum} to {maximum}"
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"{_show(value)} is not a whole number", expected=expected)
        if not minimum <= value <= maximum:
            self.fail(name, f"{_show(value)} is out of range", expected=expected)
        return value

    def integer(
        self,
        *names: str,
        default: int | None = None,
        minimum: int = 1,
        maximum: int = _MAX_INTEGER,
    ) -> int:
        """Read a whole number under any of ``names``; missing without default is an error."""
        value = self.optional_integer(*names, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            state = "is null" if names[0] in self.data else "is missing"
            self.fail(names[0], state, expected=f"a whole number of at least {minimum}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """Read true or false."""
        _, value = self._find((name,))
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"{_show(value)} is not true or false", expected="true or false")
        return value

    def optional_text(self, *names: str) -> str | None:
        """Read a string under any of ``names``; None if absent or null."""
        name, value = self._find(names)
        if value is not None and not isinstance(value, str):
            self.fail(name, f"{_show(value)} is not a string", expected="a string")
        return value

    def optional_list(self, name: str, item: type) -> list[Any] | None:
        """Read a list whose items all have the type ``item``; None if absent or null."""
        _, value = self._find((name,))
        if value is None:
            return None
        if not isinstance(value, list) or any(type(entry) is not item for entry in value):
            kind = "whole numbers" if item is int else "strings"
            self.fail(name, f"{_show(value)} is not understood", expected=f"a list of {kind}")
        return value

    def optional_object(self, name: str) -> Fields | None:
        """Read a nested object; None if absent or null."""
        _, value = self._find((name,))
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, f"{_show(value)} is not an object", expected="a JSON object")
        return Fields(value, file=self.file, text=self._text, prefix=f"{self.prefix}{name}.")

    def object(self, name: str) -> Fields:
        """Read a nested object that must be there."""
        found = self.optional_object(name)
        if found is None:
            self.fail(name, "is missing", expected="a JSON object")
        return found

    def objects(self, name: str) -> list[Fields]:
        """Read a list of nested objects that must be there."""
        _, value = self._find((name,))
        if value is None:
            self.fail(name, "is missing", expected="a list of JSON objects")
        if not isinstance(value, list) or any(not isinstance(entry, dict) for entry in value):
            self.fail(name, f"{_show(value)} is not understood", expected="a list of JSON objects")
        return [
            Fields(entry, file=self.file, text=self._text, prefix=f"{self.prefix}{name}.{index}.")
            for index, entry in enumerate(value)
        ]

    def ask(self, name: str) -> None:
        """Note that a field was looked at."""
        self._asked.add(name)

    def refuse_unread_structure(self, model_type: str) -> None:
        """Raise if the file holds a structural field that was never asked for."""
        for name in sorted(_STRUCTURAL - self._asked):
            value = self.data.get(name)
            if value not in (None, False, 0, [], {}, ""):
                self.fail(
                    name,
                    f"{_show(value)} is not understood for model_type '{model_type}'",
                    expected="a structure that this family is known to have",
                )


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


def _line_of(text: str, name: str, *, after: str = "") -> int | None:
    """Return the 1-based line on which the key ``name`` is first written, if it is."""
    start = 0
    for key in (*filter(None, after.split(".")), name):
        match = re.compile(rf'"{re.escape(key)}"\s*:').search(text, start)
        if match is None:
            return None
        start = match.start()
    return text.count("\n", 0, start) + 1


def _kind(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _show(value: object) -> str:
    try:
        shown = json.dumps(value)
    except ValueError:  # an integer of thousands of digits
        return "a number that"
    return shown if len(shown) <= 40 else shown[:37] + "..."
