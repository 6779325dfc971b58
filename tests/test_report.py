# SPDX-License-Identifier: Apache-2.0
"""The report of a run: what stands in the page, without a browser."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import re
import shlex
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.cli import run_command_line
from railweave.tools.report.page import report_page
from railweave.tools.report.payload import MOST_FLOWS, payload_of, shown_flows
from railweave.tools.report.routes import flow_links
from railweave.tools.report.run_data import Run, read_run

ROOT = Path(__file__).parent.parent
EVIL = "<script>alert(1)</script>"
SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "two-classes",
    "topology": "h100-rail-8",
    "workload": {
        "kind": "flows",
        "flows": [
            {"id": EVIL, "src": "h0/gpu0", "dst": "h1/gpu0", "size": "4MiB", "class": "kv"},
            {"id": "b", "src": "h2/gpu0", "dst": "h1/gpu0", "size": "1MiB", "class": "tp"},
            {"id": "c", "src": "h3/gpu1", "dst": "h4/gpu2", "size": "1MiB", "qps": 4},
        ],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    run_folder = RunFolder(path, name="two-classes")
    return run_folder.write(run_scenario(SCENARIO, timeline=32), Stopwatch())


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


class Elements(HTMLParser):
    """Collects the elements and the texts of a page as a browser parses them."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def elements(page: str) -> Elements:
    parsed = Elements()
    parsed.feed(page)
    return parsed


def payload(page: str) -> dict[str, Any]:
    found = re.search(r'id="payload">([^<]*)</script>', page)
    assert found is not None
    text = zlib.decompress(base64.b64decode(found[1]), -zlib.MAX_WBITS)
    data: dict[str, Any] = json.loads(text)
    return data


def test_the_page_names_nothing_outside_itself(run: Run) -> None:
    page = report_page(run)
    parsed = elements(page)
    for tag, given in parsed.tags:
        for key in ("src", "href", "action"):
            value = given.get(key)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    policy = next(g["content"] for t, g in parsed.tags if g.get("http-equiv") and t == "meta")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "url(" not in page
    assert len(parsed.scripts) == 2  # its data and its own


def test_names_from_files_are_text(run: Run) -> None:
    page = report_page(run)
    assert EVIL not in page
    assert EVIL in "".join(elements(page).texts)
    assert EVIL in payload(page)["flows"]["id"]


def test_every_name_of_a_device_host_switch_and_class_is_text(run: Run) -> None:
    fabric = run.fabric
    names = tuple(f"{EVIL}{i}" for i in range(fabric.n_devices))
    hosts = tuple(f"{EVIL}{i}" for i in range(len(fabric.host_names)))
    named = dataclasses.replace(fabric, name=EVIL, device_names=names, host_names=hosts)
    result = {**run.result, "name": EVIL, "warnings": [EVIL], "error": EVIL, "engine": EVIL}
    flows = tuple(
        dataclasses.replace(flow, src=EVIL, dst=EVIL, tag=EVIL, path=()) for flow in run.flows
    )
    evil = dataclasses.replace(
        run, fabric=named, result=result, flows=flows, name=EVIL, scenario=None
    )
    page = report_page(evil)
    assert EVIL not in page
    assert len(elements(page).scripts) == 2


def test_the_links_of_a_flow_carry_its_bytes(run: Run) -> None:
    """Each link has exactly what the flows through it put on it, and their shares add up."""
    found = flow_links(run, run.flows)
    total = np.zeros(run.fabric.n_links)
    for flow, shares in zip(run.flows, found, strict=True):
        assert shares
        for link, share in shares.items():
            if run.fabric.link_network[link]:
                total[link] += share * flow.wire_bytes
    network = run.fabric.link_network
    assert np.abs(total - run.wire_bytes)[network].max() <= 2


def test_a_packet_run_says_the_paths_itself(tmp_path: Path) -> None:
    scenario = {**SCENARIO, "engine": "packet"}
    RunFolder(tmp_path / "run", name="p").write(run_scenario(scenario), Stopwatch())
    run = read_run(tmp_path / "run")
    assert {"paused_ps", "ecn_marked", "dropped"} <= set(run.counters)
    names = [run.fabric.link_name(link) for link in flow_links(run, run.flows)[0]]
    assert names == list(run.flows[0].path)
    assert "paused, all links" in report_page(run)


def test_the_timeline_is_packed_a_byte_a_value(run: Run) -> None:
    data = payload_of(run, run.flows)
    line = data["timeline"]
    assert run.timeline is not None
    load = np.frombuffer(base64.b64decode(line["load"]), np.uint8)
    assert len(load) == len(line["links"]) * (len(line["edges"]) - 1)
    exact = run.timeline.load(run.fabric).ravel()
    assert np.abs(load / 255 - np.minimum(exact, 1)).max() <= 1 / 255
    assert ((load > 0) == (exact > 0)).all()


