# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: what is drawn where, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.charts.axes import Scale, size_text, time_text
from railweave.tools.charts.blocks import Bar, gantt_chart, heat_chart
from railweave.tools.charts.lines import busbw_chart, cdf_chart
from railweave.tools.charts.of_run import cdf_of, gantt_of
from railweave.tools.cli import run_command_line
from railweave.tools.palette import class_colours, heat_class, heat_rules, ramp
from railweave.tools.report.run_data import FlowRow, Span, read_run

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.tools.charts.canvas import Canvas

SVG = "{http://www.w3.org/2000/svg}"


def shapes(chart: Canvas | None, tag: str) -> list[ET.Element]:
    assert chart is not None
    return list(ET.fromstring(chart.document().partition("\n")[2]).iter(f"{SVG}{tag}"))


def texts(chart: Canvas | None) -> list[str]:
    return [element.text or "" for element in shapes(chart, "text")]


def tips(chart: Canvas | None, tag: str) -> list[tuple[ET.Element, str]]:
    found = []
    for element in shapes(chart, tag):
        title = element.find(f"{SVG}title")
        if title is not None:
            found.append((element, title.text or ""))
    return found


@given(
    low=st.floats(1e-3, 1e12),
    ratio=st.floats(1.001, 1e9),
    log=st.booleans(),
)
def test_ticks_are_inside_and_few(low: float, ratio: float, log: bool) -> None:
    scale = Scale(low=low, high=low * ratio, start=0, end=100, log=log)
    ticks = scale.ticks()
    assert len(ticks) <= 12
    assert ticks == sorted(ticks)
    for tick in ticks:
        assert -1e-3 <= scale.at(tick) <= 100 + 1e-3


@pytest.mark.parametrize(("low", "high"), [(5.4e9, 15e9), (1.0, 1.2), (1e3, 1e12)])
def test_a_logarithmic_axis_never_has_a_single_tick(low: float, high: float) -> None:
    assert len(Scale(low=low, high=high, start=0, end=1, log=True).ticks()) >= 2


def test_numbers_in_words() -> None:
    assert [size_text(n) for n in (0, 1, 1 << 10, 89_600 << 10, 2_500_000_000)] == [
        *("0 B", "1 B", "1 KiB", "91.75 MB", "2.5 GB"),
    ]
    assert [time_text(n) for n in (0, 999, 15_432_100_000)] == ["0 ps", "999 ps", "15.43 ms"]


def test_busbw_draws_each_size_at_its_height_and_its_bound() -> None:
    rows = [
        {"size_bytes": 1 << 20, "busbw_GBps": 50.0, "time_ps": 200, "bound_ps": 100},
        {"size_bytes": 1 << 30, "busbw_GBps": 100.0, "time_ps": 100, "bound_ps": 100},
    ]
    chart = busbw_chart({"all_reduce": rows})
    said = [tip for _, tip in tips(chart, "circle")]
    assert said == [
        "all_reduce, 1 MiB: 50.00 GB/s, at most 100.00",
        "all_reduce, 1 GiB: 100.00 GB/s, at most 100.00",
    ]
    low, high = (float(dot.attrib["cy"]) for dot, _ in tips(chart, "circle"))
    zero = 340 - 48
    assert (zero - high) == pytest.approx(2 * (zero - low), abs=0.02)
    assert {"1 MiB", "1 GiB", "size"} <= set(texts(chart))
    assert busbw_chart({}) is None


def test_cdf_steps_up_at_each_time() -> None:
    chart = cdf_chart({"kv": [1_000, 10_000, 100_000, 1_000_000]})
    path = next(p for p in shapes(chart, "path") if p.attrib["stroke-width"] == "2").attrib["d"]
    points = [tuple(map(float, point.split())) for point in re.findall(r"[\d.]+ [\d.]+", path)]
    (left, bottom), (right, top) = points[0], points[-1]
    assert (left, right) == (70, 620 - 24)
    for i, (x, y) in enumerate(points[2::2]):
        assert y == pytest.approx(bottom - (bottom - top) * (i + 1) / 4, abs=0.02)
        assert x == pytest.approx(left + (right - left) * i / 3, abs=0.02)
    assert "kv (4)" in texts(chart)
    assert cdf_chart({"kv": []}) is None


