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
from railweave.fabric.words import plural
from railweave.tools.box_text import box_text
from railweave.tools.draw_cables import describe
from railweave.tools.drawing import compose
from railweave.tools.layout import lay_out
from railweave.tools.palette import DOWN, FAINT, MUTED, SWITCH, line_colour, rail_colour, ramp
from railweave.tools.ranks import gpus_by_host
from railweave.tools.render_sheet import Sheet, add_legend, add_margin, text_pixels, words_of
from railweave.tools.render_svg import to_svg
from railweave.tools.tiers import arrange

if TYPE_CHECKING:
    from collections.abc import Sequence

    import graphviz

    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap
    from railweave.tools.tiers import Bundle, Tiers

__all__ = ["FORMATS", "draw", "picture_format", "to_dot"]

FORMATS: Final = ("svg", "dot", "png", "pdf")
_HEIGHT: Final = 28.0  # pixels: of a box that holds a line of text
_LINE: Final = 14.0  # pixels: of a line of text
_COUNTED: Final = 64  # bundles up to which each line says how many cables it is
_COUNTED_GATHERED: Final = 24  # the same where boxes stand for groups
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
    plane: int | None = None,
    ranks: RankMap | None = None,
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
    plane
        The only plane whose switches and cables are drawn, or None.
    ranks
        What was placed on the GPUs, drawn as their colour, or None.

    Raises
    ------
    InputError
        There is no such group or plane.
    MissingToolError
        Graphviz is not installed.
    """
    chosen = picture_format(form)
    if chosen == "svg":
        return to_svg(compose(fabric, loads, expand=expand, plane=plane, ranks=ranks)).encode()
    graph = _graph(arrange(fabric, expand=expand, plane=plane), loads, ranks)
    if chosen == "dot":
        return str(graph.source).encode()
    return _run_graphviz(graph, chosen)


def to_dot(
    fabric: Fabric, loads: LinkLoads | None = None, *, expand: Sequence[str] | None = None
) -> str:
    """Return the fabric in Graphviz's DOT language, positions included."""
    return str(_graph(arrange(fabric, expand=expand), loads, None).source)


def _run_graphviz(graph: graphviz.Graph, form: str) -> bytes:
    import graphviz

    try:
        return cast("bytes", graph.pipe(format=form, engine="neato", neato_no_op=2, quiet=True))
    except graphviz.ExecutableNotFound:
        raise MissingToolError(
            f"drawing {form} needs Graphviz, which is not installed; install it with: {_INSTALL}"
        ) from None
    except graphviz.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise RailweaveError(f"Graphviz failed: {said[-1] if said else error.returncode}") from None


def _graph(tiers: Tiers, loads: LinkLoads | None, ranks: RankMap | None) -> graphviz.Graph:
    import graphviz

    sheet, fabric = Sheet.of(lay_out(tiers)), tiers.fabric
    title = f"{fabric.name}: {plural(len(fabric.gpus), 'GPU')}"
    if ranks is not None:
        title += f", placement of run {ranks.run}"
    if loads is not None:
        title += f", {loads.subtitle}"
    graph = graphviz.Graph(
        fabric.name,
        graph_attr={
            "rankdir": "BT",
            "label": graphviz.escape(title),
            "labelloc": "t",
            "fontname": "Helvetica",
            "fontsize": f"{16 * sheet.grow:.1f}",
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
    _add_nodes(graph, sheet, ranks)
    add_margin(graph, sheet)
    add_legend(graph, sheet, loads, ranks)
    for bundle in sorted(tiers.bundles, key=lambda b: (_load(b, loads), b.lower, b.upper)):
        _add_edge(graph, sheet.layout, bundle, loads)
    return graph


def _add_nodes(graph: graphviz.Graph, sheet: Sheet, ranks: RankMap | None) -> None:
    layout, tiers = sheet.layout, sheet.layout.tiers
    gpus = gpus_by_host(tiers.fabric) if ranks is not None else []
    for level, numbers in tiers.levels.items():
        with graph.subgraph(name=tiers.level_name(level), graph_attr={"rank": "same"}) as part:
            for number in numbers:
                node, place = tiers.nodes[number], layout.places[number]
                lines = box_text(tiers, number)
                if node.collapsed and not level:
                    lines = [tiers.columns[node.column].title, *lines]
                shown = _fitted(lines, place.width * sheet.grow)
                height = max(_HEIGHT, 12 + _LINE * len(shown)) / sheet.grow
                middle = layout.host_y + height / 2
                if level:
                    middle = layout.rows[level].y + layout.rows[level].height / 2
                look = {}
                if ranks is not None and not level:
                    own = [gpu for host in node.members for gpu in gpus[host]]
                    look["fillcolor"] = ranks.colour(ranks.of_host(own)) + "66"
                part.node(
                    _quoted(node.name),
                    label="\\n".join(shown),
                    tooltip=", ".join(lines),
                    color=rail_colour(node.rail) if level else MUTED,
                    width=sheet.inches(place.width),
                    height=sheet.inches(height),
                    pos=sheet.at(place.x, middle),
                    **look,
                )


def _add_edge(
    graph: graphviz.Graph, layout: Layout, bundle: Bundle, loads: LinkLoads | None
) -> None:
    tiers, count = layout.tiers, len(bundle.cables)
    look = {
        "color": line_colour(tiers.rail_of(bundle), tiers.plane_of(bundle)) + "99",
        "penwidth": f"{0.6 + 0.4 * float(np.log2(count)):.2f}",
        "tooltip": describe(layout, bundle, loads),
    }
    if loads is not None:
        load = _load(bundle, loads)
        look["color"] = ramp(load)
        look["penwidth"] = f"{0.5 + 3 * load**0.5:.2f}"
        if loads.trail and loads.trail.isdisjoint(bundle.links.tolist()):
            look |= {"color": FAINT + "66", "penwidth": "0.5"}
    if not np.all(tiers.fabric.link_up[bundle.links]):
        look |= {"color": DOWN, "style": "dashed"}
    if count > 1 and len(tiers.bundles) <= (_COUNTED_GATHERED if tiers.collapsed else _COUNTED):
        look["label"] = f"\N{MULTIPLICATION SIGN}{count}"
    lower, upper = (tiers.nodes[number].name for number in (bundle.lower, bundle.upper))
    graph.edge(_quoted(lower), _quoted(upper), **look)


def _load(bundle: Bundle, loads: LinkLoads | None) -> float:
    return 0.0 if loads is None else float(loads.utilisation[bundle.links].max())


def _quoted(name: str) -> str:
    """Keep Graphviz from reading ``a:1`` as port 1 of a node (names here have no ports)."""
    return name.replace(":", "_")


def _fitted(lines: Sequence[str], width: float) -> list[str]:
    """Return the lines, or a word a line, or nothing if they spill over (the tooltip has them)."""
    for shown in (list(lines), words_of(lines)):
        if text_pixels(shown) <= width + 0.01:
            return shown
    return []
