# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that read what was measured."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["GpusPerNode", "Measured", "MeasuredOn", "Nodes", "Op", "UsedProfile"]

Measured = Annotated[
    list[Path],
    typer.Argument(help="Probe JSON, nccl-tests text or JSON, ib_write_bw text, or CSV."),
]
MeasuredOn = Annotated[str | None, typer.Option("--topology", "-T", help="Where it was measured.")]
UsedProfile = Annotated[
    str | None, typer.Option("--profile", help="A device profile, or a file of `calibrate`.")
]
Op = Annotated[str | None, typer.Option("--op", help="Operation, where a log does not name it.")]
Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Hosts, where the file does not say.")
]
GpusPerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", min=1, help="GPUs of a host, where the file does not say."),
]