def test_cdf_of_very_many_times_stays_small() -> None:
    chart = cdf_chart({"": list(range(1, 100_001))})
    assert chart is not None
    assert len(chart.document()) < 20_000


def test_heat_map_colours_each_stretch_and_takes_the_busiest() -> None:
    load = np.array([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1]])
    chart = heat_chart(["a", "b", "c"], load, np.array([0, 10, 20, 30, 40]) * 10**9, rows=2)
    found = {tip: box.attrib["fill"] for box, tip in tips(chart, "rect")}
    assert found == {
        "a: 50.0 %, 10 ms to 30 ms": ramp(0.5),
        "b: 100.0 %, 0 ps to 10 ms": ramp(1.0),
    }
    assert "share of the link's rate, 2 of 3 that carried anything" in texts(chart)
    assert heat_chart([], np.zeros((0, 4)), np.arange(5)) is None


def test_links_that_are_loaded_alike_are_one_row_of_the_heat_map() -> None:
    load = np.array([[0.5, 0.0], [0.2, 0.4], [0.5, 0.001], [0.5, 0.0]])
    chart = heat_chart(["a", "b", "c", "d"], load, np.array([0, 10, 20]) * 10**9)
    assert [text for text in texts(chart) if text[0] in "abcd"] == ["a and 2 alike", "b"]
    assert "share of the link's rate" in texts(chart)  # all four are drawn
    marks = {tip: box.attrib["class"] for box, tip in tips(chart, "rect")}
    assert marks["a and 2 alike: 50.0 %, 0 ps to 10 ms"] == heat_class(0.5)


def test_a_page_has_a_colour_for_every_step_of_its_own_ramp() -> None:
    rules = heat_rules()
    assert rules.count("svg.chart .heat-") == 41
    assert ".heat-40 { fill: color-mix(in srgb, var(--r5) 100%, var(--r4)); }" in rules
    assert ".heat-12 { fill: color-mix(in srgb, var(--r2) 50%, var(--r1)); }" in rules


def test_a_class_has_one_colour_in_all_charts(run: Path) -> None:
    found = read_run(run)
    flow = FlowRow(
        id="f", src="h0", dst="h1", size_bytes=1, start_ps=0, end_ps=9, bound_ps=5, tag="tp",
        wire_bytes=1,
    )  # fmt: skip
    both = dataclasses.replace(
        found, spans=(), requests=(), flows=(flow, dataclasses.replace(flow, id="g", tag="kv"))
    )
    colours = class_colours({"kv", "tp"})
    bars = {box.attrib["fill"] for box, tip in tips(gantt_of(both), "rect") if tip[0] in "fg"}
    lines = {path.attrib["stroke"] for path in shapes(cdf_of([both]), "path")}
    assert bars == set(colours.values()) <= lines


def test_gantt_has_a_lane_each_in_order_of_start() -> None:
    bars = [
        Bar(lane="late", kind="x", start_ps=500, end_ps=1000),
        Bar(lane="early", kind="y", start_ps=0, end_ps=250),
        Bar(lane="early", kind="x", start_ps=250, end_ps=500),
    ]
    chart = gantt_chart(bars, title="t", colours={"x": "#000001", "y": "#000002"})
    names = [text for text in texts(chart) if text in ("early", "late")]
    assert names == ["early", "late"]
    boxes = {tip: box for box, tip in tips(chart, "rect")}
    quarter = float(boxes["early, y: 250 ps"].attrib["width"])
    assert float(boxes["late, x: 500 ps"].attrib["width"]) == pytest.approx(2 * quarter, abs=0.02)
    assert boxes["early, y: 250 ps"].attrib["fill"] == "#000002"
    few = gantt_chart(bars, title="t", colours={"x": "#000001", "y": "#000002"}, lanes=1)
    assert "1 more are not drawn" in texts(few)


