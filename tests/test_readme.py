# SPDX-License-Identifier: Apache-2.0
"""Every ``$ railweave`` line of the README runs, and prints what the README says it prints."""

from __future__ import annotations

import contextlib
import doctest
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import railweave

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


class Command(NamedTuple):
    """A command of a document and the output shown under it."""

    line: int
    typed: str
    shown: str


def commands(document: str) -> list[Command]:
    """Find the commands in the ``console`` blocks of a document."""
    found: list[Command] = []
    inside = False
    for number, line in enumerate((ROOT / document).read_text("utf-8").splitlines(), start=1):
        if line.startswith("```"):
            inside = line == "```console" and not inside
        elif inside and line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif inside and found[-1].typed.endswith("\\"):
            last = found.pop()
            found.append(Command(last.line, last.typed[:-1] + line.strip(), ""))
        elif inside:
            last = found.pop()
            found.append(Command(last.line, last.typed, f"{last.shown}{line}\n"))
    return found


def blocks(document: str, language: str) -> list[str]:
    """Find the blocks of one language in a document."""
    text = (ROOT / document).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def plain(text: str) -> str:
    """Drop what editors drop: spaces at line ends and blank lines around."""
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip("\n") + "\n"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_of_a_document_run(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from railweave.tools.cli import run_command_line

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with contextlib.chdir(tmp_path):
        for line, typed, shown in commands(document):
            program, *arguments = shlex.split(typed, comments=True)
            if program != "railweave":
                assert program in ("make", "git"), f"{document}:{line}: untested command"
                continue
            code = run_command_line(arguments)
            out, err = capsys.readouterr()
            assert code == 0, f"{document}:{line}: {typed}\n{err}"
            if shown:
                assert doctest.OutputChecker().check_output(
                    plain(shown), plain(out), doctest.ELLIPSIS
                ), f"{document}:{line}: {typed}\n{out}"


def test_the_readme_has_commands_and_two_set_up_lines() -> None:
    typed = [command.typed for command in commands("README.md")]
    assert typed[:2] == ["make demo", "make test"]
    assert sum(line.startswith("railweave ") for line in typed) >= 6


def test_the_topology_of_the_readme_builds(tmp_path: Path) -> None:
    text, _ = blocks("README.md", "yaml")
    file = tmp_path / "lab.yaml"
    file.write_text(text, "utf-8")
    fabric = railweave.build_topology(railweave.load_topology(file))
    assert (fabric.name, len(fabric.gpus), len(fabric.switches)) == ("lab", 128, 5)


def test_the_scenario_of_the_readme_runs(tmp_path: Path) -> None:
    _, text = blocks("README.md", "yaml")
    scenario = tmp_path / "readme.yaml"
    scenario.write_text(text, "utf-8")
    result = railweave.run_scenario(scenario)
    assert result.status == "completed"
    assert [row["size_bytes"] for row in result.collectives] == [2**20, 2**30]


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (text,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    with contextlib.chdir(ROOT):
        exec(text, names)
    assert names["fabric"].name == "h100-rail-8"
    assert names["result"].status == "completed"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
