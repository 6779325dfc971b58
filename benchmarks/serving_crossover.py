# SPDX-License-Identifier: Apache-2.0
"""Pull, push and layer-wise stream: from where on which is first, emulated and in closed form.

What each adds to the prefill of one prompt of S tokens alone, in n steps (the module
``tests/test_serving_crossover.py`` checks it to the picosecond):

    pull    R + X(S)
    push    X(last step)
    stream  n G c + X(last step) / G

X: what the bytes take on the wire, or the messages to be posted if that is longer; G: groups of
layers; c: what each adds to its step (``sync_cost``); R: from the prefill to the read
(``read_delay``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving_base import fleet, ms, rail, section, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from serving_base import Asked

PER_TOKEN = 327_680 // 8  # bytes of a token on one of eight ranks: Llama-3.1-70B
MESSAGES = 2 * 80 / 16  # of a token: keys and values of 80 layers, blocks of 16 tokens
SHARE = 4096 / 4178  # of a RoCEv2 frame on IPv4 with an MTU of 4096
BLOCK, STEP = 16, 8192


@dataclass(frozen=True)
class Case:
    """What a transfer costs: rate in Gbit/s, times in us, GPUs behind one NIC, groups of layers."""

    rate: int = 400
    shared: int = 1
    groups: int = 80
    sync: int = 10
    read: int = 0
    message: int = 0

    @property
    def token_ps(self) -> float:
        """Time of one token, whichever of wire and messages takes longer."""
        wire = PER_TOKEN * 8 / SHARE / (self.rate * 1e9) * 1e12 * self.shared
        return max(wire, MESSAGES * self.message * 1e6)

    @property
    def tokens(self) -> float:
        """Prompt from which on the stream is first, in one step."""
        cost_ps = (self.groups * self.sync - self.read) * 1e6
        return cost_ps / (self.token_ps * (1 - 1 / self.groups))

    def steps(self, budget: int) -> float:
        """Return the steps of ``budget`` tokens from which on push is first."""
        saved_ps = budget * self.token_ps * (1 - 1 / self.groups)
        return saved_ps / (self.groups * self.sync * 1e6)

    def ttft_ps(self, mode: str, prompt: int, *, budget: int = STEP) -> int:
        """Return the time to the first token of one prompt alone."""
        topology = rail(2)
        for link in topology["links"].values():
            link["rate"] = f"{self.rate}Gbps"
        extra: dict[str, Any] = {"message_cost": f"{self.message}us"}
        if mode == "pull":
            extra["read_delay"] = f"{self.read}us"
        if mode == "stream":
            extra |= {"stream_groups": self.groups, "sync_cost": f"{self.sync}us"}
        result = fleet(
            {
                "prefill": {"tp": 8}, "decode": {"tp": 8}, "max_num_batched_tokens": budget,
                "requests": [{"prompt": prompt, "output": 1}],
                "kv_transfer": {
                    "mode": mode, "nic": "affine" if self.shared == 1 else "single", **extra
                },
            },
            topology=topology,
        ).raise_for_status()  # fmt: skip
        return int(result.requests[0]["ttft_ps"])


def least(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the least number for which something holds that goes on holding; None if none."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


CASES = {
    "400G for each GPU": Case(),
    "the same, the read 500 us after the prefill": Case(read=500),
    "the same, 1 us a message": Case(message=1),
    "the same, 40 us a layer": Case(sync=40),
    "the same, layers in 8 groups": Case(groups=8),
    "100G for each GPU": Case(rate=100),
    "400G for eight GPUs": Case(shared=8),
}


@section("crossover")
def crossover(asked: Asked) -> list[str]:
    """Return the prompts from which on the stream is ahead of pull, in closed form and emulated."""
    del asked
    rows = []
    for name, case in CASES.items():

        def stream_first(blocks: int, case: Case = case) -> bool:
            prompt = blocks * BLOCK
            return case.ttft_ps("stream", prompt) < case.ttft_ps("pull", prompt)

        first = least(1, STEP // BLOCK, stream_first)
        found = "-" if first is None else f"{first * BLOCK:,}"
        gaps = [
            ms(case.ttft_ps("pull", prompt) - case.ttft_ps("stream", prompt))
            for prompt in (256, 2048, 8192)
        ]
        rows.append((name, f"{case.groups} x {case.sync}", f"{case.tokens:,.1f}", found, *gaps))
    header = ("transfer", "stream adds us", "closed form tokens", "stream first from",
              "ahead at 256 ms", "at 2,048 ms", "at 8,192 ms")  # fmt: skip
    return table(header, rows)


@section("steps")
def steps(asked: Asked) -> list[str]:
    """Return the steps from which on push is ahead of the stream again."""
    del asked
    rows = []
    for budget, case in (
        (2048, Case(sync=10)),
        (2048, Case(groups=8, sync=25)),
        (8192, Case(sync=20)),
        (8192, Case(groups=8, sync=100)),
    ):

        def push_first(count: int, budget: int = budget, case: Case = case) -> bool:
            prompt = budget * count
            push, stream = (
                case.ttft_ps(mode, prompt, budget=budget) for mode in ("push", "stream")
            )
            return push < stream

        first = least(1, 15, push_first)
        found = "-" if first is None else f"{first}"
        rows.append(
            (f"{budget:,}", f"{case.groups} x {case.sync}", f"{case.steps(budget):.2f}", found)
        )
    header = ("tokens a step", "stream adds us a step", "closed form steps", "push first from")
    return table(header, rows)
