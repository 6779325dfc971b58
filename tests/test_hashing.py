# SPDX-License-Identifier: Apache-2.0
"""The ECMP hash, bit by bit, and its compiled twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.fabric import _walk
from railweave.fabric.hashing import (
    choose,
    connection_id,
    flow_hash,
    hash_states,
    mix,
    nic_address,
    roce_source_port,
    source_ports,
    switch_seed,
)

A, B = 10 << 24 | 1, 10 << 24 | 1 << 8 | 1  # 10.0.0.1, 10.0.1.1
words = st.integers(0, 2**64 - 1)
nics = st.integers(0, 2**24 - 1)


def test_mixer_is_splitmix64():
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1) == 0x910A2DEC89025CC1


@pytest.mark.parametrize(
    ("switch", "seed"),
    [(0, 0x4D9B3F1EC9CF6B1B), (1, 0x7EB3B394AC9EFC29), (7, 0x6EAB8625DF268FBC)],
)
def test_switch_seeds_of_global_seed_42(switch, seed):
    assert switch_seed(42, switch) == seed


@pytest.mark.parametrize(
    ("switch", "port", "value", "picks"),
    [
        (0, 49152, 0xB167B3DFBC49ACB5, (1, 2, 5, 11, 44)),
        (0, 49153, 0x93842A68AD6706EB, (1, 1, 4, 9, 36)),
        (1, 49152, 0xA748AF8E5A2FAE0E, (1, 1, 5, 10, 41)),
    ],
)
def test_flow_hash_and_next_hop(switch, port, value, picks):
    found = flow_hash(switch_seed(42, switch), A, B, port)
    assert found == value
    assert tuple(choose(found, n) for n in (2, 3, 8, 16, 64)) == picks


@settings(derandomize=True, deadline=None, max_examples=50)
@given(words)
def test_compiled_mixer_agrees(value):
    with np.errstate(over="ignore"):
        assert int(_walk.mix(np.uint64(value))) == mix(value)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(words, nics, nics, st.integers(0, 2**20), st.integers(1, 512))
def test_compiled_hash_agrees(seed, source, target, queue_pair, count):
    connection = connection_id(source, target)
    port = roce_source_port(queue_pair, connection)
    assert 49152 <= port < 65536
    expected = choose(flow_hash(seed, nic_address(source), nic_address(target), port), count)
    with np.errstate(over="ignore"):
        u8 = np.uint64
        word = np.array([queue_pair], u8)
        compiled = int(source_ports(word, np.array([connection], u8))[0])
        assert compiled == port
        pick = _walk.hash_index(u8(mix(seed)), source, target, u8(port), count)
    assert int(pick) == expected


def test_hash_states_differ_per_switch_unless_polarised():
    assert hash_states(42, 2).tolist() == [mix(0x4D9B3F1EC9CF6B1B), mix(0x7EB3B394AC9EFC29)]
    assert hash_states(42, 3, polarised=True).tolist() == [mix(0x4D9B3F1EC9CF6B1B)] * 3


def test_nic_addresses_start_at_ten():
    assert nic_address(257) == B
    assert nic_address(0) == 10 << 24
