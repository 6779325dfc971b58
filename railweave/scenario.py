# SPDX-License-Identifier: Apache-2.0
"""A scenario file: which fabric, which workload, which engine.

`load_scenario` reads and checks one, down to the topology and each workload's own keys; nothing is
built yet. `Scenario.resolved` writes it back with every default and every file it refers to spelled
out, so that a run can be repeated from its folder alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from railweave.fabric.document import Document, load_yaml
from railweave.fabric.errors import InputError
from railweave.fabric.fields import FileModel
from railweave.fabric.network_model import (
    NetworkModel,
    network_settings,
    packet_blocks,
    packet_keys,
    packet_settings,
    phy_latency_ps,
)
from railweave.fabric.units import format_size, format_time
from railweave.scenario_keys import (
    FaultModel,
    FluidModel,
    PacketModel,
    RoutingModel,
    TelemetryModel,
)
from railweave.workloads.workload import (
    PlacementModel,
    WorkloadKind,
    WorkloadModel,
    find_kind,
    locating,
)

if TYPE_CHECKING:
    from railweave.fabric.document import Key
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.packet.settings import PacketSettings
    from railweave.topologies.spec import TopologySpec

__all__ = [
    "ENDS_KEPT",
    "FaultModel",
    "PacketModel",
    "RoutingModel",
    "Scenario",
    "ScenarioModel",
    "ScenarioSource",
    "TelemetryModel",
    "load_scenario",
    "scenario_schema",
    "scenario_sha256",
]

ScenarioSource = Path | str | Mapping[str, Any]
"""A scenario file, or the mapping that one would hold."""

SCHEMA: Final = 1
ENDS_KEPT: Final = 65_536
"""Ends of messages by which runs with a quantum are compared with exact ones."""
_PACKET_POLICIES: Final = ("flowlet", "adaptive")
_PACKET_KEYS: Final = ("spray", "entropies", "adaptive", "adaptive_quantum", "flowlet_gap")


class ScenarioModel(FileModel):
    """The keys of a scenario file; those of a workload depend on its kind."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format")
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Names the run's folder; default: the name of the file",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Of every random stream and hash")
    engine: Literal["analytic", "fluid", "packet"] = Field(
        "fluid", description="analytic: lower bounds; fluid: fair rates; packet: every frame"
    )
    topology: str | dict[str, Any] = Field(
        description="A path relative to this file, the name of a shipped topology, or one inline"
    )
    placement: PlacementModel = Field(
        PlacementModel(), description="Which GPUs the ranks of a workload are"
    )
    routing: RoutingModel = Field(RoutingModel(), description="How flows choose among equal paths")
    fluid: FluidModel = Field(FluidModel(), description="How exact the fluid engine has to be")
    packet: PacketModel = Field(
        PacketModel(), description="How much work the packet engine may save itself"
    )
    telemetry: TelemetryModel | None = Field(
        None, description="Queues over time (packet engine); nothing is sampled without it"
    )
    network: NetworkModel = Field(
        NetworkModel(), description="Over the topology's own network defaults"
    )
    faults: tuple[FaultModel, ...] = Field(
        (), description="What breaks, slows down or comes back, and when"
    )
    workload: dict[str, Any] | list[Any] = Field(description="One workload, or a list of them")


@dataclass(frozen=True)
class NamedWorkload:
    """A workload of a scenario: its kind, its keys, its unique name and where it stands."""

    name: str
    kind: WorkloadKind[Any]
    model: WorkloadModel
    loc: tuple[Key, ...]


