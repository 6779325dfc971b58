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
from railweave.tools.drawing import compose
from railweave.tools.layout import lay_out, unit_name
from railweave.tools.palette import DOWN, MUTED, SWITCH, rail_colour, ramp
from railweave.tools.render_svg import to_svg
from railweave.tools.tiers import arrange
from railweave.tools.words import plural, shown_rate

if TYPE_CHECKING:
    import graphviz

    from railweave.fabric.graph import Fabric
    from railweave.tools.layout import Layout
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.tiers import Bundle

__all__ = ["FORMATS", "draw", "picture_format", "to_dot"]

FORMATS: Final = ("svg", "dot", "png", "pdf")
_POINTS: Final = 0.75  # of a 1/96 inch pixel
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


def draw(fabric: Fabric, *, form: str = "svg", loads: LinkLoads | None = None) -> bytes:
    """Draw a fabric.

    Parameters
    ----------
    fabric
        What to draw.
    form
        ``svg``, ``dot``, ``png`` or ``pdf``; the last two need Graphviz's ``dot``.
    loads
        Load of each link, drawn as colour and width, or None.

    Raises
    ------
    MissingToolError
        Graphviz is not installed.
    """
    chosen = picture_format(form)
    if chosen == "svg":
        return to_svg(compose(fabric, loads)).encode()
    if chosen == "dot":
        return to_dot(fabric, loads).encode()
    return _run_graphviz(_graph(fabric, loads), chosen)


def to_dot(fabric: Fabric, loads: LinkLoads | None = None) -> str:
    """Return the fabric in Graphviz's DOT language, positions included."""
    return str(_graph(fabric, loads).source)


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


def _graph(fabric: Fabric, loads: LinkLoads | None) -> graphviz.Graph:
    import graphviz

    tiers = arrange(fabric)
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


def _node(layout: Layout, device: int) -> str:
    """Return the name of the node that stands for a device."""
    tiers = layout.tiers
    host = int(tiers.fabric.host[device])
    if host >= 0:
        return unit_name(tiers, tiers.units[tiers.unit_of_host[host]])
    return tiers.fabric.device_names[device]


def _add_nodes(graph: graphviz.Graph, layout: Layout) -> None:
    tiers, fabric = layout.tiers, layout.tiers.fabric
    host = layout.host
    with graph.subgraph(name="hosts", graph_attr={"rank": "same"}) as part:
        for number, unit in enumerate(tiers.units):
            middle = layout.unit_x[number] + host.width / 2
            y = layout.host_y + 14
            size = {"width": _inches(host.width), "height": _inches(28), "color": MUTED}
            name = unit_name(tiers, unit)
            shown = _fitted(name, host.width)
            part.node(_quoted(name), label=shown, pos=_place(layout, middle, y), **size)
    for level, row in layout.rows.items():
        with graph.subgraph(name=tiers.level_name(level), graph_attr={"rank": "same"}) as part:
            for switch in tiers.switches(level):
                name = fabric.device_names[switch]
                part.node(
                    _quoted(name),
                    label=_fitted(name, row.width),
                    color=rail_colour(int(fabric.rail[switch])),
                    width=_inches(row.width),
                    height=_inches(28),
                    pos=_place(layout, layout.switch_x[switch], row.y + row.height / 2),
                )


def _add_edge(
    graph: graphviz.Graph, layout: Layout, bundle: Bundle, loads: LinkLoads | None
) -> None:
    fabric, count = layout.tiers.fabric, len(bundle.cables)
    links = [link for cable in bundle.cables for link in (cable, cable + 1)]
    rail = max(int(fabric.rail[device]) for device in (bundle.lower, bundle.upper))
    look = {
        "color": rail_colour(rail if layout.tiers.railed else -1) + "99",
        "penwidth": f"{0.6 + 0.4 * float(np.log2(count)):.2f}",
        "tooltip": f"{plural(count, 'cable')} of {shown_rate(int(fabric.link_rate_bps[links[0]]))}",
    }
    if loads is not None:
        load = _load(bundle, loads)
        look["color"] = ramp(load)
        look["penwidth"] = f"{0.5 + 3 * load**0.5:.2f}"
        look["tooltip"] += f", {100 * load:.2f} %"
    if not np.all(fabric.link_up[links]):
        look |= {"color": DOWN, "style": "dashed"}
    if count > 1 and len(layout.tiers.bundles) <= 64:
        look["label"] = f"\N{MULTIPLICATION SIGN}{count}"
    lower, upper = _node(layout, bundle.lower), _node(layout, bundle.upper)
    graph.edge(_quoted(lower), _quoted(upper), **look)


def _load(bundle: Bundle, loads: LinkLoads | None) -> float:
    if loads is None:
        return 0.0
    links = [link for cable in bundle.cables for link in (cable, cable + 1)]
    return float(np.max(loads.utilisation[links]))


def _quoted(name: str) -> str:
    """Keep Graphviz from reading ``a:1`` as port 1 of a node (names here have no ports)."""
    return name.replace(":", "_")


def _fitted(name: str, width: float) -> str:
    """Return the name, or nothing where it would spill over its box (the tooltip has it)."""
    return name if len(name) * 6.6 <= width else ""


def _inches(pixels: float) -> str:
    return f"{pixels / 96:.3f}"


def _place(layout: Layout, x: float, y: float) -> str:
    """Return a position in points with the origin at the bottom, as Graphviz counts."""
    return f"{x * _POINTS:.2f},{(layout.height - y) * _POINTS:.2f}!"
