# SPDX-License-Identifier: Apache-2.0
"""nccl-tests' JSON (``-J FILE``), so that what reads measurements reads emulated ones too.

Layout: NVIDIA/nccl-tests v2.19.6, src/util.cu (``jsonOutputInit``, ``writeDeviceReport``,
``writeBenchmarkLineBody``, ``writeResultFooter``). An emulation has no in-place runs that would
differ, and checks no data: ``in_place`` has the same figures and ``nwrong`` is null.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import railweave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.bench import Bench, BenchRow

__all__ = ["REDUCING", "ROOTED", "nccl_tests_json", "shards"]

REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
_PER_RANK: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_VERSION: Final = 3  # of the file
_FLOAT_BYTES: Final = 4  # nccl-tests' default data type
_TEST_NAMES: Final = {"all_to_all": "alltoall", "send": "sendrecv", "recv": "sendrecv"}


def shards(op: str, ranks: int) -> int:
    """Return in how many parts nccl-tests counts the elements of an operation's buffer."""
    return ranks if op in _PER_RANK else 1


def nccl_tests_json(
    bench: Bench,
    rows: Sequence[BenchRow],
    *,
    root: int = 0,
    step_factor: int | None = 2,
    step_bytes: int | None = None,
) -> str:
    """Return the text of the file.

    Parameters
    ----------
    bench, rows
        What was timed.
    root
        Root of a broadcast, reduce, gather or scatter.
    step_factor, step_bytes
        How the sizes followed each other.
    """
    step = {"step_bytes": step_bytes} if step_bytes else {"step_factor": step_factor}
    fabric = bench.fabric
    test = f"{_TEST_NAMES.get(bench.op, bench.op)}_perf"
    data: dict[str, Any] = {
        "version": _VERSION,
        "emulated_by": f"railweave {railweave.__version__}",
        "args": [test],
        "env": [],
        "nccl_version": None,
        "config": {
            "nthreads": 1,
            "ngpus": bench.ranks,
            "minimum_bytes": rows[0].size_bytes if rows else 0,
            "maximum_bytes": rows[-1].size_bytes if rows else 0,
            **step,
            "warmup_iters": bench.warmup,
            "iterations": bench.iterations,
            "aggregated_iterations": 1,
            "validation": 0,
            "graph": 0,
            "blocking_collectives": False,
            "parallel_init": False,
            "devices": [
                {
                    "rank": rank,
                    "group": 0,
                    "pid": 0,
                    "hostname": fabric.host_names[int(fabric.host[gpu])],
                    "device": max(int(fabric.index[gpu]), 0),
                    "device_hex": "",
                    "device_info": fabric.model[gpu],
                }
                for rank, gpu in enumerate(fabric.gpus[: bench.ranks])
            ],
        },
        "results": [_result(bench, row, root) for row in rows],
        "out_of_bounds": {"count": 0, "okay": True},
        "average_bus_bandwidth": {
            "bandwidth": sum(row.bus_Bps for row in rows) / 1e9 / max(len(rows), 1),
            "okay": "unchecked",
        },
        "errors": [],
    }
    return json.dumps(data, indent=1) + "\n"


def _result(bench: Bench, row: BenchRow, root: int) -> dict[str, Any]:
    figures = {
        "time": row.time_ps / 1e6,
        "alg_bw": row.algorithm_Bps / 1e9,
        "bus_bw": row.bus_Bps / 1e9,
        "nwrong": None,
    }
    return {
        "size": row.size_bytes,
        "count": row.size_bytes // _FLOAT_BYTES // shards(bench.op, bench.ranks),
        "type": "float",
        "redop": "sum" if bench.op in REDUCING else "none",
        "root": str(root if bench.op in ROOTED else -1),
        "out_of_place": figures,
        "in_place": dict(figures),
        "actual_iterations": bench.iterations,
        "experiment_name": bench.op,
        "algorithm": row.algorithm,
        "protocol": row.protocol or None,
        "wire_bw": row.wire_Bps / 1e9,
        "bound": row.bound_ps / 1e6,
    }
