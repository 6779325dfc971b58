# SPDX-License-Identifier: Apache-2.0
"""``railweave models``: the model shapes that are shipped."""

from typing import Annotated, Any

import typer

from railweave.tools.output import aligned, emit, emit_json

__all__ = ["models"]


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the models that are shipped, for size, traffic and scenarios.

    Any other model is its config.json of Hugging Face, or the folder that holds it.
    """
    from railweave.workloads.shapes import shipped_models

    rows = [_facts(name) for name in shipped_models()]
    if as_json:
        emit_json({"models": rows})
        return
    table = [
        (
            row["name"],
            row["family"],
            f"{row['params'] / 1e9:.2f} B",
            f"{row['active_params'] / 1e9:.2f} B",
            row["layers"],
            f"{row['weight_bytes'] / 1e9:,.1f} GB",
            f"{row['kv_bytes_per_token']:,} B",
            f"+ {row['kv_constant_bytes'] / 1e6:,.0f} MB" if row["kv_constant_bytes"] else "",
        )
        for row in rows
    ]
    header = ("model", "family", "parameters", "active", "layers", "weights", "cache per token", "")
    emit(aligned(table, header=header, right=(2, 3, 4, 5, 6, 7)))
    emit("\n+: windows and recurrent states of a sequence, once full.")


def _facts(name: str) -> dict[str, Any]:
    from railweave.workloads.shapes import (
        active_parameters,
        kv_bytes_per_token,
        kv_constant_bytes,
        load_shape,
        parameters,
        weight_bytes,
    )

    shape = load_shape(name)
    return {
        "name": shape.name,
        "family": shape.model_type,
        "params": parameters(shape),
        "active_params": active_parameters(shape),
        "layers": shape.n_layers,
        "weight_bytes": weight_bytes(shape),
        "kv_bytes_per_token": kv_bytes_per_token(shape),
        "kv_constant_bytes": kv_constant_bytes(shape),
        "max_positions": shape.max_positions,
        "source": shape.source,
    }
