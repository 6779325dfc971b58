# SPDX-License-Identifier: Apache-2.0
"""The report of a run as one HTML file: no network, no framework, every name from a file escaped.

The page forbids itself all connections and every script but its own, which it names by hash
(Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from railweave.fabric.words import plural
from railweave.tools.charts.of_run import charts_of
from railweave.tools.palette import heat_rules
from railweave.tools.report.payload import pack, payload_of, shown_flows
from railweave.tools.report.summary import cards, notes, provenance
from railweave.tools.report.tables import tables_of

if TYPE_CHECKING:
    from railweave.tools.report.run_data import Run

__all__ = ["report_page"]

_SCRIPTS: Final = ("core.js", "model.js", "map.js", "panel.js", "controls.js")
_BROAD: Final = 700  # pixels of width from which a chart gets a row of its own


def _asset(name: str) -> str:
    return (files("railweave.tools.report") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def report_page(run: Run) -> str:
    """Return the report of a run.

    Parameters
    ----------
    run
        What `read_run` read.
    """
    flows = shown_flows(run)
    style = "\n" + _asset("page.css") + heat_rules()
    script = "\n(() => {\n" + '"use strict";\n' + "".join(map(_asset, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    name = escape(str(run.result.get("name", run.name)))
    status = escape(str(run.result["status"]))
    fabric = run.fabric
    about = " \N{MIDDLE DOT} ".join(
        [
            f"{escape(str(run.result['engine']))} engine",
            escape(fabric.name),
            plural(len(fabric.gpus), "GPU"),
            plural(len(fabric.host_names), "host"),
            plural(len(fabric.switches), "switch"),
            plural(int(fabric.link_network.sum()) // 2, "network cable"),
        ]
    )
    charts = "\n".join(
        f"<figure{' class=broad' if chart.width > _BROAD else ''}>{chart.inline()}</figure>"
        for chart in charts_of(run)
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{name} \N{EN DASH} railweave report</title>",
            f"<style>{style}</style></head>",
            '<body><a class="skip" href="#fabric">Skip to the fabric</a>',
            f'<header><h1>{name}</h1><span class="pill {status}">{status}</span>',
            '<nav aria-label="Sections"><a href="#fabric">Fabric</a><a href="#charts">Charts</a>'
            '<a href="#tables">Tables</a><a href="#source">Provenance</a>'
            '<button id="theme" type="button">Dark</button></nav>',
            f'<p class="about">{about}</p></header>',
            f"<main>{cards(run)}{notes(run)}",
            _fabric(run),
            f'<section id="charts"><h2>Charts</h2><div class="charts">{charts}</div></section>'
            if charts
            else "",
            f'<section id="tables"><h2>Tables</h2>{tables_of(run, flows)}</section>',
            f'<section id="source"><h2>Provenance and bounds</h2>{provenance(run)}</section>',
            "</main><footer>Made by railweave "
            f"{escape(str(run.result['provenance'].get('version', '')))}. This file holds all that "
            "it shows and fetches nothing.</footer>",
            f'<script type="text/plain" id="payload">{pack(payload_of(run, flows))}</script>',
            f"<script>{script}</script>",
            "</body></html>",
            "",
        ]
    )


def _fabric(run: Run) -> str:
    """Return the map with its controls."""
    hint = ""
    if run.timeline is None:
        hint = (
            '<p class="about sub">This run recorded no timeline: '
            + (
                "the slider shows flows at their mean rates. "
                if run.flows
                else "the slider has nothing to show. "
            )
            + "<code>railweave run --timeline 96</code> records the true load of every network "
            "link over time.</p>"
        )
    return f"""<section id="fabric"><h2>Fabric</h2>
<div class="tools">
<div class="search"><input id="search" type="search" placeholder="Search device, host or flow"
 aria-label="Search device, host or flow" role="combobox" aria-expanded="false"
 aria-controls="found" autocomplete="off">
<ul class="found" id="found" role="listbox" hidden></ul></div>
<label>Show <select id="measure"><option value="load">load</option></select></label>
<label>Class <select id="class"><option value="-1">all traffic</option></select></label>
<label class="time">Time <input id="time" type="range" min="0" max="0" value="0" step="1">
<output id="when" for="time"></output></label><button id="play" type="button">Play</button>
</div>{hint}
<div class="stage"><div class="view">
<canvas id="map" tabindex="0" role="application" aria-label="Map of the fabric"
 aria-describedby="meaning"></canvas>
<div class="scale"><span>0</span><i></i><span>100 %</span><span id="meaning"></span>
<span class="zoom"><button id="zoom-in" type="button" aria-label="Zoom in">+</button>
<button id="zoom-out" type="button" aria-label="Zoom out">\N{MINUS SIGN}</button>
<button id="fit" type="button">Fit</button></span></div></div>
<aside class="panel" id="panel" aria-live="polite" aria-label="What is chosen"></aside></div>
</section>"""