def test_what_was_down_when_is_told(tmp_path: Path) -> None:
    cable = "h5/nic0:0-leaf0.r0:5"
    scenario = {
        **SCENARIO,
        "faults": [
            {"at": "10us", "link": cable, "do": "down", "for": "5us"},
            {"at": "20us", "link": cable, "do": "down"},
            {"at": "30us", "link": cable, "do": "up"},
            {"at": "40us", "node": "spine1", "do": "down"},
        ],
    }
    folder = RunFolder(tmp_path / "run", name="x").write(run_scenario(scenario), Stopwatch())
    run = read_run(folder)
    outages = payload_of(run, run.flows)["outages"]
    link = run.fabric.device_index["h5/nic0"]
    own = [o[1:] for o in outages if run.fabric.link_src[o[0]] == link]
    us = 10**6
    assert own == [[10 * us, 15 * us], [20 * us, 30 * us]]
    spine = [o for o in outages if o[1] == 40 * us]
    assert len(spine) == 2 * 8 * 4
    assert {o[2] for o in spine} == {run.span_ps}


def test_the_steps_of_a_job_are_read_and_shown(folder: Path, tmp_path: Path) -> None:
    job = tmp_path / "run"
    shutil.copytree(folder, job)
    result = json.loads((job / "result.json").read_text())
    row = {"workload": "training", "step": 0, "start_ps": 0, "step_ps": 3_000_000, "tokens": 8}
    result["steps"] = [{**row, "bound_ps": 2_000_000, "exposed_ps": None, "limit": "compute"}]
    (job / "result.json").write_text(json.dumps(result))
    common = {"cat": "collective", "id": "c0", "name": "forward 0 stage 0"}
    events = [{"ph": "b", "ts": 0.5, **common}, {"ph": "e", "ts": 2.25, **common}]
    (job / "trace.json").write_text(json.dumps({"traceEvents": events}))
    run = read_run(job)
    assert [(s.name, s.start_ps, s.end_ps) for s in run.spans] == [
        ("forward 0 stage 0", 500_000, 2_250_000)
    ]
    said = elements(report_page(run)).texts
    assert {"Steps", "training 0", "3 us", "limited by"} <= set(said)
    (job / "trace.json").write_text('{"traceEvents": [{"cat": "collective"}]}')
    with pytest.raises(InputError, match="is not the timeline"):
        read_run(job)


@pytest.mark.parametrize("intervals", [1, 2, 3, 5, 100])
def test_joined_intervals_keep_every_byte(run: Run, intervals: int) -> None:
    line = run.timeline
    assert line is not None
    joined = line.coarser(intervals)
    assert len(joined.edges_ps) - 1 <= min(intervals, len(line.edges_ps) - 1)
    assert (joined.edges_ps[0], joined.edges_ps[-1]) == (0, run.span_ps)
    for name, rows in line.values.items():
        assert joined.values[name].sum(axis=1).tolist() == rows.sum(axis=1).tolist()
    assert (joined.load(run.fabric) <= 1.001).all()


def test_a_report_keeps_the_longest_flows(run: Run) -> None:
    base = run.flows[0]
    flows = tuple(
        dataclasses.replace(base, id=str(i), end_ps=base.start_ps + i + 1)
        for i in range(MOST_FLOWS + 3)
    )
    shown = shown_flows(dataclasses.replace(run, flows=flows))
    assert [flow.id for flow in shown] == [str(i) for i in range(3, MOST_FLOWS + 3)]


def test_the_same_run_gives_the_same_bytes(folder: Path, run: Run) -> None:
    assert report_page(run) == report_page(read_run(folder))


def test_the_command_writes_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / "report.html"
    assert run_command_line(["report", str(folder)]) == 0
    assert target.read_text("utf-8").startswith("<!doctype html>")
    assert run_command_line(["report", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_command_line(["report", str(folder), "--force"]) == 0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("result.json", "{", "is not JSON"),
        ("result.json", "[]", "is not a JSON object"),
        ("result.json", "{}", "has no key"),
        ("links.csv", "link\n", "has no column"),
        ("flows.csv", "id,src\n", "has no column"),
        ("timeline.json", '{"edges_ps": [0, 1], "links": ["x"], "bytes": [[1]]}', "timeline"),
    ],
)
def test_a_broken_folder_is_one_clear_error(
    folder: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    broken = tmp_path / "run"
    shutil.copytree(folder, broken)
    (broken / name).write_text(text)
    with pytest.raises(InputError, match=said) as error:
        read_run(broken)
    assert error.value.file == str(broken / name)


def test_the_commands_of_the_document_run(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "report.md").read_text("utf-8")
    typed = re.findall(r"^\$ railweave (.*)$", text, flags=re.M)
    assert len(typed) >= 8
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with contextlib.chdir(tmp_path):
        for line in typed:
            assert run_command_line(shlex.split(line)) == 0, line


def test_no_folder_is_an_error_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["report", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
