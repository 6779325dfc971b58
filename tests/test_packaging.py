# SPDX-License-Identifier: Apache-2.0
"""The wheel holds the tree and nothing else; the front door is light; imports go down."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import railweave

ROOT = Path(__file__).parent.parent
ROOMS = ("fabric", "topologies", "collectives", "workloads", "tools")
RUFF_ARGUMENTS = [
    "check",
    "--select",
    "TID251",
    "--quiet",
    "--output-format",
    "concise",
    "--stdin-filename",
    "tools/x.py",
    "-",
]
DATA = {".py", ".yaml", ".json", ".csv", ".css", ".js"}
NEEDS_BUILD = pytest.mark.skipif(
    importlib.util.find_spec("build") is None, reason="the dev extra is not installed"
)


def in_tree() -> set[str]:
    """Name every file of the package as the wheel should."""
    files = {f"railweave/{path.name}" for path in (ROOT / "railweave").iterdir() if path.is_file()}
    for room in ROOMS:
        files |= {
            f"railweave/{path.relative_to(ROOT).as_posix()}"
            for path in (ROOT / room).rglob("*")
            if path.suffix in DATA and "__pycache__" not in path.parts
        }
    return files


def copy_tree(target: Path, *, symlinks: bool) -> Path:
    """Copy what a checkout holds; without symlinks as a checkout on a system that has none."""
    target.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("railweave", *ROOMS, "tests"):
        shutil.copytree(
            ROOT / name,
            target / name,
            symlinks=True,
            ignore=lambda folder, names: [
                name
                for name in names
                if name == "__pycache__" or (not symlinks and Path(folder, name).is_symlink())
            ],
        )
    return target


@NEEDS_BUILD
@pytest.mark.parametrize("symlinks", [True, False], ids=["symlinks", "no-symlinks"])
def test_the_wheel_holds_the_tree_under_railweave_and_nothing_else(
    tmp_path: Path, symlinks: bool
) -> None:
    tree = copy_tree(tmp_path / "tree", symlinks=symlinks)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run(
        [*command, str(tmp_path / "dist"), str(tree)], check=True, capture_output=True, text=True
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt")))
    assert len(names) == len(set(names))
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == in_tree()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"railweave", f"railweave-{railweave.__version__}.dist-info"}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "railweave = railweave.__main__:main" in entry_points.decode()


def test_the_tree_is_not_trivial() -> None:
    files = in_tree()
    assert "railweave/py.typed" in files
    for kind in (
        "railweave/fabric/units.py",
        "railweave/fabric/catalog/hosts.yaml",
        "railweave/workloads/models/llama-3.1-70b.json",
        "railweave/tools/commands/__init__.py",
    ):
        assert kind in files
    assert not any("/tests/" in name for name in files)


def test_the_rooms_are_linked_for_analysers_and_imported_from_their_folders() -> None:
    for room in ROOMS:
        assert (ROOT / "railweave" / room).readlink() == Path("..") / room
        module = importlib.import_module(f"railweave.{room}")
        assert module.__file__ is not None
        assert Path(module.__file__).resolve() == ROOT / room / "__init__.py"


def test_no_room_is_installed_as_a_top_level_package(tmp_path: Path) -> None:
    code = (
        "import importlib.util\n"
        f"for room in {ROOMS}:\n"
        "    spec = importlib.util.find_spec(room)\n"
        "    print('' if spec is None else spec.origin)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert not any(line.startswith(str(ROOT)) for line in done.stdout.splitlines())


@pytest.mark.parametrize("room", ROOMS)
def test_ruff_bans_the_rooms_as_top_level_packages(room: str) -> None:
    if shutil.which("ruff", path=Path(sys.executable).parent) is None:
        pytest.skip("the dev extra is not installed")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ruff")), *RUFF_ARGUMENTS],
        input=f"import {room}.x\n\nprint({room})\n",
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"TID251 `{room}` is banned: import railweave.{room}" in done.stdout


def test_import_railweave_is_lazy_and_complete() -> None:
    code = (
        "import sys, railweave\n"
        "assert not {'numba', 'networkx', 'numpy', 'pydantic', 'simpy'} & set(sys.modules)\n"
        "for name in railweave.__all__:\n"
        "    assert getattr(railweave, name) is not None, name\n"
        "    assert name in dir(railweave)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="module 'railweave' has no attribute 'nothing'"):
        railweave.nothing  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert railweave.__version__ == importlib.metadata.version("railweave")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[({re.escape(railweave.__version__)}|Unreleased)\]", changelog, re.M)


def test_every_source_names_its_licence() -> None:
    for folder in ("railweave", *ROOMS, "tests", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            first = path.read_text(encoding="utf-8").split("\n", 1)[0]
            assert first == "# SPDX-License-Identifier: Apache-2.0", path