@dataclass(frozen=True)
class Scenario:
    """A checked scenario.

    Parameters
    ----------
    name
        Of the scenario; names the run's folder.
    model
        The keys of the file.
    workloads
        At least one.
    topology
        The topology, read but not built.
    document
        The file, for messages with lines.
    base
        Folder that relative paths are relative to.
    exact
        Every packet by itself, whatever the quantum, to compare the run with.
    """

    name: str
    model: ScenarioModel
    workloads: tuple[NamedWorkload, ...]
    topology: TopologySpec
    document: Document
    base: Path
    exact: bool = False

    @property
    def settings(self) -> NetworkSettings:
        """Network settings: the scenario's over the topology's over the defaults."""
        return network_settings(self.topology.network, self.model.network)

    @property
    def packet(self) -> PacketSettings:
        """Settings of the packet engine, merged likewise."""
        settings = packet_settings(self.topology.network, self.model.network, seed=self.model.seed)
        routing = self.model.routing
        spread: Any = {
            "spray": "entropy" if routing.entropies else routing.spray or "spray",
            "adaptive": "adaptive" if routing.adaptive != "two-choices" else "two-choices",
            "flowlet": "flowlet",
        }.get(routing.policy, "none")
        given = {
            "entropies": routing.entropies,
            "adaptive_quantum_bytes": routing.adaptive_quantum,
            "flowlet_gap_ps": routing.flowlet_gap,
        }
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        own = self.model.packet
        quantum: dict[str, Any] = {}
        if own.quantum > 1:
            quantum = {"quantum": 1 if self.exact else own.quantum, "ends_kept": ENDS_KEPT}
        return replace(settings, spread=spread, elide=own.elide, **quantum, **known)

    @property
    def paths_policy(self) -> str:
        """The policy that says which links a flow may use; packets may choose among them."""
        policy = self.model.routing.policy
        return "spray" if policy in _PACKET_POLICIES else policy

    @property
    def unheeded(self) -> list[str]:
        """Keys of the ``network:`` blocks that only the packet engine heeds, where it is not it."""
        if self.model.engine == "packet":
            return []
        return packet_keys(self.topology.network, self.model.network)

    def resolved(self) -> dict[str, Any]:
        """Return the mapping of a scenario file that gives the same run from anywhere."""
        model = self.model
        dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True)
        workloads = [self._resolved_workload(workload) for workload in self.workloads]
        return {
            "schema": SCHEMA,
            "name": self.name,
            "seed": model.seed,
            "engine": model.engine,
            "topology": {"name": self.topology.name, **self.topology.model.content()},
            "placement": dumped["placement"],
            "routing": dumped["routing"],
            **({"fluid": dumped["fluid"]} if model.engine == "fluid" else {}),
            # Not whether packets are elided: that changes nothing.
            **({} if model.packet.quantum == 1 else {"packet": {"quantum": model.packet.quantum}}),
            **({} if model.telemetry is None else {"telemetry": dumped["telemetry"]}),
            "network": self._resolved_network(),
            "faults": dumped["faults"],
            "workload": workloads[0] if isinstance(model.workload, dict) else workloads,
        }

    def _resolved_workload(self, workload: NamedWorkload) -> dict[str, Any]:
        explicit = workload.model.explicit(self.base, seed=self.model.seed)
        dumped = explicit.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"kind": workload.kind.name, "name": workload.name, **dumped}

    def _resolved_network(self) -> dict[str, Any]:
        settings = self.settings
        ack: dict[str, Any] = {"every": settings.ack_every}
        if settings.ack_bytes is not None:
            ack["size"] = format_size(settings.ack_bytes)
        network: dict[str, Any] = {
            "mtu": format_size(settings.mtu_bytes),
            "ip": settings.ip_version,
            "vlan": settings.vlan,
            "switching": "cut-through" if settings.cut_through else "store-and-forward",
            "switch_latency": format_time(settings.switch_latency_ps),
            "host_latency": format_time(settings.host_latency_ps),
            "phy_latency": format_time(phy_latency_ps(self.topology.network, self.model.network)),
            "ack": ack,
        }
        if settings.frame_overhead_bytes is not None:
            network["frame_overhead"] = format_size(settings.frame_overhead_bytes)
        blocks = packet_blocks(self.topology.network, self.model.network)
        given = blocks.model_dump(mode="json", by_alias=True, exclude_none=True)
        network["ack"] = {**given.pop("ack", {}), **ack}
        network |= {key: value for key, value in given.items() if value != {}}
        return network


