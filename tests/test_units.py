# SPDX-License-Identifier: Apache-2.0
"""Quantities: text in, exact integers out, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric import fields, units
from railweave.fabric.errors import InputError

INT64 = st.one_of(
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6).map(lambda k: k * 10**9),
    st.integers(0, 2**33 - 1).map(lambda k: k * 2**30),
)
PAIRS = {
    "rate": (units.parse_rate_bps, units.format_rate),
    "size": (units.parse_size_bytes, units.format_size),
    "time": (units.parse_time_ps, units.format_time),
    "length": (units.parse_length_mm, units.format_length),
}
FIELDS = {
    "rate": fields.Rate,
    "size": fields.Size,
    "time": fields.Time,
    "length": fields.Length,
}


@pytest.mark.parametrize("what", PAIRS)
@settings(derandomize=True, deadline=None, max_examples=200)
@given(value=INT64)
def test_what_is_written_reads_back_exactly(what: str, value: int) -> None:
    parse, write = PAIRS[what]
    assert parse(write(value)) == value


@pytest.mark.parametrize("what", PAIRS)
@settings(derandomize=True, deadline=None, max_examples=200)
@given(value=INT64)
def test_schema_pattern_accepts_what_is_written(what: str, value: int) -> None:
    from pydantic import TypeAdapter

    schema = TypeAdapter(FIELDS[what]).json_schema()
    assert schema["type"] == "string"
    assert "unit" in schema["description"]
    assert re.search(schema["pattern"], PAIRS[what][1](value))
    assert re.search(schema["pattern"], schema["examples"][0])
    assert not re.search(schema["pattern"], str(value))


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400Gbps", 400_000_000_000),
        ("400Gb/s", 400_000_000_000),
        ("400 Gbit/s", 400_000_000_000),
        ("50GB/s", 400_000_000_000),
        ("50GBps", 400_000_000_000),
        ("1GB/s", 8_000_000_000),
        ("1Gb/s", 1_000_000_000),
        ("1GiB/s", 8 * 2**30),
        ("1Gibps", 2**30),
        ("2.5Tbps", 2_500_000_000_000),
        ("100kbps", 100_000),
        ("0bps", 0),
        ("0.125B/s", 1),
    ],
)
def test_rates(text: str, rate_bps: int) -> None:
    assert units.parse_rate_bps(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096B", 4096),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("64MiB", 67_108_864),
        ("64MB", 64_000_000),
        ("1.5GiB", 1_610_612_736),
        (" 1 GB ", 10**9),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert units.parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1ps", 1),
        ("600ns", 600_000),
        ("1.5us", 1_500_000),
        ("1.5\N{MICRO SIGN}s", 1_500_000),
        ("1.5\N{GREEK SMALL LETTER MU}s", 1_500_000),
        ("0.001ns", 1),
        ("2ms", 2 * 10**9),
        ("1min", 60 * 10**12),
        ("1h", 3600 * 10**12),
    ],
)
def test_times(text: str, time_ps: int) -> None:
    assert units.parse_time_ps(text) == time_ps


@pytest.mark.parametrize(
    ("text", "length_mm"), [("30m", 30_000), ("0.5m", 500), ("2km", 2 * 10**6)]
)
def test_lengths(text: str, length_mm: int) -> None:
    assert units.parse_length_mm(text) == length_mm


@pytest.mark.parametrize("prefix", ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"])
@settings(derandomize=True, deadline=None, max_examples=30)
@given(number=st.integers(0, 10**6))
def test_a_byte_is_eight_bits_under_every_prefix(prefix: str, number: int) -> None:
    in_bits = units.parse_rate_bps(f"{number}{prefix}b/s")
    in_bytes = units.parse_rate_bps(f"{number}{prefix}B/s")
    assert in_bytes == 8 * in_bits
    assert in_bytes == 8 * units.parse_size_bytes(f"{number}{prefix}B")


@pytest.mark.parametrize(
    ("what", "text", "problem"),
    [
        ("rate", "400", "'400' has no unit"),
        ("rate", 400, "400 has no unit"),
        ("rate", 400.0, "400.0 has no unit"),
        ("rate", True, "True has no unit"),
        ("rate", None, "None has no unit"),
        ("rate", "400G", "'G' is not a unit of rate"),
        ("rate", "400GB", "'GB' is not a unit of rate"),
        ("rate", "400gbps", "'gbps' is not a unit of rate; .*; did you mean 'Gbps'"),
        ("rate", "400mbps", "'mbps' is not a unit of rate; .*; did you mean 'Mbps'"),
        ("rate", "-1Gbps", "'-1Gbps' is negative"),
        ("rate", "0.5bps", "not a whole number of bit/s"),
        ("rate", "1e9", "'1e9' is not a rate"),
        ("rate", "1e9bps", "'1e9bps' is not a rate"),
        ("rate", "nanGbps", "'nanGbps' is not a rate"),
        ("rate", "", "'' is not a rate"),
        ("rate", "\N{ARABIC-INDIC DIGIT FOUR}Gbps", "is not a rate"),
        ("rate", "10000000000Gbps", "is too large"),
        ("size", "64", "'64' has no unit"),
        ("size", "64M", "'M' is not a unit of size"),
        ("size", "64Mb", "'Mb' is not a unit of size"),
        ("size", "64mib", "did you mean 'MiB'"),
        ("size", "-64MiB", "negative"),
        ("size", "0.3B", "not a whole number of bytes"),
        ("size", "8EiB", "'EiB' is not a unit of size"),
        ("time", "5", "'5' has no unit"),
        ("time", "5m", "'m' is not a unit of time"),
        ("time", "-5us", "negative"),
        ("time", "0.1ps", "not a whole number of picoseconds"),
        ("time", "12:30:00", "is not a time"),
        ("length", "30", "'30' has no unit"),
        ("length", "30M", "did you mean 'm'"),
        ("length", "-1m", "negative"),
    ],
)
def test_refused(what: str, text: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        PAIRS[what][0](text)
    assert caught.value.expected
    assert caught.value.exit_code == 2
