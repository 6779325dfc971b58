# SPDX-License-Identifier: Apache-2.0
"""A fabric becomes a picture file: SVG by railweave itself; DOT, PNG and PDF by way of Graphviz.

Graphviz only draws: positions are those of the SVG, since its own layouts lose the tiers or need
minutes beyond about a thousand nodes. In DOT every edge runs from a lower tier to a higher one, or
``dot`` would fold tiers into each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from railweave.fabric.errors import InputError, MissingToolError, RailweaveError, nearest_name
from railweave.tools.box_text import box_text
from railweave.tools.draw_cables import describe
from railweave.tools.drawing import compose
from railweave.tools.layout import lay_out
from railweave.tools.palette import DOWN, MUTED, SWITCH, line_colour, rail_colour, ramp
from railweave.tools.render_svg import to_svg
from railweave.tools.tiers import arrange
from railweave.tools.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    import graphviz

    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.tiers import Bundle

__all__ = ["FORMATS", "draw", "picture_format", "to_dot"]

FORMATS: Final = ("svg", "dot", "png", "pdf")
_POINTS: Final = 0.75  # of a 1/96 inch pixel
_HEIGHT: Final = 28.0  # pixels: of a box that holds a line of text
_INSTALL: Final = "apt-get install graphviz"


def picture_format(name: str) -> str:
    """Return the format of that name, or raise `InputError` with the nearest."""
    if name.lower() not in FORMATS:
        raise InputError(
            f"'{name}' is not a picture format",
            expected=" | ".join(FORMATS),
            nearest=nearest_name(name.lower(), FORMATS),
        )
    return name.lower()


def draw(
    fabric: Fabric,
    *,
    form: str = "svg",
    loads: LinkLoads | None = None,
    expand: Sequence[str] | None = None,
) -> bytes:
    """Draw a fabric.

    Parameters
    ----------
    fabric
        What to draw.
    form
        ``svg``, ``dot``, ``png`` or ``pdf``; the last two need Graphviz's ``dot``.
    loads
        Load of each link, drawn as colour and width, or None.
    expand
        Groups to draw host by host, ``all`` or ``none``; by default all up to 1,024 GPUs.

    Raises
    ------
    InputError
        There is no such group.
    MissingToolError
        Graphviz is not installed.
    """
    chosen = picture_format(form)
    if chosen == "svg":
        return to_svg(compose(fabric, loads, expand=expand)).encode()
    if chosen == "dot":
        return to_dot(fabric, loads, expand=expand).encode()
    return _run_graphviz(_graph(fabric, loads, expand), chosen)


def to_dot(
    fabric: Fabric, loads: LinkLoads | None = None, *, expand: Sequence[str] | None = None
) -> str:
    """Return the fabric in Graphviz's DOT language, positions included."""
    return str(_graph(fabric, loads, expand).source)


def _run_graphviz(graph: graphviz.Graph, form: str) -> bytes:
    import graphviz

    try:
        return cast("bytes", graph.pipe(format=form, engine="neato", neato_no_op=2))
    except graphviz.ExecutableNotFound:
        raise MissingToolError(
            f"drawing {form} needs Graphviz, which is not installed; install it with: {_INSTALL}"
        ) from None
    except graphviz.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise RailweaveError(f"Graphviz failed: {said[-1] if said else error.returncode}") from None


def _graph(fabric: Fabric, loads: LinkLoads | None, expand: Sequence[str] | None) -> graphviz.Graph:
    import graphviz

    tiers = arrange(fabric, expand=expand)
    layout = lay_out(tiers)
    title = f"{fabric.name}: {plural(len(fabric.gpus), 'GPU')}"
    if loads is not None:
        title += f", link load of run {loads.run}"
    graph = graphviz.Graph(
        fabric.name,
        graph_attr={
            "rankdir": "BT",
            "label": graphviz.escape(title),
            "labelloc": "t",
            "fontname": "Helvetica",
            "fontsize": "16",
            "splines": "line",
            "outputorder": "edgesfirst",
        },
        node_attr={
            "shape": "box",
            "style": "filled,rounded",
            "fillcolor": "white",
            "fontname": "Helvetica",
            "fontsize": "9",
            "fixedsize": "true",
        },
        edge_attr={"color": SWITCH, "fontname": "Helvetica", "fontsize": "8", "fontcolor": MUTED},
    )
    _add_nodes(graph, layout)
    for bundle in sorted(tiers.bundles, key=lambda b: (_load(b, loads), b.lower, b.upper)):
        _add_edge(graph, layout, bundle, loads)
    return graph


def _add_nodes(graph: graphviz.Graph, layout: Layout) -> None:
    tiers = layout.tiers
    for level, numbers in tiers.levels.items():
        with graph.subgraph(name=tiers.level_name(level), graph_attr={"rank": "same"}) as part:
            for number in numbers:
                node, place = tiers.nodes[number], layout.places[number]
                height, middle = _HEIGHT, layout.host_y + _HEIGHT / 2
                if level:
                    middle = layout.rows[level].y + layout.rows[level].height / 2
                lines = box_text(tiers, number)
                if node.collapsed:
                    lines = [tiers.columns[node.column].title, *lines] if not level else lines
                    height = 2 * _HEIGHT
                    middle += _HEIGHT / 2 * (not level)
                part.node(
                    _quoted(node.name),
                    label=_fitted(lines, place.width),
                    tooltip=", ".join(lines),
                    color=rail_colour(node.rail) if level else MUTED,
                    width=_inches(place.width),
                    height=_inches(height),
                    pos=_place(layout, place.x, middle),
                )


def _add_edge(
    graph: graphviz.Graph, layout: Layout, bundle: Bundle, loads: LinkLoads | None
) -> None:
    fabric, nodes, count = layout.tiers.fabric, layout.tiers.nodes, len(bundle.cables)
    look = {
        "color": line_colour(layout.tiers.rail_of(bundle), layout.tiers.plane_of(bundle)) + "99",
        "penwidth": f"{0.6 + 0.4 * float(np.log2(count)):.2f}",
        "tooltip": describe(layout, bundle, loads),
    }
    if loads is not None:
        load = _load(bundle, loads)
        look["color"] = ramp(load)
        look["penwidth"] = f"{0.5 + 3 * load**0.5:.2f}"
    if not np.all(fabric.link_up[bundle.links]):
        look |= {"color": DOWN, "style": "dashed"}
    if count > 1 and len(layout.tiers.bundles) <= 64:
        look["label"] = f"\N{MULTIPLICATION SIGN}{count}"
    graph.edge(_quoted(nodes[bundle.lower].name), _quoted(nodes[bundle.upper].name), **look)


def _load(bundle: Bundle, loads: LinkLoads | None) -> float:
    return 0.0 if loads is None else float(loads.utilisation[bundle.links].max())


def _quoted(name: str) -> str:
    """Keep Graphviz from reading ``a:1`` as port 1 of a node (names here have no ports)."""
    return name.replace(":", "_")


def _fitted(lines: Sequence[str], width: float) -> str:
    """Return the lines, or nothing where they would spill over their box (the tooltip has them)."""
    return "\n".join(lines) if max(map(len, lines)) * 6.6 <= width else ""


def _inches(pixels: float) -> str:
    return f"{pixels / 96:.3f}"


def _place(layout: Layout, x: float, y: float) -> str:
    """Return a position in points with the origin at the bottom, as Graphviz counts."""
    return f"{x * _POINTS:.2f},{(layout.height - y) * _POINTS:.2f}!"
