# SPDX-License-Identifier: Apache-2.0
"""Kernels import and agree whatever becomes of numba's cache or of numba itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import railweave.fabric

KERNEL = """
from railweave.fabric.jit import jit

@jit("i8(i8)")
def double(value):
    return 2 * value

print(double(21), type(double).__name__)
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


def test_kernel_without_any_place_for_a_cache(tmp_path):
    """numba finds no locator for code that has no file, as where nothing can be written."""
    script = tmp_path / "kernel.py"
    script.write_text(f"exec(compile({KERNEL!r}, '<nowhere>', 'exec'))")
    assert run(script) == "42 CPUDispatcher\n"


def test_kernel_leaves_a_cache_behind(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "42 CPUDispatcher\n"
    assert list((tmp_path / "cache").rglob("*.nbi"))


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
