# SPDX-License-Identifier: Apache-2.0
"""``railweave size`` and ``railweave models``: what they say, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from railweave.fabric.devices import gpu_model
from railweave.fabric.errors import InputError
from railweave.tools.commands.models import models
from railweave.tools.commands.size import size
from railweave.workloads.ceilings import decode_ceiling, prefill_ceiling, ridge
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.shapes import active_parameters, kv_bytes, load_shape, shipped_models

app = typer.Typer()
app.command()(size)
app.command()(models)
H100 = gpu_model("H100")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def run_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code))
    assert found["schema"] == 1
    return found


def test_contract() -> None:
    found = run_json("size", "llama-3.1-70b", "--gpu", "H100", "--tp", "8", "--tokens", "200000")
    expected = {
        "params": 70_553_706_496,
        "weight_bytes": 141_107_412_992,
        "weight_bytes_per_rank": 17_640_734_720,
        "free_bytes_per_rank": 72 * 10**9 - 17_640_734_720,
        "kv_bytes_per_token": 327_680,
        "kv_bytes_per_token_per_rank": 40_960,
        "kv_capacity_tokens": 1_327_130,
        "sequences": 6,
        "fits": True,
    }
    assert {key: found[key] for key in expected} == expected
    assert [ceiling["phase"] for ceiling in found["ceilings"]] == ["decode", "decode", "prefill"]
    assert [ceiling["sequences"] for ceiling in found["ceilings"]] == [1, 6, 1]


def test_what_does_not_fit_exits_with_one() -> None:
    found = run_json("size", "llama-3.1-70b", "--gpu", "h100", code=1)
    assert (found["fits"], found["kv_capacity_tokens"], found["free_bytes_per_rank"]) == (
        False,
        0,
        0,
    )
    lines = run("size", "llama-3.1-70b", "--gpu", "h100", code=1).splitlines()
    assert ["fits", "no"] in [line.split() for line in lines]
    # the weights fit, one sequence of so many tokens does not
    long = ["size", "llama-3.1-8b", "--gpu", "h100", "--tokens"]
    room = (72 * 10**9 - 16_060_522_496) // 131_072
    assert run_json(*long, str(room))["sequences"] == 1
    assert run_json(*long, str(room + 1), code=1)["sequences"] == 0


def test_options_change_the_answer() -> None:
    base = run_json("size", "qwen3-32b", "--gpu", "H100")
    smaller = run_json("size", "qwen3-32b", "--gpu", "H100", "--dtype", "fp8")
    assert smaller["weight_bytes"] == 34_326_243_328
    assert smaller["kv_capacity_tokens"] > base["kv_capacity_tokens"]
    narrow = run_json("size", "qwen3-32b", "--gpu", "H100", "--kv-dtype", "fp8")
    assert narrow["kv_bytes_per_token"] == 131_072
    less = run_json("size", "qwen3-32b", "--gpu", "H100", "--memory-fraction", "0.95")
    assert less["kv_capacity_tokens"] > base["kv_capacity_tokens"]
    two = run_json("size", "qwen3-32b", "--gpu", "H100", "--pp", "2")
    assert two["kv_bytes_per_token_per_rank"] == 131_072
    spread = run_json("size", "deepseek-v3", "--gpu", "H200", "--tp", "8", "--ep", "8")
    assert spread["weight_bytes_per_rank"] == pytest.approx(85.1e9, rel=1e-3)


def test_text() -> None:
    text = run("size", "gpt-oss-20b", "--gpu", "H100", "--tokens", "1000")
    assert "13,761,264,768 B  13.76 GB" in text
    assert "of which a token meets                4,187,440,704" in text
    assert "windows and states, per sequence      3,145,728 B" in text
    assert "fits with a sequence of 1,000 tokens  yes" in text
    assert "The GPU's ridge is 295 FLOP/B" in text
    assert "(text model only)" in run("size", "gemma-3-4b", "--gpu", "H100")


def test_the_memory_wall_of_decode() -> None:
    # 70 B in bf16 on eight H100: every rank reads its eighth, and its norms, once per token
    shape, plan = load_shape("llama-3.1-70b"), ParallelismPlan(tp=8)
    one = decode_ceiling(shape, plan, H100, sequences=1, context=0)
    norms = 161 * 8192
    read = 2 * ((active_parameters(shape, embedding=False) - norms) // 8 + norms) + 40_960
    assert one.tokens_per_s == pytest.approx(3.35e12 / read, rel=1e-9)
    assert one.reached_per_s == pytest.approx(0.8 * one.tokens_per_s)
    assert one.bound_by == "memory"
    assert one.intensity == pytest.approx(1.0, rel=2e-3)
    # twice the sequences at no cache: twice the tokens from the same weights, almost
    two = decode_ceiling(shape, plan, H100, sequences=2, context=0)
    assert 1.99 < two.tokens_per_s / one.tokens_per_s < 2
    # the primer's bound: 2,000 GB/s over 140 GB
    a100 = gpu_model("A100")
    alone = decode_ceiling(shape, ParallelismPlan(), a100, sequences=1, context=0)
    assert alone.tokens_per_s == pytest.approx(2039e9 / 139.0e9, rel=1e-3)


def test_the_arithmetic_of_prefill() -> None:
    shape, plan = load_shape("llama-3.1-70b"), ParallelismPlan(tp=8)
    found = prefill_ceiling(shape, plan, H100, tokens=2150)
    matrices = 80 * (150_994_944 + 704_643_072)
    scores = 80 * 4 * 64 * 128 * (2150 * 2151 // 2)
    flops = 2 * matrices * 2150 + scores + 2 * 1_050_673_152
    assert found.tokens_per_s == pytest.approx(2150 * 8 * 989e12 / flops, rel=1e-9)
    assert found.bound_by == "arithmetic"
    assert found.intensity > ridge(shape, H100) == pytest.approx(989e12 / 3350e9)
    assert ridge(shape, H100, dtype="fp8") == pytest.approx(1979e12 / 3350e9)


def test_stages_work_at_once_but_not_for_one_sequence() -> None:
    shape = load_shape("llama-3.1-8b")
    alone, split = ParallelismPlan(), ParallelismPlan(pp=2)
    one, two = (decode_ceiling(shape, p, H100, sequences=1, context=0) for p in (alone, split))
    assert two.tokens_per_s == pytest.approx(one.tokens_per_s, rel=1e-3)
    many, more = (
        decode_ceiling(shape, p, H100, sequences=n, context=0) for p, n in ((alone, 4), (split, 8))
    )
    assert 1.8 < more.tokens_per_s / many.tokens_per_s < 2
    twice = decode_ceiling(shape, ParallelismPlan(dp=2), H100, sequences=4, context=0)
    assert twice.tokens_per_s == pytest.approx(2 * many.tokens_per_s)


def test_every_model_has_ceilings() -> None:
    for name in shipped_models():
        shape = load_shape(name)
        one = decode_ceiling(shape, ParallelismPlan(), H100, sequences=1, context=1000)
        many = decode_ceiling(shape, ParallelismPlan(), H100, sequences=64, context=1000)
        assert 0 < one.reached_per_s < one.tokens_per_s < many.tokens_per_s
        read = active_parameters(shape, embedding=False) / 2 + kv_bytes(shape, 900) / 2
        assert one.tokens_per_s < 3.35e12 / read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size", "llama-3.1-8b", "--gpu", "h100", "--tokens", "1" + "0" * 20], "0 to 16,777,216"),
        (["size", "llama-3.1-8b", "--gpu", "h100", "--dp", "1" + "0" * 20], "more than are listed"),
        (["size", "llama-3.1-70b", "--gpu", "H10"], "did you mean 'h100'"),
        (["size", "llama-3.1-70b", "--gpu", "H100", "--dtype", "int3"], "dtype: 'int3'"),
        (["size", "llama-3.1-70b", "--gpu", "H100", "--ep", "2"], "ep: "),
        (["size", "llama-3.1-70b", "--gpu", "H100", "--tp", "5"], "5 does not divide the 64"),
        (["size", "llama-3.1-70b", "--gpu", "H100", "--memory-fraction", "2"], "memory_fraction"),
    ],
)
def test_bad_arguments_are_input_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(*arguments)


def test_a_config_file_of_ones_own(tmp_path: Path) -> None:
    shipped = Path(__file__).parent.parent / "workloads" / "models" / "llama-3.1-8b.json"
    own = tmp_path / "config.json"
    own.write_text(shipped.read_text())
    assert run_json("size", str(tmp_path), "--gpu", "H100")["params"] == 8_030_261_248
    own.write_text("not json")
    with pytest.raises(InputError, match=r"config\.json:1: is not JSON"):
        run("size", str(own), "--gpu", "H100")


def test_models_lists_all() -> None:
    found = run_json("models")["models"]
    assert [row["name"] for row in found] == list(shipped_models())
    lines = run("models").splitlines()
    assert len(lines) == 1 + len(found) + 2
    row = next(line for line in lines if line.startswith("qwen3.5-27b"))
    assert row.split() == ["qwen3.5-27b", "qwen3_5_text", "26.90", "B", "26.90", "B", "64", "53.8",
                           "GB", "65,536", "B", "+", "154", "MB"]  # fmt: skip
