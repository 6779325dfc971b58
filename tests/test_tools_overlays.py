# SPDX-License-Identifier: Apache-2.0
"""What a run lays over a drawing: pauses, marks, drops, paths, failures, ranks, and one plane."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from railweave.fabric.errors import InputError
from railweave.run_folder import RunFolder, Stopwatch
from railweave.runner import run_scenario
from railweave.tools.cli import run_command_line
from railweave.tools.drawing import compose
from railweave.tools.drawn_run import overlay_of, with_failures
from railweave.tools.overlay import measure_of, read_link_loads
from railweave.tools.palette import DOWN, FAINT, RAMP, between, ramp
from railweave.tools.ranks import IDLE, rank_map
from railweave.tools.render import draw
from railweave.topologies.load import build_topology, load_topology

if TYPE_CHECKING:
    from railweave.fabric.graph import Fabric

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "incast",
    "engine": "packet",
    "topology": "h100-rail-8",
    "workload": {
        "kind": "flows",
        "flows": [
            {"id": f"f{i}", "src": f"h{i}/gpu0", "dst": "h0/gpu0", "size": "1MiB"} for i in (1, 2)
        ],
    },
}
ROOT = Path(__file__).parent.parent
HOT = "leaf0.r0:0>h0/nic0:0"


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return build_topology(load_topology("h100-rail-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlay") / "run"
    return RunFolder(folder, name="incast").write(run_scenario(SCENARIO), Stopwatch())


def column(run: Path, name: str) -> list[float]:
    with (run / "links.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def test_a_count_is_drawn_relative_to_the_link_with_most(run: Path, fabric: Fabric) -> None:
    marked = column(run, "ecn_marked")
    loads = read_link_loads(run, fabric, measure_of("ecn"))
    assert loads.most == max(marked) > 0
    assert np.allclose(loads.utilisation * loads.most, marked)
    (first, *_) = loads.hottest(3)
    assert fabric.link_name(first) == HOT
    assert loads.say(1.0) == f"{int(max(marked)):,}"
    texts = {label.text for label in compose(fabric, loads).labels}
    assert {"Frames marked (ECN)", "Links with most marks", HOT} <= texts


def test_pauses_are_a_share_of_the_run(run: Path, fabric: Fabric, tmp_path: Path) -> None:
    loads = read_link_loads(run, fabric, measure_of("pause"))
    span = run_scenario(SCENARIO).sim_time_ps
    paused = column(run, "paused_ps")
    assert np.allclose(loads.utilisation, np.array(paused) / span)
    half = tmp_path / "half"
    half.mkdir()
    (half / "result.json").write_text('{"sim_time_ps": 1000}')
    (half / "links.csv").write_text(f"link,wire_bytes,utilisation,paused_ps\n{HOT},0,0,500\n")
    loads = read_link_loads(half, fabric, measure_of("pause"))
    assert loads.say(loads.utilisation.max()) == "50.00 %"


def test_a_run_without_the_counter_says_which_engine_has_it(fabric: Fabric, tmp_path: Path) -> None:
    fluid = run_scenario(SCENARIO, overrides={"engine": "fluid"})
    folder = RunFolder(tmp_path / "run", name="incast").write(fluid, Stopwatch())
    with pytest.raises(InputError, match="only the packet engine shows drops"):
        read_link_loads(folder, fabric, measure_of("drops"))


def test_pictures_of_graphviz_have_the_legends_too(run: Path, fabric: Fabric) -> None:
    """What a colour means is on the sheet: the ramp, the hottest links, the rails."""
    dot = draw(fabric, form="dot", loads=read_link_loads(run, fabric)).decode()
    lines = dot.splitlines()
    assert 'label="Link utilisation\\l"' in dot
    assert "Hottest links" in dot
    swatches = [line for line in lines if line.strip().startswith('"swatch ')]
    assert len(swatches) > 40  # forty steps of the ramp, and the bars and swatches
    pale, dark = between(RAMP[0], RAMP[1], 1 / 16), between(RAMP[-2], RAMP[-1], 15 / 16)
    assert [sum(colour in line for line in swatches) for colour in (pale, dark)] == [1, 1]
    plain = draw(fabric, form="dot").decode()
    assert "Link utilisation" not in plain
    assert 'label="r7\\l"' in plain


def test_the_path_of_a_flow_stands_out(run: Path, fabric: Fabric) -> None:
    drawn = overlay_of(fabric, run=run, overlay=None, flow="f2")
    assert drawn.loads is not None
    names = [fabric.link_name(link) for link in drawn.loads.path]
    assert names[-3:] == [HOT, "h0/nic0:1>h0/pcie0:1", "h0/pcie0:0>h0/gpu0:1"]
    scene = compose(fabric, drawn.loads)
    lines = [cable for cable in scene.cables if cable.tip]
    bright = [cable for cable in lines if cable.colour != FAINT]
    assert {cable.tip.partition(":")[0] for cable in bright} == {
        "h0/nic0 \N{EN DASH} leaf0.r0",
        "h2/nic0 \N{EN DASH} leaf0.r0",
    }
    assert "Its path, in order" in {label.text for label in scene.labels}


def test_failures_are_dashed(fabric: Fabric) -> None:
    down = with_failures(fabric, ["spine0", "h0/nic0:0-leaf0.r0:0"])
    dashed = [cable for cable in compose(down).cables if cable.dashed and cable.tip]
    assert len(dashed) == 8 + 1
    assert {cable.colour for cable in dashed} == {DOWN}
    with pytest.raises(InputError, match="spine9"):
        with_failures(fabric, ["spine9"])


def test_the_faults_of_a_run_are_drawn_all_at_once(fabric: Fabric, tmp_path: Path) -> None:
    faults = [
        {"at": "10us", "link": "h1/nic0:0-leaf0.r0:1", "do": "down", "for": "5us"},
        {"at": "30us", "node": "spine1", "do": "down"},
    ]
    broken = {**SCENARIO, "engine": "fluid", "faults": faults}
    folder = RunFolder(tmp_path / "run", name="x").write(run_scenario(broken), Stopwatch())
    drawn = overlay_of(fabric, run=folder, overlay="failures", flow=None)
    assert np.count_nonzero(~drawn.fabric.link_up) == 2 * (1 + 8 * 4)
    with pytest.raises(InputError, match="no fault"):
        overlay_of(fabric, run=_plain(tmp_path), overlay="failures", flow=None)


def _plain(tmp_path: Path) -> Path:
    fluid = run_scenario(SCENARIO, overrides={"engine": "fluid"})
    return RunFolder(tmp_path / "plain", name="incast").write(fluid, Stopwatch())


def test_ranks_are_numbered_within_workloads_and_pools(fabric: Fabric) -> None:
    from railweave.scenario import load_scenario

    scenario = load_scenario(
        {
            **SCENARIO,
            "engine": "fluid",
            "workload": {
                "kind": "collective",
                "name": "ar",
                "op": "all_reduce",
                "size": "1MiB",
                "ranks": 3,
                "placement": {"policy": "list", "gpus": ["h2/gpu1", "h0/gpu5", "h7/gpu0"]},
            },
        }
    )
    ranks = rank_map(scenario, "run")
    assert ranks.labels == ("ar",)
    found = [ranks.say(fabric.device(name)) for name in ("h2/gpu1", "h0/gpu5", "h7/gpu0")]
    assert found == ["rank 0 of ar", "rank 1 of ar", "rank 2 of ar"]
    assert ranks.say(fabric.device("h1/gpu0")) == ""
    scene = compose(fabric, ranks=ranks)
    tips = [box.tip for box in scene.boxes if "rank " in box.tip]
    assert sorted(tip.rpartition(", ")[2] for tip in tips) == sorted(found)
    idle = [box for box in scene.boxes if box.fill == IDLE and "/gpu" in box.tip]
    assert len(idle) == 64 - 3


def test_a_serving_workload_shows_its_pools() -> None:
    from railweave.scenario import load_scenario

    ranks = rank_map(load_scenario(ROOT / "examples" / "llama-70b-disaggregated.yaml"), "demo")
    assert ranks.labels == ("serving prefill", "serving decode")
    assert np.bincount(ranks.label_of[ranks.label_of >= 0]).tolist() == [32, 32]
    for form in ("svg", "dot"):
        fabric = build_topology(load_topology("h100-rail-1su"))
        assert b"placement of run demo" in draw(fabric, form=form, ranks=ranks)


def test_one_plane_is_drawn_alone() -> None:
    fabric = build_topology(load_topology("hpn7-segment"))
    whole, one = draw(fabric).decode(), draw(fabric, plane=1).decode()
    assert "leaf0.r0.p0" in whole
    assert "leaf0.r0.p0" not in one
    assert "leaf0.r7.p1" in one
    cables = re.search(r"([\d,]+) network cables", one)
    assert cables is not None
    assert int(cables[1].replace(",", "")) == int(fabric.link_network.sum()) // 4
    with pytest.raises(InputError, match="no plane 2"):
        draw(fabric, plane=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--overlay", "ecn"], "needs a run"),
        (["--flow", "f1"], "needs a run"),
        (["--overlay", "uitlisation"], "did you mean 'utilisation'"),
        (["--plane", "0"], "no plane 0"),
        (["--fail", "leaf9"], "leaf9"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_error(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path / "x.svg")]
    assert run_command_line(["topo", "draw", "h100-rail-8", *arguments, *out]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.svg").exists()


def test_an_unknown_flow_is_named(run: Path, fabric: Fabric) -> None:
    with pytest.raises(InputError, match="there is no flow 'f3'"):
        overlay_of(fabric, run=run, overlay=None, flow="f3")


def test_the_ramp_has_an_end() -> None:
    assert ramp(2.0) == ramp(1.0)
