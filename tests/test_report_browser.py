# SPDX-License-Identifier: Apache-2.0
"""The report in headless Chromium, from a file, with no network."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import chromium
import pytest
import yaml

from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.drawing import compose
from railweave.tools.render_svg import to_svg
from railweave.tools.report.page import report_page
from railweave.tools.report.run_data import read_run
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from railweave.fabric.graph import Fabric

pytestmark = pytest.mark.skipif(
    chromium.find() is None, reason="no Chromium: apt-get install chromium"
)

EVIL = "<script>alert(1)</script>"
READY = "document.documentElement?.dataset.ready === 'yes'"
SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "incast",
    "engine": "packet",
    "topology": "h100-rail-8",
    "workload": {
        "kind": "flows",
        "flows": [
            {"id": "a", "src": "h1/gpu0", "dst": "h0/gpu0", "size": "2MiB", "class": "kv"},
            {"id": "b", "src": "h2/gpu0", "dst": "h0/gpu0", "size": "2MiB", "class": "tp"},
            {"id": "late", "src": "h4/gpu1", "dst": "h5/gpu1", "size": "2MiB", "start": "200us"},
        ],
    },
}
HOT = "leaf0.r0:0>h0/nic0:0"
LATE = "h4/nic1:0>leaf0.r1:4"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "run"
    RunFolder(folder, name="incast").write(run_scenario(SCENARIO, timeline=32), Stopwatch())
    path = folder / "report.html"
    path.write_text(report_page(read_run(folder)), "utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: chromium.Page, report: Path) -> chromium.Page:
    browser.events.clear()
    browser.resize(1280, 900)
    browser.open(report, ready=READY)
    return browser


def panel(page: chromium.Page) -> str:
    text = page.run("document.getElementById('panel').innerText")
    assert isinstance(text, str)
    return text


def number_of(page: chromium.Page, link: str) -> int:
    found = page.run(
        "Array.from({length: railweave.model.links}, (_, i) => railweave.model.name(i))"
        f".indexOf({link!r})"
    )
    assert isinstance(found, int)
    return found


def test_it_loads_without_network_and_without_complaint(page: chromium.Page) -> None:
    assert page.run("navigator.onLine") is False
    assert page.run("document.querySelector('h1').textContent") == "incast"
    assert page.complaints() == []


def test_a_link_is_clicked_and_its_counters_appear(page: chromium.Page) -> None:
    link = number_of(page, HOT)
    at = page.run(
        f"(() => {{ const m = railweave.map, line = m.lineOf.get({link});"
        "const [x, y] = m.toScreen(...m.pointOn(line, 0.5));"
        "m.canvas.scrollIntoView(); const b = m.canvas.getBoundingClientRect();"
        "return [b.left + x, b.top + y]; })()"
    )
    page.click(*at)
    page.wait("document.querySelector('#panel [data-link]') !== null")
    said = panel(page)
    assert said.startswith(HOT)
    for counter in (
        "utilisation, whole run",
        "wire bytes",
        "frames marked (ECN)",
        "Load over time",
    ):
        assert counter in said
    assert re.search(r"\ba\b.*\bb\b", said.partition("Flows, largest first")[2], flags=re.S)
    assert page.complaints() == []


def test_search_finds_a_device_with_the_keyboard(page: chromium.Page) -> None:
    page.run("document.getElementById('search').focus()")
    page.call("Input.insertText", text="leaf0.r3")
    page.press("Enter", number=13)
    assert panel(page).startswith("leaf0.r3")
    assert page.run("railweave.map.pickedBoxes.size") == 1
    page.run("document.getElementById('search').value = ''")
    page.call("Input.insertText", text="no such thing")
    assert page.run("document.getElementById('found').innerText") == "nothing of that name"


def test_the_slider_moves_time(page: chromium.Page) -> None:
    late, hot = number_of(page, LATE), number_of(page, HOT)
    page.run("document.getElementById('time').focus()")
    whole = page.run("document.getElementById('when').textContent")
    assert whole.startswith("whole run")
    page.press("ArrowRight", number=39)
    first = page.run("document.getElementById('when').textContent")
    assert re.fullmatch(r"0 ps to [\d.]+ us", first)
    assert page.run(f"railweave.map.values[{hot}]") > 0
    assert page.run(f"railweave.map.values[{late}]") == 0
    page.press("End", number=35)
    assert page.run(f"railweave.map.values[{late}] > railweave.map.values[{hot}]")


def test_the_class_of_traffic_filters_map_and_tables(page: chromium.Page) -> None:
    hot = number_of(page, HOT)
    both = page.run(f"railweave.map.values[{hot}]")
    page.run(
        "(() => { const s = document.getElementById('class');"
        "s.value = [...s.options].find((o) => o.textContent === 'kv').value;"
        "s.dispatchEvent(new Event('change')); })()"
    )
    assert 0 < page.run(f"railweave.map.values[{hot}]") < both
    shown = page.run(
        "[...document.querySelectorAll('#flows tbody tr')].filter((r) => !r.hidden).length"
    )
    assert shown == 1


def test_tables_sort_by_value_both_ways(page: chromium.Page) -> None:
    def column() -> list[float]:
        found = page.run(
            "[...document.querySelectorAll('#links tbody tr')].map((r) => +r.cells[4].dataset.v)"
        )
        assert isinstance(found, list)
        return found

    page.run("document.querySelectorAll('#links thead button')[4].click()")
    assert column() == sorted(column(), reverse=True)
    page.run("document.querySelectorAll('#links thead button')[4].click()")
    assert column() == sorted(column())
    heads = "document.querySelectorAll('#links th')[4].getAttribute('aria-sort')"
    assert page.run(heads) == "ascending"


def test_the_map_is_moved_with_the_keyboard(page: chromium.Page) -> None:
    page.run("document.getElementById('map').focus()")
    before = page.run("railweave.map.k")
    page.press("+")
    assert page.run("railweave.map.k") > before
    page.press("0")
    assert page.run("railweave.map.k") == before
    page.press("n")
    assert page.run("railweave.map.picked.size") == 1
    page.press("Escape", number=27)
    assert page.run("railweave.map.picked.size") == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_window(page: chromium.Page, width: int, dark: bool, tmp_path: Path) -> None:
    page.resize(width, 844, dark=dark)
    page.wait(f"document.documentElement.clientWidth === {width}")
    assert page.run("document.documentElement.scrollWidth") <= width
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_it_prints_on_one_page(page: chromium.Page, tmp_path: Path) -> None:
    data = page.print(tmp_path / "report.pdf")
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) == 1


def test_charts_are_read_on_a_phone_and_in_the_dark(page: chromium.Page) -> None:
    """Words of a chart stay as large as a page's small print; a heat map has the page's ramp."""
    page.resize(390, 844, dark=True)
    page.wait("document.documentElement.clientWidth === 390")
    smallest = page.run(
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map((t) =>"
        "parseFloat(t.getAttribute('font-size')) * t.ownerSVGElement.getBoundingClientRect().width"
        "/ t.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest >= 8.5
    full = page.run("getComputedStyle(document.querySelector('.heat-40')).fill")
    assert "1 0.945098 0.741176" in full  # #fff1bd


def test_the_sheet_holds_every_chart_of_a_step(browser: chromium.Page, tmp_path: Path) -> None:
    scenario = {
        "schema": 1,
        "engine": "fluid",
        "topology": "h100-rail-8",
        "workload": {
            "kind": "training",
            "model": "llama-3.1-8b",
            **{"tp": 8, "pp": 2, "dp": 4, "sequence": 2048, "micro_batches": 4},
        },
    }
    folder = tmp_path / "run"
    RunFolder(folder, name="step").write(run_scenario(scenario, timeline=32), Stopwatch())
    path = tmp_path / "report.html"
    path.write_text(report_page(read_run(folder)), "utf-8")
    browser.resize(1280, 900)
    browser.open(path, ready=READY)
    data = browser.print(tmp_path / "report.pdf")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) == 1


def test_a_device_with_the_name_of_a_script_stays_text(
    browser: chromium.Page, report: Path, tmp_path: Path
) -> None:
    run = read_run(report.parent)
    fabric = run.fabric
    names = [EVIL if name == "leaf0.r3" else name for name in fabric.device_names]
    hosts = [EVIL if name == "h7" else name for name in fabric.host_names]
    evil = dataclasses.replace(
        run,
        name=EVIL,
        fabric=dataclasses.replace(fabric, device_names=tuple(names), host_names=tuple(hosts)),
        result={**run.result, "name": EVIL, "warnings": [EVIL]},
        flows=tuple(dataclasses.replace(flow, id=EVIL, tag=EVIL) for flow in run.flows),
    )
    path = tmp_path / "evil.html"
    path.write_text(report_page(evil), "utf-8")
    browser.events.clear()
    browser.resize(1280, 900)
    browser.open(path, ready=READY)
    scripts = browser.run("document.scripts.length")
    browser.run("document.getElementById('search').focus()")
    browser.call("Input.insertText", text="<script>")
    assert EVIL in browser.run("document.getElementById('found').innerText")
    for step in range(3):
        browser.run("document.getElementById('search').dispatchEvent(new Event('input'))")
        browser.run(f"document.querySelectorAll('#found button')[{step}].click()")
        assert EVIL in panel(browser)
    assert browser.run("document.querySelector('h1').textContent") == EVIL
    assert browser.run("document.scripts.length") == scripts
    assert browser.complaints() == []
    opened = [e for e in browser.events if e.get("method") == "Page.javascriptDialogOpening"]
    assert opened == []


def _drawn(name: str) -> Fabric:
    if name != "16":
        return build_topology(load_topology(name))
    text = "kind: rail-optimized\nhosts: {count: 2, model: dgx-h100}\nleaf: {switch: spectrum-4}\n"
    text += "spine: {switch: spectrum-4, count: 2}\nlinks:\n"
    text += "  host-leaf: {model: roce-lossless, rate: 400Gbps, length: 10m}\n"
    text += "  leaf-spine: {model: roce-lossless, rate: 400Gbps, length: 30m}\n"
    return build_topology(load_topology({"schema": 1, "name": "sixteen", **yaml.safe_load(text)}))


@pytest.mark.parametrize(
    ("name", "gpus"), [("16", 16), ("h100-rail-512", 512), ("superpod-b200-1024", 8192)]
)
def test_a_drawing_opens_and_all_its_words_are_on_the_sheet(
    browser: chromium.Page, tmp_path: Path, name: str, gpus: int
) -> None:
    fabric = _drawn(name)
    assert len(fabric.gpus) == gpus
    names = list(fabric.device_names)
    first_leaf = names.index("leaf0.r0")
    names[first_leaf] = EVIL
    drawing = compose(dataclasses.replace(fabric, name=EVIL, device_names=tuple(names)))
    path = tmp_path / "drawing.svg"
    path.write_text(to_svg(drawing), "utf-8")
    browser.events.clear()
    browser.resize(1280, 900)
    browser.open(path, ready="document.querySelector('svg title') !== null")
    assert browser.run("document.querySelector('svg > title').textContent") == EVIL
    assert browser.run("document.getElementsByTagName('script').length") == 0
    outside = browser.run(
        "(() => { const s = document.documentElement.viewBox.baseVal;"
        "return [...document.querySelectorAll('text')].filter((t) => {"
        "const b = t.getBBox(); const m = t.transform.baseVal.numberOfItems;"
        "return m === 0 && (b.x < 0 || b.y < 0 || b.x + b.width > s.width + 1"
        " || b.y + b.height > s.height + 1); }).map((t) => t.textContent); })()"
    )
    assert outside == []
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('text')].map((t) =>"
        "parseFloat(t.getAttribute('font-size')) * 1600 /"
        "document.documentElement.viewBox.baseVal.width))"
    )
    assert smallest >= 6  # pixels on a sheet as wide as a page
    assert browser.complaints() == []


def test_a_fabric_without_hosts_has_a_map_too(browser: chromium.Page, tmp_path: Path) -> None:
    """One NIC at each end of one switch, and nothing that was sent."""
    build = FabricBuilder("tiny")
    ends = [
        build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}"))
        for i in range(2)
    ]
    switch = build.add_device("s0", DeviceKind.SWITCH, tier=1)
    for end in ends:
        build.add_cable(
            end, switch, rate_bps=10**11, delay_ps=0, model=LinkModel.ROCE_LOSSLESS, tier="link"
        )
    fabric = build.finish()
    folder = tmp_path / "run"
    RunFolder(folder, name="incast").write(
        run_scenario({**SCENARIO, "engine": "fluid"}), Stopwatch()
    )
    run = read_run(folder)
    nothing = run.utilisation[: fabric.n_links] * 0
    tiny = dataclasses.replace(
        run,
        scenario=None,
        fabric=fabric,
        flows=(),
        utilisation=nothing,
        wire_bytes=nothing.astype("int64"),
        ack_bytes=nothing.astype("int64"),
        counters={},
    )
    path = tmp_path / "tiny.html"
    path.write_text(report_page(tiny), "utf-8")
    browser.events.clear()
    browser.open(path, ready=READY)
    assert browser.run("document.getElementById('time').disabled") is True
    assert browser.complaints() == []
