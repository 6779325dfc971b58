# SPDX-License-Identifier: Apache-2.0
"""Request traces: the reader's rules, and the generator behind the shipped trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from railweave.fabric.errors import InputError
from railweave.workloads.traces import (
    AZURE_CONV,
    TraceRequest,
    generate_trace,
    read_trace,
    write_azure_trace,
)

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "examples" / "traces" / "azure-conv-like.csv"
SHARED = ROOT.parent / "shared" / "traces"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read_azure(path: Path, **options: Any) -> list[TraceRequest]:
    return list(read_trace(path, format="azure", **options).requests)


def trace(tmp_path: Path, *rows: str, end: str = "\r\n") -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(end.join((HEADER, *rows)).encode())
    return path


def test_azure_rows_become_relative_picoseconds(tmp_path: Path) -> None:
    path = trace(
        tmp_path, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"
    )
    assert read_azure(path) == [
        TraceRequest(at_ps=0, prompt_tokens=374, output_tokens=44),
        TraceRequest(at_ps=4_314_579_000_000, prompt_tokens=396, output_tokens=109),
    ]


def test_all_seven_digits_count(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        "2023-11-16 23:59:59.9999999,1,1",
        "2023-11-17 00:00:00.0000001,1,1",
        "2023-11-17 00:00:00.5,1,1",
        "2023-11-17 00:00:01,1,1",
    )
    at = [request.at_ps for request in read_azure(path)]
    assert at == [0, 200_000, 500_000_100_000, 1_000_000_100_000]


def test_sorting_is_stable_and_precedes_the_limit(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        "2023-11-16 18:00:02.0000000,1,1",
        "2023-11-16 18:00:01.0000000,2,1",
        "2023-11-16 18:00:02.0000000,3,1",
        "2023-11-16 18:00:01.0000000,4,1",
    )
    prompts = [request.prompt_tokens for request in read_azure(path)]
    assert prompts == [2, 4, 1, 3]
    assert [r.prompt_tokens for r in read_azure(path, limit=3)] == [2, 4, 1]


def test_line_ends_blank_lines_and_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:00:00.0000000,7,8", "2023-11-16 18:00:01.0000000,9,10")
    plain = read_azure(trace(tmp_path, *rows))
    assert read_azure(trace(tmp_path, *rows, "", end="\n")) == plain
    path = trace(tmp_path, *rows, "", "")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_azure(path) == plain


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "GeneratedTokens,TIMESTAMP,NumImages,ContextTokens\n5,2024-10-15 00:00:00,3,900\n"
    )
    assert read_azure(path) == [TraceRequest(at_ps=0, prompt_tokens=900, output_tokens=5)]


def test_rate_scale_divides_arrivals_exactly(tmp_path: Path) -> None:
    path = trace(tmp_path, "2023-11-16 18:00:00.0000000,1,1", "2023-11-16 18:00:01.0000000,1,1")
    assert read_azure(path, rate_scale=4.0)[1].at_ps == 250_000_000_000
    assert read_azure(path, rate_scale=0.1)[1].at_ps == 10_000_000_000_000


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_scale_that_is_no_factor_is_refused(tmp_path: Path, scale: float) -> None:
    with pytest.raises(InputError, match=r"rate_scale: .* is not a rate scale"):
        read_azure(trace(tmp_path, "2023-11-16 18:00:00,1,1"), rate_scale=scale)


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="limit: limit 0 keeps no request"):
        read_azure(trace(tmp_path, "2023-11-16 18:00:00,1,1"), limit=0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:00:00.0000000,-5,1", r"ContextTokens: '-5' is not a number of tokens"),
        ("2023-11-16 18:00:00.0000000,5.5,1", r"ContextTokens: '5.5' is not a number of tokens"),
        ("2023-11-16 18:00:00.0000000,,1", r"ContextTokens: '' is not a number of tokens"),
        ("2023-11-16 18:00:00.0000000,5,many", r"GeneratedTokens: 'many' is not a number"),
        (
            "2023-11-16 18:00:00.0000000,\u0665,1",
            r"ContextTokens: .\u0665. is not a number of tokens",
        ),
        ("2023-11-16 18:00:00.0000000,0,1", r"ContextTokens: 0 tokens; expected at least 1"),
        ("2023-11-16 18:00:00.0000000,5,0", r"GeneratedTokens: 0 tokens; expected at least 1"),
        ("16/11/2023 18:00,5,1", r"TIMESTAMP: '16/11/2023 18:00' is not a timestamp"),
        ("2023-13-16 18:00:00,5,1", r"TIMESTAMP: '2023-13-16 18:00:00' is not a timestamp"),
        ("2023-11-16 18:00:00.12345678,5,1", r"TIMESTAMP: .* is not a timestamp"),
        ("2023-11-16 18:00:00.0000000,5", r"2 columns; expected 3 as in line 1"),
        ("2023-11-16 18:00:00.0000000,5,1,9", r"4 columns; expected 3 as in line 1"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: str, message: str) -> None:
    path = trace(tmp_path, "2023-11-16 18:00:00.0000000,5,1", row)
    with pytest.raises(InputError, match=rf"trace\.csv:3: {message}"):
        read_azure(path)


def test_requests_without_output_can_be_left_out(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:00:00,5,0", "2023-11-16 18:00:01,6,1")
    kept = read_azure(trace(tmp_path, *rows), empty_output="drop")
    assert kept == [TraceRequest(at_ps=0, prompt_tokens=6, output_tokens=1)]


def test_files_that_are_no_trace_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with pytest.raises(InputError, match=r"t\.csv: cannot read the trace: No such file"):
        read_azure(path)
    with pytest.raises(InputError, match="cannot read the trace: Is a directory"):
        read_azure(tmp_path)
    for content, message in (
        (b"", r"t\.csv: the trace is empty"),
        (b"\r\n", r"t\.csv: the trace is empty"),
        (HEADER.encode(), r"t\.csv: the trace has no requests"),
        (b"\x7fELF\x02\0\0", r"t\.csv: this is a binary file"),
        (b"\xff\xfe\xfa\xfb", r"t\.csv: this is a binary file"),
        (b"TIMESTAMP,ContextTokens\r\n", r"t\.csv:1: the trace has no column GeneratedTokens"),
        (b"timestamp,a,b\r\n", r"t\.csv:1: the trace has no column TIMESTAMP"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_azure(path)


def test_formats_are_recognised_by_their_columns(tmp_path: Path) -> None:
    assert read_trace(SHIPPED).format == "azure"
    path = tmp_path / "t.csv"
    for content in ("timestamp,a,b\r\n1,2,3", "hello", "[1, 2]", "{"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"t\.csv: is in no known format; .*azure \(TIME"):
            read_trace(path)
    with pytest.raises(InputError, match=r"'azur' is not a trace format; .* did you mean 'azure'"):
        read_trace(SHIPPED, format="azur")


def test_jitter_moves_later_by_less_than_asked_and_is_seeded() -> None:
    plain = read_azure(SHIPPED)
    moved = read_azure(SHIPPED, jitter_ps=1_000_000, seed=3)
    assert moved == read_azure(SHIPPED, jitter_ps=1_000_000, seed=3)
    assert moved != read_azure(SHIPPED, jitter_ps=1_000_000, seed=4)
    shifts = [b.at_ps - a.at_ps for a, b in zip(plain, moved, strict=True)]
    assert min(shifts) >= 0
    assert max(shifts) < 1_000_000
    assert len(set(shifts)) > 100


def test_the_generator_reproduces_the_shipped_trace_byte_for_byte(tmp_path: Path) -> None:
    again = tmp_path / "again.csv"
    requests = generate_trace(128, seed=9)
    write_azure_trace(again, requests)
    assert again.read_bytes() == SHIPPED.read_bytes()
    assert read_azure(SHIPPED) == requests


def test_drawn_lengths_and_arrivals_have_the_published_moments() -> None:
    requests = generate_trace(20_000, seed=1)
    prompts = sorted(request.prompt_tokens for request in requests)
    outputs = sorted(request.output_tokens for request in requests)
    # standard errors at 20,000 draws: prompt mean 0.4 %, output mean 0.8 %, medians about 1 %
    assert sum(prompts) / len(prompts) == pytest.approx(1155, rel=0.02)
    assert sum(outputs) / len(outputs) == pytest.approx(211, rel=0.03)
    assert prompts[10_000] == pytest.approx(1020, rel=0.03)
    assert outputs[10_000] == pytest.approx(129, rel=0.03)
    assert outputs[-1] == 1000
    assert prompts[0] >= 1
    assert len(requests) / (requests[-1].at_ps / 1e12) == pytest.approx(5.53, rel=0.03)


def test_the_cap_is_part_of_the_mean() -> None:
    output = AZURE_CONV.output
    assert output.capped_mean(output.sigma) == pytest.approx(211, rel=1e-12)
    free = 129 * math.exp(output.sigma**2 / 2)
    assert free == pytest.approx(228.9, rel=1e-3)  # what the mean would be without the cap


@pytest.mark.skipif(not SHARED.is_dir(), reason="the sample of the public trace is not here")
def test_the_public_trace_is_read_whole() -> None:
    requests = read_azure(SHARED / "azure_llm_2023_conv_first2000.csv")
    assert len(requests) == 2000
    assert requests[1] == TraceRequest(
        at_ps=4_314_579_000_000, prompt_tokens=396, output_tokens=109
    )
    assert requests[-1].at_ps == 424_259_457_000_000
