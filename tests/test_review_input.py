# SPDX-License-Identifier: Apache-2.0
"""What reviews, bills and drawings do with wrong input: one clear line, and exit code 2."""

import json

import pytest

from railweave.fabric.errors import InputError, StalledError
from railweave.tools import cli


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = cli.run_command_line(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return invoke


PARTS = ("--host", "dgx-h100", "--switch", "spectrum-4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("topo", "draw", "h100-dual-plane-512", "-o", "a.svg", "--plane", "-1"), "no plane -1"),
        (("topo", "draw", "h100-dual-plane-512", "-o", "a.svg", "--plane", "2"), "expected 0 | 1"),
        (("bom", "h100-rail-8", "--rack-power", "1W"), "holds no dgx-h100 of 8 units and 10.2 kW"),
        (("bom", "h100-rail-8", "--rack-units", "6"), "holds no dgx-h100 of 8 units"),
        (("bom", "h100-rail-8", "--rack-power", "44"), "expected"),
        (("bom", "h100-rail-8", "--cabling", "a", "--ptm", "./a", "--force"), "file of --cabling"),
        (("bom", "h100-rail-8", "--cabling", "a", "--ptm", "none/b"), "none/b: cannot be written"),
        (("compare", ".", "."), "there is no run in this folder"),
        (("compare", "h100-rail-8"), "there is nothing to compare it with"),
        (("design", "--gpus", "99999999", *PARTS), "no fabric for 99999999 GPUs can be built"),
        (("design", "--gpus", "64", *PARTS, "--max-oversubscription", "x"), "expected"),
        (("design", "--gpus", "64", *PARTS, "--budget", "10"), "an amount and its currency"),
        (("design", "--gpus", "64", *PARTS, "--transport", "losless"), "did you mean 'lossless'?"),
        (
            ("design", "--gpus", "72", "--host", "gb200-nvl27", *PARTS[2:]),
            "did you mean 'gb200-nvl",
        ),
        (("review", "h100-rail-9"), "did you mean 'h100-rail-8'?"),
        (("review", "h100-rail-8", "--workload", "none.yaml"), "none.yaml"),
        (("report", "none"), "none"),
        (("plot", "gant", "none"), "did you mean 'gantt'?"),
    ],
)
def test_one_clear_line(call, tmp_path, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # no empty folder, no half a file


def test_no_name_breaks_the_line_of_an_error(call, tmp_path):
    """Whatever a file calls its things, an error is one line, in its text and on the terminal."""
    name = "h\n0\r\x1b[31m"
    assert str(InputError(f"'{name}' is wrong")) == r"'h\n0\r\x1b[31m' is wrong"
    assert "\n" not in str(StalledError(f"{name} waits"))
    links = [{"ends": [name, "s"], "rate": "100Gbps", "delay": "1us"}]
    file = {"schema": 1, "name": "x", "kind": "custom", "links": links}
    for nodes in ({name: "host", "s": "switch"}, {"s": "switch"}):
        (tmp_path / "x.yaml").write_text(json.dumps({**file, "nodes": nodes}))
        for words in (("topo", "check"), ("bom",), ("review",), ("topo", "show")):
            code, _, err = call(*words, "x.yaml")
            assert code == 2
            assert err.count("\n") == 1
            assert "\x1b" not in err


def test_a_folder_of_something_else_is_no_run(call, tmp_path):
    for text, said in (
        ('{"x": 1}', "this is not the result of a run: it has no 'name'"),
        ("[]", "this is not the result of a run"),
        ("{", "this is not the result of a run"),
    ):
        (tmp_path / "result.json").write_text(text)
        code, _, err = call("compare", ".", ".")
        assert code == 2
        assert said in err
        assert "Error" not in err


def test_nothing_is_written_over_without_force(call, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "schema: 1\ntopology: h100-rail-8\n"
        "workload: {kind: collective, op: all_reduce, sizes: [1MiB]}\n"
    )
    assert call("run", "job.yaml", "-o", "run", "-q")[0] == 0
    writers = {
        "plan.csv": ("bom", "h100-rail-8", "--cabling", "plan.csv"),
        "ptm.dot": ("bom", "h100-rail-8", "--ptm", "ptm.dot"),
        "page.md": ("compare", "run", "run", "-o", "page.md"),
        "out/review.html": ("review", "h100-rail-8", "-o", "out"),
        "d/rail-only.yaml": ("design", "--gpus", "64", *PARTS, "-o", "d"),
        "run/report.html": ("report", "run"),
        "run/gantt.svg": ("plot", "gantt", "run"),
        "a.svg": ("topo", "draw", "h100-rail-8", "-o", "a.svg"),
        "run/result.json": ("run", "job.yaml", "-o", "run", "-q"),
    }
    for name, words in writers.items():
        code, _, err = call(*words, "--force")
        assert code == 0, err
        (tmp_path / name).write_text("mine")
        code, _, err = call(*words)
        assert code == 2, name
        assert "exist" in err
        assert (tmp_path / name).read_text() == "mine"
        if name != "run/result.json":
            assert call(*words, "--force")[0] == 0
            assert (tmp_path / name).read_text() != "mine"


@pytest.mark.parametrize(
    "words",
    [
        ("review", "h100-rail-8", "-o", "out"),
        ("design", "--gpus", "64", *PARTS),
        ("compare", "h100-rail-8", "h100-rail-1su", "-o", "page.md"),
    ],
)
def test_ctrl_c_in_a_run_ends_all_of_it(call, tmp_path, monkeypatch, words):
    """A run that is interrupted keeps what it had; what it was for ends with 130."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("railweave.runner._drive", interrupted)
    (tmp_path / "job.yaml").write_text(
        "schema: 1\ntopology: h100-rail-8\n"
        "workload: {kind: collective, op: all_reduce, sizes: [1MiB]}\n"
    )
    code, out, err = call(*words, "--workload", "job.yaml")
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "h100-rail-512", "h100-tor-512", "-o"),
        ("plan", "llama-3.1-8b", "--topology", "h100-rail-8", "--write", "1", "-o"),
        ("perf", "all_reduce", "--topology", "h100-rail-8", "-J"),
        ("calibrate", "none.txt", "-o"),
        ("validate", "none.txt", "--plot"),
    ],
)
def test_a_file_that_is_there_is_told_before_the_work(call, tmp_path, words):
    (tmp_path / "taken.yaml").write_text("mine")
    code, out, err = call(*words, "taken.yaml")
    assert (code, out) == (2, "")
    assert "taken.yaml: exists already; expected another name, or --force to replace it" in err
    code, out, err = call(*words, "nowhere/taken.yaml")
    assert (code, out) == (2, "")
    assert "nowhere/taken.yaml: cannot be written" in err
    assert (tmp_path / "taken.yaml").read_text() == "mine"
