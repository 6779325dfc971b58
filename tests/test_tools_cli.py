# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, streams, what is imported when."""

import json
import os
import subprocess
import sys

import pytest
import typer

from railweave.fabric import errors
from railweave.tools import cli
from railweave.tools.output import aligned, write_output


def railweave(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "railweave", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = cli.run_command_line(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return invoke


def test_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from railweave.__main__ import main\n"
        "sys.argv = ['railweave', '--help']\n"
        "code = main()\n"
        "heavy = {'numba', 'networkx', 'numpy', 'pydantic', 'simpy', 'graphviz', 'rich', 'yaml'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "0 []\n"
    for command in ("run", "topo", "perf", "traffic", "size", "models", "schema", "warmup"):
        assert f"\n  {command} " in done.stdout


def test_version_and_module_entry():
    done = railweave("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("railweave ")
    assert done.stderr == ""


def test_results_on_stdout_errors_on_stderr_without_traceback():
    done = railweave("topo", "show", "no/such/file.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: no/such/file.yaml")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_early_is_no_error():
    text = f"{sys.executable} -m railweave topo export h100-rail-8 | head -c 10"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout == b'{\n "schema'


@pytest.mark.parametrize("words", ["check mixed.yaml", "check mixed.yaml --json", "show no.yaml"])
def test_a_failed_command_fails_though_its_reader_left(tmp_path, words):
    """Both streams' reader is gone before the first byte; the exit code is the command's own."""
    (tmp_path / "mixed.yaml").write_text(ROCE_ON_INFINIBAND)
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "railweave", "topo", *words.split()],
            stdout=write, stderr=write, cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert done.returncode == (2 if "no.yaml" in words else 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pref",), "error: No such command 'pref'. Did you mean 'perf'?"),
        (("topo", "shwo", "x"), "error: No such command 'shwo'. Did you mean 'show'?"),
        (("perf", "all_reduce", "--topolgy", "x"), "Did you mean '--topology'?"),
        (("perf",), "error: Missing argument"),
        (("perf", "all_reduce", "-T", "h100-rail-8", "--ranks", "many"), "--ranks"),
        (("perf", "all_reduse", "-T", "h100-rail-8"), "did you mean 'all_reduce'?"),
        (("perf", "all_reduce", "-T", "h100-rail-8", "--ranks", "65"), "1 to 64"),
        (("perf", "all_reduce", "-T", "h100-rail-8", "--ranks", "0"), "1 to 64"),
        (("perf", "all_reduce", "-T", "h100-rail-8", "-b", "1X"), "error: -b: "),
        (("perf", "all_reduce", "-T", "h100-rail-8", "-b", "2M", "-e", "1M"), "error: -e: "),
        (("perf", "all_reduce", "-T", "h100-rail-8", "-f", "1"), "error: -f: "),
        (("perf", "all_reduce", "-T", "h100-rail-8", "--qps", "0"), "--qps"),
        (
            ("perf", "all_reduce", "-T", "h100-rail-8", "--algorithm", "rign"),
            "did you mean 'ring'?",
        ),
        (("perf", "all_reduce", "-T", "h100-rail-8", "--engine", "fluit"), "did you mean 'fluid'?"),
        (("topo", "show", "h100-rail-9"), "did you mean 'h100-rail-8'?"),
        (("topo", "draw", "h100-rail-8", "--format", "pmg"), "did you mean 'png'?"),
        (("topo", "draw", "h100-rail-8", "--expand", "3"), "there is no group '3'"),
        (("topo", "list", "swiches"), "did you mean 'switches'?"),
        (("topo", "diff", "h100-rail-8", "h100-rail-9"), "did you mean 'h100-rail-8'?"),
        (
            ("topo", "draw", "h100-rail-8", "-o", "no/such/folder/x.svg"),
            "error: no/such/folder/x.svg",
        ),
        (
            ("topo", "draw", "h100-rail-8", "--run", "nowhere"),
            "error: nowhere/links.csv: cannot be",
        ),
        (("schema", "topolgy"), "did you mean 'topology'?"),
    ],
)
def test_wrong_words_end_in_one_clear_line(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("see: ")]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.InputError("bad", file="a.yaml", line=3, field="hosts.count"), 2,
         "error: a.yaml:3: hosts.count: bad\n"),
        (errors.CheckError("too slow"), 1, "error: too slow\n"),
        (errors.MissingToolError("get it"), 3, "error: get it\n"),
        (errors.InterruptedRunError("kept in runs/x"), 130, "error: kept in runs/x\n"),
        (PermissionError(13, "Not yours", "f.yaml"), 2, "error: f.yaml: Not yours\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_each_error_has_its_exit_code(call, monkeypatch, error, code, said):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", _one_command(fail))
    assert call() == (code, "", said)


