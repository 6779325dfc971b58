# SPDX-License-Identifier: Apache-2.0
"""Every key of the network, routing, packets, faults and cables says what it is in the schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from railweave.scenario import scenario_schema
from railweave.topologies.load import topology_json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = ("network", "routing", "fluid", "packet", "telemetry", "faults")
CABLES = ("buffer", "pfc", "ecn", "loss", "rate", "length", "delay", "model")
SAID = re.compile(r"^\S.*\. ((Default: .+ \(.+\)\.)|(Required\.))$")


def inner(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def keys_of(
    schema: dict[str, Any], node: dict[str, Any], path: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the schema of each key below a node."""
    node = inner(schema, node)
    for more in [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]:
        yield from keys_of(schema, more, path)
    if isinstance(node.get("items"), dict):
        yield from keys_of(schema, node["items"], path)
    for name, found in node.get("properties", {}).items():
        yield f"{path}.{name}", found
        yield from keys_of(schema, found, f"{path}.{name}")


def values_of(schema: dict[str, Any], node: dict[str, Any]) -> set[str]:
    """Return what kinds of values a key takes: word, number, quantity, ..."""
    node = inner(schema, node)
    kinds = set()
    for more in node.get("anyOf", ()):
        kinds |= values_of(schema, more)
    if node.get("type") in ("integer", "number"):
        kinds.add("number")
    if node.get("type") == "string" and "with its unit" in node.get("description", ""):
        kinds.add("quantity")
    return kinds


SCENARIO = scenario_schema()
KEYS = [
    (path, SCENARIO, node)
    for block in BLOCKS
    for path, node in keys_of(SCENARIO, SCENARIO["properties"][block], block)
]
TOPOLOGY = topology_json_schema()
KEYS += [
    (f"{name}.{key}", TOPOLOGY, node)
    for name in ("CustomLink", "LinkSpec", "HostLinkSpec")
    for key, node in TOPOLOGY["$defs"][name]["properties"].items()
    if key in CABLES
]
KEYS += [
    (path, TOPOLOGY, node)
    for name in ("LinkBufferModel", "LinkPfcModel")
    for path, node in keys_of(TOPOLOGY, TOPOLOGY["$defs"][name], name)
]


def test_the_schema_has_the_keys_of_a_packet_run() -> None:
    paths = {path for path, _, _ in KEYS}
    assert len(paths) > 100
    assert {"network.pfc.watchdog.detect", "faults.do", "network.cc.rhai"} <= paths


@pytest.mark.parametrize(("path", "schema", "node"), KEYS, ids=[path for path, _, _ in KEYS])
def test_a_key_says_what_it_is_its_unit_its_default_and_its_source(
    path: str, schema: dict[str, Any], node: dict[str, Any]
) -> None:
    said = node.get("description", "")
    assert SAID.match(said), f"{path}: {said!r}"
    if values_of(schema, node):
        assert " Unit: " in said, f"{path}: {said!r}"


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_says_what_it_is(block: str) -> None:
    assert SCENARIO["properties"][block]["description"]
