# SPDX-License-Identifier: Apache-2.0
"""``railweave schema``: JSON Schema of the files that people write, for editors."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from railweave.fabric.errors import InputError, nearest_name
from railweave.tools.output import emit, note, write_output

__all__ = ["schema"]

_KINDS = ("topology", "scenario")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    kind: Annotated[str, typer.Argument(help="topology or scenario.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write (default: stdout).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output file if it exists.")
    ] = False,
) -> None:
    """Print the JSON Schema of topology or scenario files for editors."""
    if kind not in _KINDS:
        raise InputError(
            f"'{kind}' has no schema",
            expected=" | ".join(_KINDS),
            nearest=nearest_name(kind, _KINDS),
        )
    found = _topology_schema() if kind == "topology" else _scenario_schema()
    text = json.dumps({"$schema": _DIALECT, **found, "title": f"railweave {kind}"}, indent=2)
    if output is None:
        emit(text)
        return
    write_output(output, text + "\n", force=force)
    note(f"wrote {output}")


def _topology_schema() -> dict[str, Any]:
    from railweave.topologies.load import topology_json_schema

    return topology_json_schema()


def _scenario_schema() -> dict[str, Any]:
    from railweave.scenario import scenario_schema

    return scenario_schema()