def test_a_defect_says_so_and_shows_where(call, monkeypatch):
    def fail():
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "app", _one_command(fail))
    code, out, err = call()
    assert (code, out) == (70, "")
    assert "ZeroDivisionError: division by zero" in err
    assert err.splitlines()[-1].startswith("error: this is a defect in railweave")


def _one_command(function):
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(function)
    return app


def test_topo_list_names_kinds_and_designs(call):
    code, out, err = call("topo", "list", "--json")
    listed = json.loads(out)
    assert (code, err, listed["schema"]) == (0, "", 1)
    assert {"rail-optimized", "fat-tree", "custom"} <= {kind["name"] for kind in listed["kinds"]}
    assert all(kind["about"] for kind in listed["kinds"])
    lab = next(d for d in listed["designs"] if d["name"] == "h100-rail-8")
    assert (lab["kind"], lab["gpus"], lab["hosts"]) == ("rail-optimized", 64, 8)
    assert all(design["about"] and design["source"] for design in listed["designs"])
    _, text, _ = call("topo", "list")
    for name in ("h100-rail-1su", "fat-tree-k16"):
        assert sum(line.split()[:1] == [name] for line in text.splitlines()) == 1


@pytest.mark.parametrize(
    ("what", "name", "shown"),
    [
        ("hosts", "dgx-h100", ("8 x h100", "8 x connectx-7", "2966.4Gbps", "NVIDIA DGX H100")),
        ("racks", "gb200-nvl72", ("72", "18 x gb200-tray")),
        ("gpus", "h100", ("80 GB", "3,350 GB/s", "989 TFLOP/s")),
        ("nics", "connectx-7", ("1 x 400Gbps", "ethernet, infiniband")),
        ("switches", "quantum-2", ("64 x 400Gbps, or 128 x 200Gbps", "infiniband")),
    ],
)
def test_topo_list_shows_the_catalogue(call, what, name, shown):
    code, out, err = call("topo", "list", what)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
    assert all(part in line for part in shown)
    code, out, _ = call("topo", "list", what, "--json")
    listed = json.loads(out)
    assert set(listed) == {"schema", what}
    (entry,) = [entry for entry in listed[what] if entry["name"] == name]
    figure = next(iter(entry["figures"].values()))
    assert set(figure) == {"value", "source", "grade"}


def test_designs_say_how_many_hosts_and_gpus_they_have():
    """What the list reads from a file is what its fabric has."""
    from railweave.tools.commands.topo_list import _designs
    from railweave.topologies.load import build_topology, load_topology

    for entry in _designs():
        if entry["gpus"] <= 1024:
            fabric = build_topology(load_topology(entry["name"]))
            found = (len(fabric.host_names), len(fabric.gpus))
            assert (entry["hosts"], entry["gpus"]) == found, entry["name"]


def test_topo_show_has_the_contract_keys(call):
    code, out, _ = call("topo", "show", "superpod-h100-1su", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["schema"] == 1
    assert (shown["gpus"], shown["hosts"]) == (256, 32)
    assert shown["switches"] == {"leaf": 8, "spine": 4, "core": 0}
    assert shown["cables"] == {"host-leaf": 256, "leaf-spine": 256, "spine-core": 0}
    assert shown["oversubscription"] == {"leaf": 1.0, "spine": None}
    assert shown["bisection_bps"] == 128 * 400 * 10**9
    _, text, _ = call("topo", "show", "superpod-h100-1su")
    assert "bisection" in text
    assert "51.2Tbps" in text


ROCE_ON_INFINIBAND = """\
schema: 1
name: mixed
kind: rail-optimized
hosts: {count: 2, model: dgx-h100}
group: 2
leaf: {switch: quantum-2}
spine: {switch: quantum-2, oversubscription: "1:1"}
links:
  host-leaf: {model: roce-lossless, rate: 400Gbps, length: 10m}
  leaf-spine: {model: roce-lossless, rate: 400Gbps, length: 30m}
"""


def test_topo_check_exits_1_on_an_error(call, tmp_path):
    (tmp_path / "mixed.yaml").write_text(ROCE_ON_INFINIBAND)
    code, out, _ = call("topo", "check", "mixed.yaml", "--json")
    checked = json.loads(out)
    assert (code, checked["ok"]) == (1, False)
    assert {"protocol"} == {f["rule"] for f in checked["findings"] if f["level"] == "error"}
    code, out, _ = call("topo", "check", "mixed.yaml")
    assert code == 1
    assert out.startswith("error    protocol: ")
    assert call("topo", "check", "superpod-h100-1su")[0] == 0


def test_run_warns_of_links_that_a_device_does_not_speak(call, tmp_path):
    (tmp_path / "mixed.yaml").write_text(ROCE_ON_INFINIBAND)
    (tmp_path / "run.yaml").write_text(
        "schema: 1\nseed: 1\nengine: fluid\ntopology: ./mixed.yaml\n"
        "workload: {kind: collective, op: all_reduce, sizes: [1MiB]}\n"
    )
    code, out, _ = call("run", "run.yaml", "-o", "out", "--json")
    assert code == 0
    warned = [text for text in json.loads(out)["warnings"] if "quantum-2" in text]
    _, checked, _ = call("topo", "check", "mixed.yaml", "--json")
    assert warned == [
        found["message"] for found in json.loads(checked)["findings"] if found["rule"] == "protocol"
    ]
    assert warned[0].startswith("32 cables are roce-lossless, but quantum-2 speaks infiniband only")


def test_files_are_never_overwritten_without_force(call, tmp_path):
    for words in (
        ("topo", "draw", "h100-rail-8"),
        ("topo", "export", "h100-rail-8"),
        ("schema", "topology"),
    ):
        path = tmp_path / f"{words[0]}-{words[1]}.svg"
        path.write_text("mine")
        code, out, err = call(*words, "-o", str(path))
        assert (code, out) == (2, "")
        assert (
            err
            == f"error: {path}: exists already; expected another name, or --force to replace it\n"
        )
        assert path.read_text() == "mine"
        code, out, err = call(*words, "-o", str(path), "--force")
        assert (code, out, err) == (0, "", f"wrote {path}\n")
        assert len(path.read_text()) > 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "schema-topology.svg",
        "topo-draw.svg",
        "topo-export.svg",
    ]


