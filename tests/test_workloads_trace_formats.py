# SPDX-License-Identifier: Apache-2.0
"""The formats of request traces, and how malformed ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.workloads.traces import (
    TraceRequest,
    generate_conversations,
    prefix_reuse,
    read_trace,
    write_jsonl_trace,
    write_mooncake_trace,
)

SHARED = Path(__file__).parent.parent.parent / "shared" / "traces"
EXAMPLES = Path(__file__).parent.parent / "examples" / "traces"
MS = 10**9
S = 10**12


def row(at: int, prompt: int, output: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [*ids]}


def lines(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(path, **options)


# ---------------------------------------------------------------------- Mooncake
def test_mooncake_rows(tmp_path: Path) -> None:
    found = read_trace(lines(tmp_path, row(27, 600, 5, 0, 1), row(30, 512, 9, 0)))
    assert found.format == "mooncake"
    assert found.notes == ()
    assert found.requests == (
        TraceRequest(at_ps=0, prompt_tokens=600, output_tokens=5, hash_ids=(0, 1), hash_block=512),
        TraceRequest(at_ps=3 * MS, prompt_tokens=512, output_tokens=9, hash_ids=(0,),
                     hash_block=512),
    )  # fmt: skip
    assert [request.row for request in found.requests] == [1, 2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(0, 600, 5, 7), r"hash_ids: 1 ids do not fit input_length 600; expected 2, one for"),
        (row(0, 512, 5, 7, 8), r"hash_ids: 2 ids do not fit input_length 512; expected 1"),
        (row(0, 600, 5, 0, -1), r"hash_ids: '-1' is not an id; expected a list of whole numbers"),
        (
            row(0, 600, 5, 2, 1),
            r"hash_ids: id 1 follows 2, but in line 1 it follows 0; expected ids of ch",
        ),
        (row(0, 600, 5, 1, 0), r"hash_ids: id 1 comes first, but in line 1 it follows 0"),
        (row(0, 600, 5, 0, 0), r"hash_ids: id 0 follows 0, but in line 1 it comes first"),
        (row(0, -3, 5), r"input_length: '-3' is not a number of tokens; expected a whole number"),
        (row(0, 0, 5), r"input_length: 0 tokens; expected at least 1"),
        (row(0, 5, 0, 0), r"output_length: 0 tokens; expected at least 1, or empty_output: drop"),
        (row(0, 5, 1_000_000_000, 0), r"output_length: '1000000000' is not a number of tokens"),
        (row(-1, 5, 1, 0), r"timestamp: '-1' is not a time; expected milliseconds, 0 or more"),
        ({**row(0, 5, 1, 0), "hash_ids": 3}, r"hash_ids: is not a list"),
        ({**row(0, 5, 1, 0), "input_length": True}, r"input_length: 'True' is not a number"),
        ({**row(0, 5, 1, 0), "input_length": 5.5}, r"input_length: '5.5' is not a number"),
        ({**row(0, 5, 1, 0), "hash_id": []}, r"unknown key 'hash_id'; .* mean 'hash_ids'\?"),
        ({"timestamp": 0, "input_length": 5}, r"there is no output_length"),
        ('{"timestamp": NaN}', r"is not JSON: NaN is no number"),
        ('{"timestamp": 1, "timestamp": 2}', r"is not JSON: the key 'timestamp' stands twice"),
        ('{"timestamp": 1e9999999999999999999}', r"has a number beyond reason"),
        ('{"timestamp": ' + "9" * 5000 + "}", r"is not JSON: Exceeds the limit"),
        ("[" * 100_000, r"is nested too deeply"),
        ("[1]", r"is not a JSON object"),
        ('{"timestamp": 1', r"is not JSON: Expecting"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: object, message: str) -> None:
    path = lines(tmp_path, row(0, 600, 5, 0, 1), bad)
    refused(path, rf"t\.jsonl:2: {message}" if ":" not in message[:9] else message)


def test_rows_out_of_order_and_of_one_instant_are_told(tmp_path: Path) -> None:
    path = lines(tmp_path, row(9, 5, 1, 0), row(3, 6, 1, 1), row(3, 7, 1, 2), row(1, 8, 1, 3))
    found = read_trace(path)
    assert [request.prompt_tokens for request in found.requests] == [8, 6, 7, 5]
    assert found.notes == (
        "2 requests earlier than the row before: sorted by time (lines 2, 4)",
        "1 request at the instant of the one before: kept in order (line 3)",
    )


def test_jitter_spreads_a_grid_in_the_time_of_the_trace(tmp_path: Path) -> None:
    path = lines(tmp_path, *(row(3000 * (i // 50), 5, 1, i) for i in range(400)))
    plain = read_trace(path)
    assert "arrivals come in bursts about 3 s apart" in plain.notes[1]
    moved = read_trace(path, jitter_ps=3 * S, rate_scale=10)
    assert moved.notes == (
        "392 requests at the instant of the one before: a jitter below 3 s spreads them "
        "(lines 2, 3, 4 and 389 more)",
    )
    by_row = sorted(moved.requests, key=lambda request: request.row)
    shifts = [b.at_ps * 10 - a.at_ps for a, b in zip(plain.requests, by_row, strict=True)]
    assert 0 <= min(shifts) <= max(shifts) < 3 * S
    assert len({shift // (S // 10) for shift in shifts}) == 30  # every tenth of a second is hit
    assert moved == read_trace(path, jitter_ps=3 * S, rate_scale=10)
    assert moved != read_trace(path, jitter_ps=3 * S, rate_scale=10, seed=2)
    refused(path, "jitter: -1ps is not a jitter", jitter_ps=-1)


# ---------------------------------------------------------------------- BurstGPT
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def burst(tmp_path: Path, *rows: str, header: str = BURST) -> Path:
    path = tmp_path / "b.csv"
    path.write_text("\n".join((header, *rows)))
    return path


def test_burstgpt_failures_are_left_out_and_told(tmp_path: Path) -> None:
    path = burst(
        tmp_path, "5,ChatGPT,472,18,490,Conversation log", "45.25,GPT-4,0,0,0,API log",
        "118,ChatGPT,1087,230,1317,API log",
    )  # fmt: skip
    found = read_trace(path)
    assert found.format == "burstgpt"
    assert found.requests == (
        TraceRequest(at_ps=0, prompt_tokens=472, output_tokens=18),
        TraceRequest(at_ps=113 * S, prompt_tokens=1087, output_tokens=230),
    )
    assert found.notes == ("1 request without output left out (line 3)",)
    refused(path, r"b\.csv:3: Response tokens: 0 tokens; expected at", empty_output="refuse")


def test_burstgpt_sessions(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
    path = burst(
        tmp_path, "1.5,1a,2.0,GPT-4,10.0,5,15,Conversation log", "2,,1,GPT-4,7,3,10,API log",
        header=header + "Total tokens,Log Type",
    )  # fmt: skip
    assert [(r.at_ps, r.prompt_tokens, r.session) for r in read_trace(path).requests] == [
        (0, 10, "1a"),
        (S // 2, 7, ""),
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("5,GPT-4,10,5,16,API log", r"b\.csv:2: Total tokens: 16 is not the sum; expected 15"),
        ("-5,GPT-4,10,5,15,API log", r"b\.csv:2: Timestamp: '-5' is not a time; expected seconds"),
        ("nan,GPT-4,10,5,15,API log", r"Timestamp: 'nan' is not a time"),
        ("1_0,GPT-4,10,5,15,API log", r"Timestamp: '1_0' is not a time"),
        ("5,GPT-4,-10,5,-5,API log", r"Request tokens: '-10' is not a number of tokens"),
        ("5,GPT-4,0,5,5,API log", r"Request tokens: 0 tokens; expected at least 1"),
        ("5,GPT-4,10,5,15", r"b\.csv:2: 5 columns; expected 6 as in line 1"),
        ("5,GPT-4,10,0,10,API log", r"b\.csv: the trace has no requests"),
    ],
)
def test_bad_rows_of_burstgpt(tmp_path: Path, bad: str, message: str) -> None:
    refused(burst(tmp_path, bad), message)


# ---------------------------------------------------------------------- vllm bench serve
def bench(tmp_path: Path, **lists: object) -> Path:
    path = tmp_path / "r.json"
    plain = {
        "request_throughput": 1.5,
        "input_lens": [100, 200, 300],
        "output_lens": [7, 8, 9],
        "start_times": [1000.5, 1000.25, 1002],
    }
    path.write_text(json.dumps({**plain, **lists}, indent=1))
    return path


def test_vllm_bench_results_say_when_requests_were_made(tmp_path: Path) -> None:
    found = read_trace(bench(tmp_path))
    assert found.format == "vllm-bench"
    assert [(r.at_ps, r.prompt_tokens, r.row) for r in found.requests] == [
        (0, 200, 2),
        (S // 4, 100, 1),
        (7 * S // 4, 300, 3),
    ]
    held = read_trace(bench(tmp_path, queue_times=[0.5, 0, 1], errors=["", "timed out", ""]))
    assert [(r.at_ps, r.prompt_tokens) for r in held.requests] == [(0, 100), (S, 300)]
    assert held.notes == ("1 request without output left out (entry 2)",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_lens": [1, -2, 3]}, r"lens\[1\]: '-2' is not .* a whole number from 1 to 999,999"),
        ({"output_lens": [7, 8]}, r"r\.json: output_lens: has 2 entries; expected 3 as input_lens"),
        ({"input_lens": [100, -2, 3]}, r"input_lens\[1\]: '-2' is not a number of tokens"),
        ({"start_times": "now"}, r"start_times: is not a list"),
        ({"queue_times": [0, 2000, 0]}, r"queue_times\[1\]: is more than start_times"),
    ],
)
def test_bad_results_of_vllm_bench(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    refused(bench(tmp_path, **change), message)


def test_a_result_without_details_says_which_option_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"request_throughput": 1.5, "completed": 1}')
    refused(path, "there is no input_lens; expected a result saved with .* --save-detailed")


# ---------------------------------------------------------------------- own JSONL
def test_own_format_goes_both_ways(tmp_path: Path) -> None:
    requests = [
        TraceRequest(at_ps=0, prompt_tokens=40, output_tokens=3, session="a", hash_ids=(0, 1, 2),
                     hash_block=16),
        TraceRequest(at_ps=1_234_567, prompt_tokens=5, output_tokens=1),
    ]  # fmt: skip
    path = tmp_path / "own.jsonl"
    write_jsonl_trace(path, requests)
    assert path.read_text().splitlines()[1] == '{"at": "1234.567ns", "prompt": 5, "output": 1}'
    found = read_trace(path)
    assert (found.format, list(found.requests)) == ("jsonl", requests)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"at": 5, "prompt": 5, "output": 1}, r"own:1: at: .* unit"),
        ({"at": "-5ms", "prompt": 5, "output": 1}, r"own:1: at: "),
        ({"at": "5ms", "prompt": 0, "output": 1}, r"own:1: prompt: 0 tokens"),
        ({"at": "5ms", "prompt": 5, "output": 1, "hash_ids": [1]}, r"hash_ids: stands alone"),
        ({"at": "5ms", "prompt": 5, "output": 1, "session": 4}, r"session: 4 is not text"),
        ({"at": "5ms", "prompt": 9, "output": 1, "hash_block": 4, "hash_ids": [1, 2]},
         r"hash_ids: 2 ids do not fit prompt 9; expected 3, one for each 4 tokens begun"),
    ],
)  # fmt: skip
def test_bad_lines_of_the_own_format(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = tmp_path / "own"
    path.write_text(json.dumps(bad))
    refused(path, message)


def test_blocks_of_two_sizes_are_refused(tmp_path: Path) -> None:
    one = {"at": "1ms", "prompt": 4, "output": 1, "hash_block": 4, "hash_ids": [1]}
    path = lines(tmp_path, one, {**one, "hash_block": 8, "hash_ids": [2]})
    refused(path, r"t\.jsonl:2: hash_block: 8 is another size than that of line 1; expected 4")


# ---------------------------------------------------------------------- what is shared, shipped
def test_prefix_reuse_counts_leading_blocks_only() -> None:
    def ask(prompt: int, *ids: int) -> TraceRequest:
        return TraceRequest(
            at_ps=0, prompt_tokens=prompt, output_tokens=1, hash_ids=ids, hash_block=16
        )

    found = prefix_reuse([ask(40, 0, 1, 2), ask(40, 0, 3, 4), ask(32, 0, 1), ask(40, 0, 1, 2)])
    assert (found.blocks, found.hits) == (11, 0 + 1 + 2 + 3)
    # 32 tokens are two whole blocks, but the last token is computed; block 2 is partial
    assert (found.whole_hits, found.hit_tokens) == (0 + 1 + 1 + 2, 64)


def test_shipped_slices_are_read() -> None:
    found = {path.name: read_trace(path) for path in EXAMPLES.iterdir() if path.suffix != ".md"}
    assert {trace.format for trace in found.values()} == {
        "azure", "mooncake", "burstgpt", "vllm-bench", "jsonl",
    }  # fmt: skip


def test_the_shipped_conversations_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "again.jsonl"
    write_mooncake_trace(path, generate_conversations(96, seed=1), grid_ms=3000)
    assert path.read_bytes() == (EXAMPLES / "mooncake-like.jsonl").read_bytes()


def test_conversations_resemble_the_published_trace() -> None:
    requests = generate_conversations(4000, seed=2)
    assert len(requests) == 4000
    assert requests[0].at_ps == 0
    means = [sum(getattr(r, key) for r in requests) / 4000
             for key in ("prompt_tokens", "output_tokens")]  # fmt: skip
    assert means[0] == pytest.approx(12_035, rel=0.1)
    assert means[1] == pytest.approx(343, rel=0.05)
    assert prefix_reuse(requests).hit_share == pytest.approx(0.366, abs=0.02)  # as published
    # a turn's prompt begins with the whole blocks of the turn before, and with nobody else's
    turns: dict[str, TraceRequest] = {}
    for request in requests:
        before = turns.get(request.session)
        if before is not None:
            whole = before.hash_ids[: before.prompt_tokens // 512]
            assert request.hash_ids[: len(whole)] == whole
            assert request.prompt_tokens > before.prompt_tokens + before.output_tokens
        turns[request.session] = request


@pytest.mark.skipif(not SHARED.is_dir(), reason="the slices of public traces are not here")
def test_the_public_mooncake_slice() -> None:
    found = read_trace(SHARED / "mooncake_conversation_first1500.jsonl")
    assert len(found.requests) == 1500
    assert sum(request.output_tokens for request in found.requests) == 528_172
    reuse = prefix_reuse(found.requests)
    assert (reuse.blocks, reuse.hits, reuse.whole_hits) == (41_702, 11_068, 11_054)
