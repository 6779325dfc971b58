# SPDX-License-Identifier: Apache-2.0
"""``railweave warmup``: compile the kernels ahead, so that the first run does not wait."""

import time

from railweave.tools.output import note

__all__ = ["warmup"]

_DESIGN = "h100-rail-8"
_PACKETS = {
    "schema": 1,
    "engine": "packet",
    "topology": _DESIGN,
    "workload": {"kind": "flows", "flows": [{"src": "h0/gpu0", "dst": "h1/gpu0", "size": "4KiB"}]},
}


def warmup() -> None:
    """Compile the kernels ahead, so that the next run starts at once."""
    from railweave.runner import run_scenario
    from railweave.tools.bench import Bench

    started = time.process_time()
    for policy in ("ecmp", "rail", "spray"):
        for op in ("all_reduce", "all_to_all"):
            Bench(op, topology=_DESIGN, ranks=16, policy=policy).run(4096)
    run_scenario(_PACKETS).raise_for_status()
    note(f"the kernels are ready ({time.process_time() - started:.1f} s of CPU time)")
