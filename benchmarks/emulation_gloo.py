# SPDX-License-Identifier: Apache-2.0
"""One rank of the gloo measurement: all_reduce of several sizes, and the connections it used.

Run by ``emulation.py`` through ``railweave.tools.emulate``; needs PyTorch only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

REPEATS = 3
OF_SMALL = 9
SMALL = 2**22
"""Below so many bytes one late wake-up of a rank is percents: the median is of more repeats."""


def address(text: str) -> tuple[str, int]:
    """Read an end as /proc/net/tcp writes it, IPv4 in the byte order of the machine."""
    number, port = text.split(":")
    return ".".join(str(octet) for octet in bytes.fromhex(number[-8:])[::-1]), int(port, 16)


def connections() -> list[tuple[str, int, str, int]]:
    """Return the established connections of this namespace, IPv4 and mapped into IPv6."""
    found = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "01":
                found.append((*address(fields[1]), *address(fields[2])))
    return found


def cpu_times() -> tuple[int, int]:
    """Return the CPU time of the machine since boot and the idle part of it, in ticks."""
    line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    fields = [int(word) for word in line.split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def main() -> None:
    """Measure the sizes given in bytes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    times: dict[str, list[float]] = {}
    dist.barrier()
    before = cpu_times()  # the ranks have started, which takes far more than what is measured
    for size in map(int, sys.argv[1:]):
        data = torch.ones(size // 4)
        dist.all_reduce(data)
        taken = []
        for _ in range(OF_SMALL if size < SMALL else REPEATS):
            time.sleep(0.02)  # buckets fill again
            dist.barrier()
            began = time.monotonic()
            dist.all_reduce(data)
            longest = torch.tensor([time.monotonic() - began])
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            taken.append(float(longest[0]))
        times[str(size)] = taken
    cpus = [before, cpu_times()]
    shown = {"rank": rank, "times": times, "connections": connections(), "cpus": cpus}
    print("RESULT " + json.dumps(shown), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads would write to what is gone already


if __name__ == "__main__":
    main()
