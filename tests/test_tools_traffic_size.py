# SPDX-License-Identifier: Apache-2.0
"""``railweave traffic``: contracts of its output."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from railweave.fabric.errors import InputError
from railweave.tools.commands.traffic import traffic

app = typer.Typer()
app.command()(traffic)


@app.callback()
def group() -> None:
    """Keep the name of the only command."""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: str) -> dict[str, Any]:
    found = json.loads(run(*arguments, "--json"))
    assert found["schema"] == 1
    return found


def test_traffic_contract_of_decode() -> None:
    found = run_json("traffic", "llama-3.1-70b", "--tp", "8", "--phase", "decode", "--tokens", "1")
    first = found["ops"][0]
    assert (first["op"], first["axis"], first["count"], first["bytes"]) == (
        "all_reduce",
        "tp",
        161,
        16_384,
    )
    assert first["wire_bytes_per_rank"] == 4_616_192
    assert found["totals"]["per_rank_wire_bytes"] == 4_840_640
    assert found["totals"]["by_link_class"] == {"nvlink": 4_840_640, "network": 0}


def test_traffic_contract_of_a_pipeline() -> None:
    step = ["traffic", "llama-3.1-70b", "--tp", "8", "--pp", "2", "--phase", "prefill"]
    found = run_json(*step, "--tokens", "2150")
    totals = found["totals"]
    assert totals["per_rank_wire_bytes"] == max(totals["per_stage_wire_bytes"])
    sent = {row["rank"]: row for row in found["per_rank"]}
    assert sent[0] == {"rank": 0, "nvlink": 4_993_228_800, "network": 8_806_400}
    assert totals["wire_bytes"] == sum(r["nvlink"] + r["network"] for r in sent.values())
    assert totals["wire_bytes"] == sum(op["wire_bytes"] for op in found["ops"])
    assert sum(op["count"] for op in found["ops"] if op["op"] == "all_reduce") == 161
    spread = run_json(*step, "--tokens", "2150", "--gpus-per-host", "4")
    # two hosts of four: a quarter of each buffer crosses there and back
    assert spread["per_rank"][0]["network"] == 81 * 35_225_600 // 4 + 8_806_400


def test_traffic_contract_of_a_cache_transfer() -> None:
    kv = ["traffic", "llama-3.1-70b", "--kv", "--tokens", "2150"]
    found = run_json(*kv, "--prefill-tp", "4", "--decode-tp", "8")
    assert found["unique_bytes"] == found["wire_bytes"] == 704_512_000
    assert found["transfers"][3] == {"src_rank": 1, "dst_rank": 3, "bytes": 88_064_000}
    wide = run_json(*kv, "--prefill-tp", "8", "--decode-tp", "16", "--block", "16")
    assert wide["unique_bytes"] == 2160 * 327_680
    assert wide["wire_bytes"] == 2 * wide["unique_bytes"]


def test_traffic_tables() -> None:
    table = run("traffic", "llama-3.1-70b", "--tp", "8").splitlines()
    assert table[0] == "llama-3.1-70b  tp 8  pp 1  one decode step of 1 request"
    assert table[3].split()[:6] == ["all_reduce", "tp", "0", "161", "16,384", "4,616,192"]
    assert "4,840,640 B on NVLink, 0 B on the network" in table[-2]
    assert "nothing goes on the wire" in run("traffic", "qwen2.5-7b")
    cache = run("traffic", "deepseek-v3", "--kv", "--decode-tp", "2", "--tokens", "2150")
    assert "unique 151,084,800 B, on the wire 302,169,600 B" in cache


def test_traffic_by_link_carries_what_ranks_send() -> None:
    plan = ["traffic", "mixtral-8x7b", "--tp", "2", "--dp", "4", "--ep", "8"]
    plan += ["--ep-backend", "all_to_all"]
    found = run_json(*plan, "--tokens", "4", "--topology", "h100-rail-8", "--by-link")
    leaving = [x for x in found["links"] if "/gpu" in x["link"].split(">")[0]]
    assert sum(x["payload_bytes"] for x in leaving) == found["totals"]["wire_bytes"]
    by_axis = {op["axis"] for op in found["ops"]}
    assert by_axis == {"tp", "ep"}


def test_traffic_of_training() -> None:
    found = run_json("traffic", "llama-3.1-8b", "--phase", "train", "--dp", "8", "--zero", "0")
    (op,) = found["ops"]
    assert (op["op"], op["phase"], op["bytes"]) == ("all_reduce", "gradients", 4 * 8_030_261_248)
    assert round(op["wire_bytes_per_rank"] / 1e9, 1) == 56.2
    assert found["tokens"] == 8 * 4096
    text = run("traffic", "llama-3.1-8b", "--phase", "train", "--tp", "2", "--pp", "2")
    assert "one training step of 4,096 tokens" in text
    assert "their gradients" in text


_HUGE = "1" + "0" * 20


def test_the_format_of_activations_counts_in_training() -> None:
    job = ("traffic", "llama-3.1-8b", "--phase", "train", "--tp", "2", "--dp", "2")
    wide, narrow = (run_json(*job, "--dtype", dtype) for dtype in ("fp32", "bf16"))

    def sizes(found: dict[str, Any], axis: str) -> list[int]:
        return [op["bytes"] for op in found["ops"] if op["axis"] == axis and op["what"] != "loss"]

    assert sizes(wide, "tp") == [2 * size for size in sizes(narrow, "tp")]


def test_totals_beyond_64_bits_are_exact() -> None:
    job = ("traffic", "llama-3.1-405b", "--phase", "train", "--tp", "8", "--pp", "16", "--dp", "4",
           "--sequence", "16777216", "--micro-batches")  # fmt: skip
    one, two, most = (run_json(*job, n)["totals"]["wire_bytes"] for n in ("1", "2", "512"))
    assert most == one + 511 * (two - one) > 2**63


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["traffic", "llama-3.1-8b", "--zero", "1"], "--zero: needs --phase train"),
        (
            ["traffic", "llama-3.1-8b", "--phase", "train", "--rows", "1"],
            "--rows: does not go with --phase train",
        ),
        (["traffic", "llama-3.1-8b", "--by-link"], "--by-link: it needs a fabric"),
        (["traffic", "llama-3.1-70b", "--kv", "--tp", "8"], "--tp: does not go with --kv"),
        (["traffic", "llama-3.1-70b", "--prefill-tp", "8"], "--prefill-tp: needs --kv"),
        (["traffic", "llama-3.1-70b", "--phase", "trains"], "--phase: there is no 'trains'"),
        (["traffic", "llama-3.1-8b", "--phase", "train", "--dtype", "fp7"], "mean 'fp8'"),
        (["traffic", "llama-3.1-8b", "--dispatch-dtype", "fp9"], "mean 'fp8'"),
        (["traffic", "llama-3.1-8b", "--tokens", _HUGE], "tokens: .* 0 to 16,777,216 tokens"),
        (["traffic", "llama-3.1-8b", "--kv", "--tokens", _HUGE], "tokens: .* 0 to 16,777,216"),
        (["traffic", "llama-3.1-8b", "--kv", "--block", _HUGE], "block: .* 1 to 16,777,216"),
        (["traffic", "llama-3.1-8b", "--pad-to", _HUGE], "pad_to: .* 1 to 16,777,216"),
        (["traffic", "llama-3.1-8b", "--dp", _HUGE], "dp: .* ranks are more than are listed"),
        (
            [
                "traffic",
                "mixtral-8x7b",
                "--dp",
                "8",
                "--ep",
                "8",
                "--ep-backend",
                "all_to_all",
                "--tokens",
                "16777216",
            ],
            "tokens: 134,217,728 is out of range; expected 0 to 33,554,432 tokens of a group",
        ),
        *(
            (["traffic", "llama-3.1-8b", "--phase", "train", option, _HUGE], message)
            for option, message in {
                "--sequence": "sequence: .* expected 1 to 16,777,216 tokens",
                "--micro-batch-size": "micro_batch_size: .* expected 1 to 4,096 sequences",
                "--micro-batches": "micro_batches: .* expected 1 to 131,072 micro-batches",
                "--chunks": "chunks: 1 stages of 10+ chunks are more than 32 layers",
            }.items()
        ),
        (["traffic", "llama-3.1-70b", "--tp", "5"], "5 does not divide the 64 attention heads"),
        (["traffic", "llama-3.1-07b"], "did you mean 'llama-3.1-70b'"),
    ],
)
def test_bad_arguments_are_input_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(*arguments)
