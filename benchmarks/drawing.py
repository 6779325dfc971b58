# SPDX-License-Identifier: Apache-2.0
"""What drawing and comparing large fabrics takes, without building them: CPU time.

``python benchmarks/drawing.py`` prints a table; ``benchmarks/README.md`` says how to read it.
"""

from __future__ import annotations

from building import three_tiers
from measure import HEADER, cpu_of, machine, reference, row

import railweave
from railweave.tools.render import draw
from railweave.topologies.diff import diff

__all__ = ["main"]

LIMIT = 2.0  # CPU seconds of a collapsed drawing


def main(*, sizes: tuple[int, ...] = (16_384, 65_536), full: int = 1024, repeats: int = 5) -> None:
    """Print the table.

    Parameters
    ----------
    sizes
        GPUs of the fabrics that are drawn collapsed.
    full
        GPUs of the one that is drawn host by host.
    repeats
        Runs of each.
    """
    print(machine())
    print(HEADER)
    print(row("reference: a loop of a million additions in Python", cpu_of(reference)))
    for gpus in (full, *sizes):
        way, expand, limit = (
            ("collapsed", "none", LIMIT) if gpus in sizes else ("full", "all", None)
        )
        fabric = railweave.build_topology(railweave.load_topology(three_tiers(gpus)))
        times = cpu_of(lambda _, f=fabric, e=expand: draw(f, expand=(e,)), repeats=repeats)
        print(row(f"drawing {gpus:,} GPUs as SVG, {way}", times, limit=limit))
        if gpus in sizes:
            times = cpu_of(lambda _, f=fabric: diff(f, f), repeats=repeats)
            print(row(f"comparing {gpus:,} GPUs with themselves", times))


if __name__ == "__main__":
    main()