def scenario_sha256(resolved: Mapping[str, Any]) -> str:
    """Return the hash of a resolved scenario, as JSON with sorted keys and no spaces.

    Examples
    --------
    >>> scenario_sha256({"b": 1, "a": 2}) == scenario_sha256({"a": 2, "b": 1})
    True
    """
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def load_scenario(
    source: ScenarioSource, *, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    source
        The file, or the mapping that one would hold (paths in it relative to the working
        directory).
    overrides
        Dotted key -> value as it would stand in the file: ``{"seed": 2, "routing.qps": 4}``.

    Raises
    ------
    InputError
        Anything wrong in the scenario or in the topology it names, with file, line and field.
    """
    if isinstance(source, Mapping):
        document, base, default_name = Document(copy.deepcopy(dict(source))), Path(), "scenario"
    else:
        path = Path(source)
        document, base, default_name = load_yaml(path), path.parent, _safe_name(path.stem)
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    try:
        model = document.check(ScenarioModel)
        _refuse_later(document, model)
    except InputError as error:
        if overrides is None or error.field not in overrides:
            raise
        raise InputError(  # the file is not to blame
            error.message, field=error.field, expected=error.expected, nearest=error.nearest
        ) from None
    return Scenario(
        name=model.name or default_name,
        model=model,
        workloads=_workloads(document, model),
        topology=_topology(document, model, base),
        document=document,
        base=base,
    )


def _safe_name(stem: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)
    return kept.lstrip("._-") or "scenario"


def _override(document: Document, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    here = document.data
    for parent in parents:
        here = here.setdefault(parent, {}) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        raise InputError(f"'{key}' cannot be set", expected="a key below mappings", field=key)
    here[last] = value


def _refuse_later(document: Document, model: ScenarioModel) -> None:
    """Refuse, each in its own words, what the format has and this version has not."""
    if model.engine != "fluid" and model.fluid.tolerance:
        raise document.error(
            f"the {model.engine} engine has no tolerance",
            at=("fluid", "tolerance"),
            expected="engine: fluid",
        )
    for key in ("elide", "quantum"):
        if model.engine != "packet" and getattr(model.packet, key) != getattr(PacketModel(), key):
            raise document.error(
                f"the {model.engine} engine sends no packets",
                at=("packet", key),
                expected="engine: packet",
            )
    if model.engine != "packet" and model.telemetry is not None:
        raise document.error(
            f"the {model.engine} engine has no queues",
            at=("telemetry",),
            expected="engine: packet",
        )
    for key in _PACKET_KEYS:
        if model.engine != "packet" and getattr(model.routing, key) is not None:
            raise document.error(
                f"the {model.engine} engine sees no packets",
                at=("routing", key),
                expected="engine: packet",
            )
    routing = model.routing
    if routing.entropies is not None and (routing.policy != "spray" or routing.spray == "rr"):
        raise document.error(
            "entropy values are for sprayed packets",
            at=("routing", "entropies"),
            expected="policy: spray, without spray: rr",
        )
    if model.engine != "packet" and model.routing.policy in _PACKET_POLICIES:
        raise document.error(
            f"{model.routing.policy} routing needs packets, which the {model.engine} engine "
            "does not see",
            at=("routing", "policy"),
            expected="ecmp | ecmp-polarised | rail | spray",
        )
    for i, fault in enumerate(model.faults):
        _check_fault(document, fault, ("faults", i), engine=model.engine)


def _check_fault(
    document: Document, fault: FaultModel, at: tuple[Key, ...], *, engine: str
) -> None:
    def refuse(key: str, message: str, expected: str) -> None:
        raise document.error(message, at=(*at, key), expected=expected)

    if fault.do == "pause-storm" and engine != "packet":
        message = f"the {engine} engine sees no pauses"
        refuse("do", message, "down | up | degrade; or engine: packet")
    if engine == "analytic" and (fault.at != 0 or fault.duration is not None):
        key, expected = ("at", "0s: before the run") if fault.at else ("for", "no 'for'")
        message = f"the {engine} engine has no faults in mid-run"
        refuse(key, message, f"{expected}; or engine: fluid | packet")
    if fault.priority is not None and fault.do != "pause-storm":
        refuse("priority", "only a pause storm has a priority", "no 'priority'")
    if (fault.link is None) == (fault.node is None):
        raise document.error("it names no one thing", at=at, expected="either link or node")
    if (fault.do == "degrade") != (fault.rate is not None):
        message = "it has no rate" if fault.do == "degrade" else f"'{fault.do}' takes no rate"
        raise document.error(message, at=at, expected="rate with degrade, and only there")


def _workloads(document: Document, model: ScenarioModel) -> tuple[NamedWorkload, ...]:
    single = isinstance(model.workload, dict)
    entries: Sequence[Any] = [model.workload] if single else list(model.workload)
    if not entries:
        raise document.error("there is no workload", at=("workload",), expected="at least one")
    found: list[NamedWorkload] = []
    for i, entry in enumerate(entries):
        loc: tuple[Key, ...] = ("workload",) if single else ("workload", i)
        if not isinstance(entry, dict):
            raise document.error("this is no workload", at=loc, expected="a mapping with a kind")
        kind = _kind(document, entry, loc)
        workload = document.check(kind.model, at=loc)
        name = workload.name or (kind.name if single else f"{kind.name}{i}")
        if name in [other.name for other in found]:
            raise document.error(
                f"two workloads are called '{name}'",
                at=(*loc, "name"),
                expected="a name of its own for each workload",
            )
        found.append(NamedWorkload(name, kind, workload, loc))
    return tuple(found)


def _kind(document: Document, entry: Mapping[str, Any], loc: tuple[Key, ...]) -> WorkloadKind[Any]:
    at = (*loc, "kind")
    if "kind" not in entry:
        raise document.error("it is missing", at=at, expected="the kind of the workload")
    with locating(document, *at):
        return find_kind(entry["kind"])


def _topology(document: Document, model: ScenarioModel, base: Path) -> TopologySpec:
    from railweave.topologies.load import load_topology

    if isinstance(model.topology, str):
        with locating(document, "topology"):
            return load_topology(model.topology, base=base)
    return load_topology(document, base=base, at=("topology",))


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, with every kind of topology and workload."""
    from pydantic import TypeAdapter

    from railweave.topologies.load import topology_json_schema
    from railweave.workloads.workload import kind_names

    schema = ScenarioModel.model_json_schema(by_alias=True)
    definitions = schema.setdefault("$defs", {})
    kinds = []
    for name in kind_names():
        model = find_kind(name).model
        part = TypeAdapter(model).json_schema(by_alias=True, ref_template="#/$defs/{model}")
        definitions.update(part.pop("$defs", {}))
        definitions[model.__name__] = part
        kinds.append({"$ref": f"#/$defs/{model.__name__}"})
    inline = topology_json_schema()
    definitions.update(inline["$defs"])
    named = {"type": "string", "description": "A path relative to this file, or a shipped name"}
    schema["properties"]["topology"] = {"anyOf": [named, {"oneOf": inline["oneOf"]}]}
    one = {"oneOf": kinds}
    schema["properties"]["workload"] = {
        "description": "One workload, or a list of them",
        "anyOf": [one, {"type": "array", "minItems": 1, "items": one}],
    }
    return schema