def test_draw_names_the_file_and_follows_its_ending(call, tmp_path):
    assert call("topo", "draw", "h100-rail-8") == (0, "", "wrote h100-rail-8.svg\n")
    assert (tmp_path / "h100-rail-8.svg").read_text().startswith("<?xml")
    assert call("topo", "draw", "h100-rail-8", "-o", "a.dot")[0] == 0
    assert (tmp_path / "a.dot").read_text().startswith("graph ")


def test_draw_without_graphviz_exits_3(call, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, out, err = call("topo", "draw", "h100-rail-8", "-o", "a.png")
    assert (code, out) == (3, "")
    assert "apt-get install graphviz" in err
    assert list(tmp_path.iterdir()) == []


def test_export_prints_node_link_json(call):
    code, out, err = call("topo", "export", "h100-rail-8")
    data = json.loads(out)
    assert (code, err, data["schema"], data["directed"]) == (0, "", 1, True)


def test_models_are_listed(call):
    code, out, err = call("models")
    assert (code, err) == (0, "")
    table, _, legend = out.partition("\n\n")
    assert "windows and recurrent states" in legend
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert lines["llama-3.1-70b"] == [
        "llama",
        "70.55",
        "B",
        "70.55",
        "B",
        "80",
        "141.1",
        "GB",
        "327,680",
        "B",
    ]
    _, out, _ = call("models", "--json")
    listed = json.loads(out)["models"]
    assert {row["name"] for row in listed} == set(lines) - {"model"}
    (mixtral,) = [row for row in listed if row["name"] == "mixtral-8x7b"]
    assert mixtral["params"] > 3 * mixtral["active_params"]


@pytest.mark.parametrize("kind", ["topology", "scenario"])
def test_schema_is_a_json_schema(call, kind):
    code, out, _ = call("schema", kind)
    found = json.loads(out)
    assert code == 0
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["title"] == f"railweave {kind}"


def test_a_topology_file_needs_its_name_and_an_inline_one_does_not(call):
    _, out, _ = call("schema", "topology")
    file = json.loads(out)
    assert file["required"] == ["schema", "name", "kind"]
    assert file["properties"] == {"schema": {"const": 1}, "name": {"type": "string"}}
    _, out, _ = call("schema", "scenario")
    scenario = json.loads(out)
    _, inline = scenario["properties"]["topology"]["anyOf"]
    assert "required" not in inline
    for reference in inline["oneOf"]:
        kind = scenario["$defs"][reference["$ref"].rpartition("/")[2]]
        assert "kind" in kind["required"]
        assert "name" not in kind["required"]


def test_columns_line_up():
    text = aligned([("a", 1), ("bbb", 22)], header=("name", "n"), right=(1,), indent=" ")
    assert text == " name   n\n a      1\n bbb   22"
    assert aligned([]) == ""


def test_a_written_file_has_ordinary_rights(tmp_path):
    write_output(tmp_path / "x", "text", force=False)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
