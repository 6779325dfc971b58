# SPDX-License-Identifier: Apache-2.0
"""Users at once on one GPU: contiguous reservation against pages, in closed form and as run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from serving_base import Asked, fleet, section, table

from railweave.workloads.sizing.room import users_at_once

if TYPE_CHECKING:
    from railweave.workloads.sizing.room import Lengths, Reservation

ROOM = 15_700  # slots of OPT-13B on an A100 40 GB (Kwon et al., SOSP 2023, table 1)
LONGEST = 2048
MIXES = {"ShareGPT": (161.31, 337.99), "Alpaca": (19.31, 58.45)}  # means, figure 11
PUBLISHED: dict[tuple[str, Reservation], float] = {  # figure 13
    ("ShareGPT", "longest"): 7.00,
    ("ShareGPT", "power-of-two"): 9.81,
    ("ShareGPT", "exact"): 13.62,
    ("ShareGPT", "pages"): 30.42,
    ("Alpaca", "longest"): 7.00,
    ("Alpaca", "power-of-two"): 43.24,
    ("Alpaca", "exact"): 72.75,
    ("Alpaca", "pages"): 132.44,
}
NAMES: dict[Reservation, str] = {
    "longest": "2,048 tokens each, contiguous (Orca Max)",
    "power-of-two": "its length, to a power of two (Orca Pow2)",
    "exact": "its length, known beforehand (Orca Oracle)",
    "pages": "pages of 16 tokens (vLLM)",
}


def lengths(mix: str, count: int) -> list[Lengths]:
    """Draw exponential lengths of the published means, as long as allowed together."""
    rng = random.Random(7)
    found: list[Lengths] = []
    while len(found) < count:
        prompt, output = (max(1, round(rng.expovariate(1 / mean))) for mean in MIXES[mix])
        if prompt + output <= LONGEST:
            found.append((prompt, output))
    return found


def run(mix: str, memory: str, count: int) -> tuple[float, int]:
    """Return the mean sequences of a step of a full GPU, and how many were preempted.

    Llama-2-13B has the cache of OPT-13B, 819,200 B a token. More users wait than fit, each asking
    again at once; the steps of the last requests, when nobody waits any more, count too.
    """
    asked = lengths(mix, count)
    users = 64 if mix == "ShareGPT" else 256
    result = fleet(
        {
            "model": "llama-2-13b",
            "colocated": {},
            "kv_blocks": ROOM // 16,
            "max_model_len": LONGEST,
            "kv_memory": memory,
            "requests": [{"prompt": prompt, "output": output} for prompt, output in asked],
            "arrivals": {"kind": "closed-loop", "users": users},
        },
        topology="h100-rail-8",
        engine="analytic",
    ).raise_for_status()
    serving = result.serving
    return serving["colocated"]["mean_batch"], serving["preemptions"]["count"]


@section("users")
def users_table(asked: Asked) -> list[str]:
    """Return the table of users at once."""
    rows = []
    for mix in MIXES:
        drawn = lengths(mix, 20_000)
        for reservation, name in NAMES.items():
            found = users_at_once(drawn, reservation, room_tokens=ROOM, longest=LONGEST)
            ran = "-"
            if reservation in ("longest", "pages"):
                memory = "contiguous" if reservation == "longest" else "paged"
                batch, preempted = run(mix, memory, min(asked.rows, 1000))
                ran = f"{batch:.2f}" + (f" ({preempted} preempted)" if preempted else "")
            rows.append(
                (
                    mix,
                    name,
                    f"{PUBLISHED[mix, reservation]:.2f}",
                    f"{float(found.users):.1f}",
                    f"{float(found.used_share):.0%}",
                    ran,
                )
            )
    header = ("lengths", "room set aside", "published", "closed form", "of it used", "run")
    return table(header, rows)