def test_very_many_short_bars_are_joined() -> None:
    bars = [
        Bar(lane="one", kind="x", start_ps=i * 100, end_ps=i * 100 + 50) for i in range(100_000)
    ]
    chart = gantt_chart(bars, title="t", colours={"x": "#000001"})
    assert chart is not None
    assert len(chart.document()) < 3_000
    (box,) = [box for box, tip in tips(chart, "rect") if tip == "one, x: several"]
    assert float(box.attrib["width"]) == pytest.approx(900 - 24 - 60, abs=0.1)


def test_names_in_charts_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    chart = gantt_chart(
        [Bar(lane=evil, kind=evil, start_ps=0, end_ps=1, tip=evil)],
        title=evil,
        colours={evil: "#000000"},
    )
    assert chart is not None
    assert evil not in chart.document()
    assert evil in texts(chart)


SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "all",
    "topology": "h100-rail-8",
    "workload": [
        {"kind": "collective", "name": "c", "op": "all_reduce", "sizes": ["1MiB", "4MiB"]},
        {
            "kind": "flows",
            "name": "f",
            "flows": [{"src": "h0/gpu0", "dst": "h1/gpu0", "size": "1MiB", "class": "kv"}],
        },
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charts") / "run"
    return RunFolder(folder, name="all").write(run_scenario(SCENARIO, timeline=16), Stopwatch())


def test_a_step_has_a_lane_for_each_stage_and_what_it_sends(run: Path) -> None:
    names = (
        "forward 0 stage 10",
        "forward 0 stage 9",
        "backward 0 to stage 9",
        "gradients stage 9",
    )
    spans = tuple(
        Span(name=name, start_ps=i * 10, end_ps=i * 10 + 10) for i, name in enumerate(names)
    )
    late = Span(name="forward 1 stage 9", start_ps=40, end_ps=50)
    steps = [{"step": 0, "start_ps": 0, "step_ps": 40}, {"step": 1, "start_ps": 40, "step_ps": 40}]
    read = read_run(run)
    chart = gantt_of(
        dataclasses.replace(read, spans=(*spans, late), result={**read.result, "steps": steps})
    )
    lanes = [text for text in texts(chart) if text.startswith("stage")]
    assert lanes == ["stage 9", "stage 9 gradients", "stage 9 receives", "stage 10"]
    assert [tip for _, tip in tips(chart, "rect")] == [f"{name}: 10 ps" for name in names]
    assert "First step" in texts(chart)


@pytest.mark.parametrize("kind", ["busbw", "cdf", "heatmap", "gantt"])
def test_the_command_writes_each_chart(kind: str, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.svg"
    assert run_command_line(["plot", kind, str(run), "-o", str(target)]) == 0
    svg = ET.parse(target).getroot()
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for element in svg.iter(f"{SVG}rect"):
        right = float(element.attrib.get("x", 0)) + float(element.attrib["width"])
        assert 0 <= right <= width + 0.1
        assert math.isfinite(height)


def test_runs_are_laid_over_each_other(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.svg"
    assert run_command_line(["plot", "busbw", str(run), str(run), "-o", str(target)]) == 0
    assert run_command_line(["plot", "gantt", str(run), str(run)]) == 2


@pytest.mark.parametrize(
    ("kind", "said"), [("heatmpa", "did you mean 'heatmap'"), ("heatmap", "--timeline 96")]
)
def test_what_cannot_be_drawn_says_why(
    kind: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run", name="all").write(run_scenario(SCENARIO), Stopwatch())
    assert run_command_line(["plot", kind, str(folder)]) == 2
    assert said in capsys.readouterr().err
