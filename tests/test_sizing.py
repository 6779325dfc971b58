# SPDX-License-Identifier: Apache-2.0
"""Sizing in closed form: users at once, the figures of a serving review, how it ends."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from railweave.fabric.devices import gpu_model
from railweave.fabric.errors import InputError
from railweave.tools.commands.models import models
from railweave.tools.commands.size import size
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import load_shape
from railweave.workloads.sizing.case import Case, find_site, least_plan
from railweave.workloads.sizing.profile import Spread, profile_trace
from railweave.workloads.sizing.room import Reservation, held_tokens, users_at_once
from railweave.workloads.sizing.times import ReplicaTimes
from railweave.workloads.traces import TraceRequest, generate_conversations, prefix_reuse

app = typer.Typer()
app.command()(size)
app.command()(models)
TRACES = Path(__file__).parent.parent / "examples" / "traces"


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["size", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def review(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stdout)
    return found


def figures(found: dict[str, Any], key: str) -> dict[str, Any]:
    return next(q["figures"] for q in found["questions"] if q["id"] == key)


# ---------------------------------------------------------------------- room
def test_fifty_tokens_are_four_pages() -> None:
    assert held_tokens([(50, 1)], "pages") == 4 * 16
    assert [held_tokens([(n, 1)], "pages") for n in (1, 16, 17)] == [16, 16, 32]


@pytest.mark.parametrize("page", [1, 16, 64])
def test_held_tokens_equal_the_sum_over_steps(page: int) -> None:
    lengths = [(37, 100), (1, 1), (16, 17), (1000, 3)]
    held = [
        -(-(prompt + step) // page) * page for prompt, output in lengths for step in range(output)
    ]
    assert held_tokens(lengths, "pages", page=page) == Fraction(sum(held), len(held))


def test_reservations() -> None:
    lengths = [(100, 100), (20, 300)]  # 200 and 320 tokens; 256 and 512 in powers of two
    assert held_tokens(lengths, "exact") == Fraction(100 * 200 + 300 * 320, 400)
    assert held_tokens(lengths, "power-of-two") == Fraction(100 * 256 + 300 * 512, 400)
    assert held_tokens(lengths, "longest", longest=2048) == 2048
    with pytest.raises(InputError, match="a request of 320 tokens is longer than the longest"):
        held_tokens(lengths, "longest", longest=319)
    with pytest.raises(InputError, match="there are no requests"):
        held_tokens([], "pages")


def test_pages_serve_four_to_five_times_as_many_as_reservations() -> None:
    # Kwon et al., SOSP 2023: OPT-13B on an A100 40 GB has 15.7 K slots (table 1); ShareGPT has 161
    # tokens in and 338 out in the mean, 2,048 at most (figure 11); figure 13a has 7.00 requests at
    # once with Orca (Max) and 30.42 with pages, 4.3 times as many. Lengths here: exponential.
    rng = random.Random(7)
    lengths: list[tuple[int, int]] = []
    while len(lengths) < 20_000:
        pair = tuple(max(1, round(rng.expovariate(1 / mean))) for mean in (161.31, 337.99))
        if sum(pair) <= 2048:
            lengths.append((pair[0], pair[1]))

    def users(reservation: Reservation) -> float:
        found = users_at_once(lengths, reservation, room_tokens=15_700, longest=2048)
        return float(found.users)

    assert users("longest") == 7
    assert users("pages") == pytest.approx(30.42, rel=0.1)
    assert 4 <= users("pages") / users("longest") <= 5
    pages = users_at_once(lengths, "pages", room_tokens=15_700)
    assert pages.used_share > 0.96  # "near-zero waste": less than 4 % in the paper's abstract


def test_a_bounded_cache_is_the_one_of_an_independent_count() -> None:
    requests = generate_conversations(400, seed=5)

    def slow(room_blocks: int) -> int:
        order: list[int] = []  # used longest ago first
        hits = 0
        for request in requests:
            for here in request.hash_ids:
                if here not in order:
                    break
                hits += 1
            for here in reversed(request.hash_ids):
                if here in order:
                    order.remove(here)
                order.append(here)
            del order[: max(0, len(order) - room_blocks)]
        return hits

    for blocks in (50, 400, 2000):
        assert prefix_reuse(requests, room_tokens=blocks * 512).hits == slow(blocks)
    assert prefix_reuse(requests).hits > slow(2000) > slow(50) > 0


# ---------------------------------------------------------------------- profile, plan, times
def test_profile() -> None:
    def ask(at: int, prompt: int, session: str = "") -> TraceRequest:
        return TraceRequest(at_ps=at, prompt_tokens=prompt, output_tokens=2, session=session)

    found = profile_trace([ask(0, 10, "a"), ask(10**12, 30, "b"), ask(4 * 10**12, 20, "a")])
    assert found.rate_per_s == 0.5
    assert found.prompt == Spread(mean=20.0, p50=20, p99=30, largest=30, cv=pytest.approx(0.408248))
    assert found.gaps_cv == 0.5  # gaps of 1 and 3 s
    assert found.sessions == (1, 2)
    assert found.reuse is None
    assert profile_trace([ask(5, 1), ask(5, 1), ask(5, 1)]).rate_per_s is None


def test_the_fewest_gpus() -> None:
    shape, h100 = load_shape("llama-3.1-70b"), gpu_model("H100")
    site = find_site(h100)
    assert (site.name, site.host_gpus, site.domain_gpus) == ("dgx-h100", 8, 8)
    assert (site.nvlink_Bps, site.nic_Bps) == (370_800_000_000, 50_000_000_000)
    # 70.55 of 72 GB each are left for 1,000 tokens, but not for 10,000
    assert least_plan(shape, h100, site, tokens=1000) == ParallelismPlan(2)
    assert least_plan(shape, h100, site, tokens=10_000) == ParallelismPlan(4)
    assert least_plan(shape, h100, site, tokens=1000, dtype="fp8") == ParallelismPlan(2)
    large = load_shape("llama-3.1-405b")
    assert least_plan(large, h100, site, tokens=1000) == ParallelismPlan(8, 2)
    assert least_plan(shape, h100, site, tokens=1000, fraction=0.001) is None
    small = gpu_model("T4")
    assert least_plan(load_shape("llama-3.1-8b"), small, find_site(small), tokens=1) \
        == ParallelismPlan(2)  # fmt: skip


def test_racks_and_unknown_hosts() -> None:
    assert find_site(gpu_model("GB200")).domain_gpus == 72
    assert find_site(gpu_model("H200")).name == "dgx-h200"
    assert find_site(gpu_model("V100")).name == ""
    with pytest.raises(InputError, match="host: dgx-a100 has a100-80 GPUs; expected h100"):
        find_site(gpu_model("H100"), "dgx-a100")


@pytest.mark.parametrize(("gpu", "published"), [("A100", 5.86e9), ("H100", 18.6e9)])
def test_break_even_is_mooncakes_equation(gpu: str, published: float) -> None:
    """Qin et al., "Mooncake", FAST 2025, equation 2: B / G = 2 d s / (gqa (a p d + b d^2)).

    8,192 tokens of Llama-2-70B (d = 8,192, 8 query heads for each of keys, 2 B) on eight GPUs of G:
    with its a = 4 and b = 22 about 6 GB/s on A800 and 19 on H800, whose arithmetic is that of A100
    and H100. Counted from the shape b is 25.5 (4 for queries and outputs, 0.5 for keys and values,
    21 for three matrices of 3.5 d) and causal attention has a = 2: 26 / 27.5 of that.
    """
    model, d, p = gpu_model(gpu), 8192, 8192

    def equation(a: float, b: float) -> float:
        return 8 * model.flops["bf16"] * 2 * d * 2 / (8 * (a * p * d + b * d * d))

    assert equation(4, 22) == pytest.approx(published, rel=2e-3)
    times = ReplicaTimes(load_shape("llama-2-70b"), ParallelismPlan(8), model)
    moved = p * 327_680
    assert times.break_even_Bps(p) == pytest.approx(moved * 1e12 / times.prefill_ps(p))
    at_nameplate = times.break_even_Bps(p) / model.efficiency.compute
    assert at_nameplate == pytest.approx(equation(2, 25.5), rel=5e-3)


def test_traffic_of_a_step() -> None:
    times = ReplicaTimes(load_shape("llama-3.1-70b"), ParallelismPlan(8), gpu_model("H100"))
    found = times.traffic("decode", 1)
    # 161 all_reduces of 16,384 B (28,672 B on the wire), one all_gather of 256,512 B of logits
    assert (found.bytes_per_rank, found.collectives) == (161 * 28_672 + 224_448, 162)
    assert found.ps(50e9) == found.bytes_per_rank * 20


# ---------------------------------------------------------------------- the command
def test_the_review_answers_eight_questions() -> None:
    found = review("llama-3.1-70b", "--gpu", "H100", "--trace", str(TRACES / "mooncake-like.jsonl"))
    assert (found["schema"], found["fits"], found["tp"], found["pp"]) == (1, True, 4, 1)
    assert found["trace"]["requests"] == 96
    assert [question["id"] for question in found["questions"]] == [
        "one-gpu", "memory-left", "prompt-or-generation", "prefix-reuse", "variability",
        "interconnect", "router-signals", "groups",
    ]  # fmt: skip
    assert all(q["answer"] and q["reason"] and q["figures"] for q in found["questions"])
    assert figures(found, "one-gpu")["weight_bytes"] == 141_107_412_992
    assert figures(found, "memory-left")["kv_capacity_tokens"] == 448_256
    assert figures(found, "prompt-or-generation")["prefill_share"] > 0.6
    requests = generate_conversations(96, seed=1)
    reuse = prefix_reuse(requests)
    share = reuse.hit_tokens / reuse.prompt_tokens
    assert figures(found, "prefix-reuse")["hit_share"] == pytest.approx(share)
    signals = {s["name"]: s["needed"] for s in figures(found, "router-signals")["signals"]}
    assert signals["queued prompt tokens"]
    assert figures(found, "groups")["group_gpus"] == 4


def test_figures_agree_with_each_other() -> None:
    shape, gpu = load_shape("llama-3.1-8b"), gpu_model("H100")
    requests = [
        TraceRequest(at_ps=i * 10**11, prompt_tokens=1000, output_tokens=100) for i in range(50)
    ]
    case = Case(
        shape=shape, gpu=gpu, site=find_site(gpu), plan=ParallelismPlan(), requests=requests
    )
    assert (case.longest, case.batch) == (1100, 256)
    assert case.service.cv == 0
    times = ReplicaTimes(shape, ParallelismPlan(), gpu)
    assert case.prefill_busy_ps == times.prefill_ps(1000)
    assert case.context == 1049  # 1000, ..., 1099 tokens: 1049.5
    step = times.decode_ps(256, 1049)
    assert case.decode_busy_ps == pytest.approx(99 * step / 256, abs=1)
    busy = 10 * (case.prefill_busy_ps + case.decode_busy_ps) / 1e12
    assert case.replicas == -int(-busy // 1)


def test_text_names_rows_that_do_not_fit_the_window() -> None:
    result = run("llama-2-7b", "--gpu", "H100", "--trace", str(TRACES / "mooncake-like.jsonl"))
    assert "77 requests are longer than the window of llama-2-7b and left out" in result.stderr
    assert "3 s apart" in result.stderr
    for number in range(1, 9):
        assert f"\n{number}. " in result.stdout
    assert "80 requests" not in result.stdout


def test_what_does_not_fit_ends_with_one() -> None:
    trace = ["--trace", str(TRACES / "azure-conv-like.csv")]
    found = review("llama-3.1-70b", "--gpu", "T4", "--tp", "2", *trace, code=1)
    assert not found["fits"]
    assert [question["id"] for question in found["questions"]] == ["one-gpu"]
    assert (
        "It does not fit: not with tp 2"
        in run("llama-3.1-70b", "--gpu", "T4", "--tp", "2", *trace, code=1).stdout
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "5"], "--tokens: the trace says how long requests are"),
        (["--dp", "2"], "--dp: the trace says how many replicas are busy"),
        (["--host", "dgx-a100"], "host: dgx-a100 has a100-80 GPUs"),
        (["--tp", "3"], "tp: 3 does not divide the 64 attention heads"),
        (["--memory-fraction", "nan"], "memory_fraction: nan is out of range"),
        (["--dtype", "fp7"], "dtype: 'fp7' is not a known number format"),
        (["--trace-format", "mooncake"], r"azure-conv-like.csv:1: is not JSON"),
        (["--rate-scale", "0"], "rate_scale: 0.0 is not a rate scale"),
    ],
)
def test_bad_options_are_named(options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run("llama-3.1-70b", "--gpu", "H100", "--trace", str(TRACES / "azure-conv-like.csv"),
            *options)  # fmt: skip


def test_host_alone_says_nothing() -> None:
    with pytest.raises(InputError, match="--host: says nothing without --trace"):
        run("llama-3.1-70b", "--gpu", "H100", "--host", "dgx-h100")


def test_no_request_within_the_window(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": "0s", "prompt": 5000, "output": 1}')
    with pytest.raises(InputError, match=r"t\.jsonl: no request fits the window of llama-2-7b"):
        run("llama-2-7b", "--gpu", "H100", "--trace", str(path))
