# SPDX-License-Identifier: Apache-2.0
"""Every `railweave` command of the documents of reviews and reports runs as it is written there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from railweave.tools import cli
from railweave.topologies import shipped_designs

ROOT = Path(__file__).parent.parent
LONG = ("h100-tor-512",)
"""What commands that take minutes name: they make the tables of the documents."""

JOB = """
schema: 1
topology: h100-rail-8
routing: {policy: spray}
workload: {kind: collective, op: all_to_all, sizes: [1MiB]}
"""


def commands(document):
    text = (ROOT / document).read_text("utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    typed = [line.split("  #")[0] for line in lines if line.startswith("$ railweave ")]
    return [shlex.split(line)[2:] for line in typed]


@pytest.mark.parametrize(("document", "least"), [("docs/review.md", 6), ("docs/report.md", 8)])
def test_commands_of_a_document_run(document, least, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    fabric = shipped_designs()["h100-rail-8"].read_text("utf-8")
    for name in ("FABRIC.yaml", "A.yaml", "B.yaml"):
        Path(name).write_text(fabric)
    Path("job.yaml").write_text(JOB)
    ran = 0
    for words in commands(document):
        if any(word in LONG for word in words):
            for word in words:
                assert not word.endswith(".yaml") or Path(word).is_file(), word
            continue
        code = cli.run_command_line(words)
        said = capsys.readouterr()
        assert code == 0, (words, said.err)
        ran += 1
    assert ran >= least
