# SPDX-License-Identifier: Apache-2.0
"""``railweave topo``: the topology alone."""

from pathlib import Path
from typing import Annotated, Any

import typer

from railweave.tools.commands.topo_check import check_topology
from railweave.tools.commands.topo_diff import diff_topologies
from railweave.tools.commands.topo_list import list_topologies
from railweave.tools.opening import open_topology
from railweave.tools.output import aligned, emit, emit_json, note, paint, write_output

__all__ = ["topo"]

topo = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, check, compare, draw, export topologies.",
)

Topology = Annotated[
    str,
    typer.Argument(help="A topology file, or the name of a shipped design.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]

topo.command("list")(list_topologies)
topo.command("diff")(diff_topologies)
topo.command("check")(check_topology)


@topo.command()
def show(source: Topology, json: Json = False) -> None:
    """Count its parts and cables; show oversubscription and bisection."""
    from railweave.topologies.summary import summarise

    _, fabric = open_topology(source)
    summary = summarise(fabric)
    if json:
        emit_json(summary)
        return
    emit(paint(fabric.name, "bold"))
    emit(aligned(_summary_rows(summary), indent="  "))


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in summary.items():
        if isinstance(value, dict):
            parts = [f"{name} {_shown(key, part)}" for name, part in value.items() if part]
            rows.append((key, ", ".join(parts) or "-"))
        elif key == "bisection_bps":
            rows.append(("bisection", _shown("bisection_bps", value)))
        else:
            rows.append((key, _shown(key, value)))
    return rows


def _shown(key: str, value: object) -> str:
    from railweave.fabric.units import format_rate

    if value is None:
        return "-"
    if key == "bisection_bps" and isinstance(value, int):
        return format_rate(value)
    if key == "oversubscription":
        return f"{value:g}:1" if isinstance(value, int | float) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


@topo.command()
def draw(
    source: Topology,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The picture's file (default: NAME.FORMAT)."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="A run's folder: what it did is drawn as colour and width."),
    ] = None,
    overlay: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What of the run is drawn: utilisation, pause, drops, ecn, failures (its faults, "
            "as if all at once) or ranks (what was placed on which GPU).  [default: utilisation]",
            show_default=False,
        ),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A flow of the run, whose path stands out."),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A cable, host or device drawn as down; may be given repeatedly."
        ),
    ] = None,
    plane: Annotated[
        int | None, typer.Option(metavar="N", help="Draw only the switches of this plane.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="svg, dot, png or pdf (default: by the file's ending)."),
    ] = None,
    expand: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Groups to draw host by host, such as 3 or 0,7; all; or none: each group as one "
            "box.  [default: all up to 1,024 GPUs, else none]",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Draw it, with what a run did to its links if one is given."""
    from railweave.tools.drawn_run import as_run, overlay_of, with_failures
    from railweave.tools.render import draw as draw_fabric
    from railweave.tools.render import picture_format

    ending = output.suffix.removeprefix(".") if output is not None else ""
    chosen = picture_format(form or ending or "svg")
    _, fabric = open_topology(source)
    fabric = with_failures(as_run(fabric, run), fail or ())
    drawn = overlay_of(fabric, run=run, overlay=overlay, flow=flow)
    groups = [group for part in expand or () for group in part.split(",")] or None
    path = output or Path(f"{fabric.name}.{chosen}")
    picture = draw_fabric(
        drawn.fabric,
        form=chosen,
        loads=drawn.loads,
        expand=groups,
        plane=plane,
        ranks=drawn.ranks,
    )
    write_output(path, picture, force=force)
    note(f"wrote {path}")


@topo.command()
def export(
    source: Topology,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write (default: stdout).")
    ] = None,
    force: Force = False,
) -> None:
    """Export it as node-link JSON, as NetworkX reads it."""
    from railweave.tools.export import to_node_link

    _, fabric = open_topology(source)
    text = to_node_link(fabric)
    if output is None:
        emit(text.rstrip("\n"))
        return
    write_output(output, text, force=force)
    note(f"wrote {output}")
