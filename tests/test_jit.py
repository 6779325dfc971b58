# SPDX-License-Identifier: Apache-2.0
"""Kernels run and agree whatever becomes of the cache of machine code or of numba itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

import railweave.fabric
from railweave.fabric._compiler_shortcuts import in_one_piece
from railweave.fabric.errors import RailweaveError
from railweave.fabric.jit import jit

KERNEL = """
import sys

import numpy as np

from railweave.fabric.jit import jit

FACTOR = 2

@jit
def times(value):
    return FACTOR * value

@jit
def double_all(values, records, row):
    for i in range(len(values)):
        values[0, i] = times(values[0, i])
        records[i].b += 0.5
    row.a += 1
    return values[0, 1]

values = np.array([[1, 3], [2, 4]])
records = np.zeros(2, [("a", "i8"), ("b", "f8")]).view(np.recarray)
found = double_all(values, records, records[1])
print(found, records.tolist(), "numba" in sys.modules)
"""

ROUTES = """
from railweave.fabric.graph import DeviceKind, FabricBuilder, LinkModel
from railweave.fabric.routing import Routing

build = FabricBuilder("two leaves")
nics = [
    build.add_device(f"h{i}/nic0", DeviceKind.NIC, host=build.add_host(f"h{i}")) for i in range(8)
]
leaves = [build.add_device(f"leaf{i}", DeviceKind.SWITCH, tier=1) for i in range(2)]
spines = [build.add_device(f"spine{i}", DeviceKind.SWITCH, tier=2) for i in range(3)]
options = dict(rate_bps=10**9, delay_ps=1, model=LinkModel.ROCE_LOSSLESS)
for i, nic in enumerate(nics):
    build.add_cable(nic, leaves[i // 4], **options)
for leaf in leaves:
    for spine in spines:
        build.add_cable(leaf, spine, **options)
fabric = build.finish()
for policy in ("ecmp", "rail", "spray"):
    paths = Routing(fabric, policy=policy).routes(nics[:4], nics[4:], [0, 1, 2, 3])
    print(paths.ptr.tolist(), paths.links.tolist(), paths.share.tolist())
"""


def run(path: Path | str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RESULT = "6 [(0, 0.5), (1, 0.5)]"


def kept(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*.o"))


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL)
    return file


def test_machine_code_is_kept_and_needs_no_numba(script, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(script, **cache) == f"{RESULT} True\n"
    assert len(kept(tmp_path / "cache")) == 1
    assert run(script, **cache) == f"{RESULT} False\n"


def test_a_constant_that_a_called_kernel_names_is_part_of_the_code(script, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run(script, **cache)
    script.write_text(KERNEL.replace("FACTOR = 2", "FACTOR = 3"))
    assert run(script, **cache) == f"{RESULT.replace('6', '9')} True\n"
    assert len(kept(tmp_path / "cache")) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"no object file\n\x00\x01"])
def test_damaged_machine_code_is_compiled_anew(script, tmp_path, damage):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run(script, **cache)
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage or whole[:-10])
    assert run(script, **cache) == f"{RESULT} True\n"
    assert file.read_bytes() == whole


def test_kernel_without_any_place_for_a_cache(tmp_path):
    """Neither beside the code, which has no file, nor in a home or cache folder."""
    nowhere = tmp_path / "file"
    nowhere.touch()
    script = tmp_path / "kernel.py"
    script.write_text(f"exec(compile({KERNEL!r}, '<nowhere>', 'exec'))")
    for _ in range(2):
        assert run(script, XDG_CACHE_HOME=str(nowhere), HOME=str(nowhere)) == f"{RESULT} True\n"


def test_kernel_keeps_to_its_first_types():
    @jit
    def first(values):
        return values[0]

    assert first(np.array([7])) == 7
    with pytest.raises(TypeError, match=r"argument 0 is .*float64.*, compiled for .*int64"):
        first(np.array([7.5]))
    with pytest.raises(RailweaveError, match="contiguous"):
        first(np.arange(10)[::2])
    with pytest.raises(TypeError, match="1 arguments expected, 2 given"):
        first(np.array([7]), 1)


WORKS = """
import sys

import numpy as np

from railweave.fabric.jit import call_for_work, jit

@jit
def one_more(value):
    return value + 1

@jit
def count(values):
    for i in range(len(values)):
        values[i] = one_more(values[i])
    return values[0]

values = np.zeros(3, np.int64)
for work in {works}:
    print(call_for_work(work, count, values), "numba" in sys.modules)
"""


def test_little_work_is_not_compiled_for(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    script = tmp_path / "kernel.py"
    script.write_text(WORKS.format(works=[10, 20]))
    assert run(script, **cache) == "1 False\n2 False\n"
    assert kept(tmp_path) == []
    script.write_text(WORKS.format(works=[10, 10**9, 10]))
    assert run(script, **cache) == "1 False\n2 True\n3 True\n"
    script.write_text(WORKS.format(works=[10]))
    assert run(script, **cache) == "1 False\n"  # from the machine code kept


def test_much_little_work_is_compiled_for(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(WORKS.format(works=[10**5] * 4))
    said = run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache")).split()
    assert said[::2] == ["1", "2", "3", "4"]
    assert said[1] == "False"
    assert said[-1] == "True"


BROKEN = """
import railweave.fabric._kernel_pipeline as pipeline
from railweave.fabric import _compile

if "emit" in {how!r}:
    del pipeline.KernelLibrary.emit
else:
    assert _compile._pipeline() == {{"pipeline_class": pipeline.KernelPipeline}}
"""


@pytest.mark.parametrize("how", ["short", "without emit"])
def test_kernels_compile_by_either_pipeline(tmp_path, how):
    """By the passes a kernel needs, and by numba's own where those do not work."""
    script = tmp_path / "kernel.py"
    script.write_text(BROKEN.format(how=how) + KERNEL)
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == f"{RESULT} True\n"
    assert len(kept(tmp_path / "cache")) == 1
    script.write_text(KERNEL)
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == f"{RESULT} False\n"


def test_kernel_that_makes_an_array_is_refused():
    @jit
    def makes(count):
        return len(np.zeros(count))

    with pytest.raises(TypingError, match="Only accept returning of array"):
        makes(3)


def test_routes_are_the_same_without_compilation(tmp_path):
    script = tmp_path / "routes.py"
    script.write_text(ROUTES)
    plain = run(script, NUMBA_DISABLE_JIT="1")
    assert plain == run(script, PYTHONHASHSEED="7")
    assert plain.count("\n") == 3


def test_no_kernel_reorders_floating_point():
    sources = Path(railweave.fabric.__file__).parent.rglob("*.py")
    users = [path.name for path in sources if "fastmath=" in path.read_text()]
    assert users == []


def _faults_of_calls(depth):
    """Page faults of 2,000 calls from a depth of calls."""
    if depth:
        return _faults_of_calls(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2000):
        _nothing(0, 0, 0, 0, 0, 0, 0, 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _nothing(*_):
    """Take a frame."""


def test_calls_within_one_piece_ask_for_no_memory():
    # Somewhere among 300 depths a frame is the first of a piece of 16 KiB: CPython asks for it,
    # and gives it back, with each call.
    most = in_one_piece(lambda: max(_faults_of_calls(depth) for depth in range(300)))
    assert most < 100
