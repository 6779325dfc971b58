# SPDX-License-Identifier: Apache-2.0
"""Find a topology (a path, a shipped name or an inline mapping), check it and build its fabric."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railweave.fabric.document import Document, load_yaml
from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.network_model import NetworkModel, phy_latency_ps
from railweave.topologies.budgets import overfull_switches
from railweave.topologies.spec import SCHEMA, LinksSpec, TopologyModel, TopologySpec, topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.document import Key
    from railweave.fabric.graph import Fabric

__all__ = [
    "TopologySpec",
    "build_topology",
    "load_topology",
    "shipped_designs",
    "topology_json_schema",
]


def shipped_designs() -> Mapping[str, Path]:
    """Return the designs that come with railweave: name -> file.

    Examples
    --------
    >>> "h100-rail-1su" in shipped_designs()
    True
    """
    folder = Path(str(resources.files("railweave.topologies"))) / "designs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def _find(source: str, base: Path | None) -> Path:
    """Return the file that ``source`` names: a path from ``base`` on, or a shipped design."""
    looks_like_path = "/" in source or source.endswith((".yaml", ".yml"))
    if looks_like_path:
        return (base or Path()) / source
    designs = shipped_designs()
    if source not in designs:
        raise InputError(
            f"there is no design '{source}'",
            expected=f"a path to a YAML file, or one of {', '.join(designs)}",
            nearest=nearest_name(source, designs),
        )
    return designs[source]


def load_topology(
    source: Path | str | Mapping[str, Any] | Document,
    *,
    base: Path | None = None,
    at: tuple[Key, ...] = (),
) -> TopologySpec:
    """Read and check a topology.

    Parameters
    ----------
    source
        A path, the name of a shipped design, a mapping, or a document that holds one at ``at``.
    base
        Folder that relative paths start from (default: the working directory).
    at
        Key path of the topology inside a document.

    Raises
    ------
    InputError
        It cannot be found or read, or says something wrong; with file, line and field.
    """
    inline = not isinstance(source, Path | str)
    if isinstance(source, Document):
        document = source
    elif isinstance(source, Path):
        document = load_yaml(base / source if base else source)
    elif isinstance(source, str):
        document = load_yaml(_find(source, base))
    else:
        document = Document(dict(source))
    data = document.get(at)
    if not isinstance(data, dict):
        raise document.error("this is not a mapping", at=at, expected="the keys of a topology")
    schema = data.get("schema")
    if schema is None and not inline:
        raise document.error("it is missing", at=(*at, "schema"), expected="schema: 1")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema != SCHEMA:
        age = "older" if schema < SCHEMA else "newer"
        raise document.error(
            f"this file has schema {schema}, {age} than this version reads",
            at=(*at, "schema"),
            expected=f"{SCHEMA}",
        )
    if data.get("name") is None and not inline:
        raise document.error("it is missing", at=(*at, "name"), expected="name: my-fabric")
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise document.error(
            "it is missing" if kind is None else "this is not a word",
            at=(*at, "kind"),
            expected=" | ".join(topology.names()),
        )
    try:
        chosen = topology.get(kind)
    except InputError as error:
        raise document.error(
            error.message, at=(*at, "kind"), expected=error.expected, nearest=error.nearest
        ) from None
    model = document.check(chosen, at=at)
    return TopologySpec(name=model.name or "inline", model=model, document=document, at=at)


def build_topology(spec: TopologySpec, *, network: NetworkModel | None = None) -> Fabric:
    """Build the fabric of a topology.

    Parameters
    ----------
    spec
        The topology.
    network
        Settings of a scenario, which go before the file's own (only ``phy_latency`` matters here).

    Raises
    ------
    InputError
        A switch cannot carry its ports, numbers that do not go together, or a fabric in pieces.
    """
    from railweave.topologies.reach import pieces

    phy_ps = phy_latency_ps(spec.network, network)
    try:
        fabric = spec.model.build(spec.name, phy_ps=phy_ps)
        for switch, lacking in overfull_switches(fabric):
            raise InputError(f"{switch} {lacking}", field=f"nodes.{switch}")
        if not fabric.host_names:
            raise InputError("there is no host", field="nodes", expected="at least one host")
        parts = pieces(fabric)
        if len(parts) > 1:
            shown = " and ".join(f"'{names[0]}'" for names in parts[:2])
            raise InputError(
                f"the fabric is in {len(parts)} pieces: nothing joins {shown}", field="links"
            )
    except InputError as error:
        raise spec.locate(error) from None
    return _with_link_keys(fabric, spec.model)


def _with_link_keys(fabric: Fabric, model: TopologyModel) -> Fabric:
    """Add what the cables of a tier have otherwise than the network."""
    links = getattr(model, "links", None)
    if not isinstance(links, LinksSpec):
        return fabric
    keys = []
    for name in ("host-leaf", "leaf-spine", "spine-core"):
        cable = getattr(links, name.replace("-", "_"))
        own = {} if cable is None else cable.packet_keys()
        if own:
            numbers = [i for i, tier in enumerate(fabric.link_tier) if tier == name]
            keys.append((tuple(numbers), own))
    return replace(fabric, meta={**fabric.meta, "link_keys": tuple(keys)}) if keys else fabric


def topology_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of topology files, for editors.

    A file needs ``schema`` and ``name``; an inline topology, which has the ``oneOf`` alone, does
    not.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import models_json_schema

    models: list[tuple[type[TopologyModel], Literal["validation"]]] = [
        (topology.get(name), "validation") for name in topology.names()
    ]
    _, schema = models_json_schema(models, by_alias=True, title="railweave topology")
    references = [
        TypeAdapter(model).json_schema(by_alias=True, ref_template="#/$defs/{model}")["title"]
        for model, _ in models
    ]
    needed = {"schema": {"const": 1}, "name": {"type": "string"}}
    return schema | {
        "type": "object",
        "required": [*needed, "kind"],
        "properties": needed,
        "oneOf": [{"$ref": f"#/$defs/{title}"} for title in references],
    }
