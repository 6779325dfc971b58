# SPDX-License-Identifier: Apache-2.0
"""``railweave topo list``: the kinds, designs and devices that a topology file may name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from railweave.fabric.errors import InputError, nearest_name
from railweave.tools.opening import open_topology
from railweave.tools.output import aligned, emit, emit_json, paint

if TYPE_CHECKING:
    from railweave.fabric.devices import Figure

__all__ = ["list_topologies"]


_Entry = dict[str, Any]


def list_topologies(
    what: Annotated[
        str | None,
        typer.Argument(
            help="kinds, designs, hosts, racks, gpus, nics, switches or cables.  "
            "[default: kinds and designs]",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List kinds of topology, shipped designs, or hosts and parts to build with."""
    if what is not None and what not in _TABLES:
        raise InputError(
            f"'{what}' cannot be listed",
            expected=" | ".join(_TABLES),
            nearest=nearest_name(what, _TABLES),
        )
    chosen = ("kinds", "designs") if what is None else (what,)
    if json:
        emit_json({one: _TABLES[one][1]() for one in chosen})
        return
    for place, one in enumerate(chosen):
        title, entries, columns, right = _TABLES[one]
        if place:
            emit("")
        emit(paint(title, "bold"))
        rows = [[_cell(entry[column]) for column in columns] for entry in entries()]
        emit(aligned(rows, header=columns, right=right, indent="  "))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _kinds() -> list[_Entry]:
    from railweave.topologies.spec import topology

    return [
        {"name": name, "about": (topology.get(name).__doc__ or "").strip().partition("\n")[0]}
        for name in topology.names()
    ]


def _designs() -> list[_Entry]:
    from railweave.topologies.load import load_topology, shipped_designs

    entries = []
    for name, path in shipped_designs().items():
        spec = load_topology(path)
        hosts, gpus = _population(name, spec.model)
        entries.append(
            {
                "name": name,
                "kind": spec.kind,
                "gpus": gpus,
                "hosts": hosts,
                "about": _opening_comment(path),
                "source": spec.model.source,
            }
        )
    return entries


def _population(name: str, model: object) -> tuple[int, int]:
    """Count hosts and GPUs of a design from its file where that says it, else by building it."""
    from railweave.fabric.devices import host_model, rack_model

    counted = [(part.count, 1, host_model(part.model).gpus) for part in _listed(model, "hosts")] + [
        (part.count, rack_model(part.model).hosts, rack_model(part.model).gpus)
        for part in _listed(model, "racks")
    ]
    if counted and all(count is not None for count, _, _ in counted):
        return (
            sum(count * hosts for count, hosts, _ in counted),
            sum(count * gpus for count, _, gpus in counted),
        )
    _, fabric = open_topology(name)
    return len(fabric.host_names), len(fabric.gpus)


def _listed(model: object, key: str) -> Sequence[Any]:
    """Return the entries under a key that holds one, several, or is not there."""
    given = getattr(model, key, None)
    return given if isinstance(given, Sequence) else [given] if given is not None else []


def _opening_comment(path: Path) -> str:
    """Return what the comment at the head of a design's file says of it."""
    said = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "SPDX-License-Identifier" not in line:
            said.append(line.removeprefix("#").strip())
    return " ".join(said)


def _catalogue(section: str) -> list[str]:
    from railweave.fabric.devices import catalogue_names

    return catalogue_names(section)


def _sources(figures: "dict[str, Figure]") -> _Entry:
    from dataclasses import asdict

    return {name: asdict(figure) for name, figure in figures.items()}


def _hosts() -> list[_Entry]:
    from railweave.fabric.devices import host_model
    from railweave.fabric.units import format_rate

    entries = []
    for name in _catalogue("hosts"):
        host = host_model(name)
        nics = "1 per cable" if host.nics is None else f"{host.nics} x {host.nic and host.nic.name}"
        entries.append(
            {
                "name": name,
                "gpus": f"{host.gpus} x {host.gpu.name}",
                "nics": nics,
                "nvlink": format_rate(host.nvlink.rate_bps) if host.nvlink else None,
                "about": host.title,
                "figures": _sources(dict(host.figures)),
            }
        )
    return entries


def _racks() -> list[_Entry]:
    from railweave.fabric.devices import rack_model

    entries = []
    for name in _catalogue("racks"):
        rack = rack_model(name)
        entries.append(
            {
                "name": name,
                "gpus": rack.gpus,
                "hosts": f"{rack.hosts} x {rack.host.name}",
                "about": rack.title,
                "figures": _sources(dict(rack.figures)),
            }
        )
    return entries


def _cables() -> list[_Entry]:
    from railweave.fabric.cables import cable_model
    from railweave.fabric.units import format_length, format_rate

    entries = []
    for name in _catalogue("cables"):
        cable = cable_model(name)
        entries.append(
            {
                "name": name,
                "links": f"{cable.links} x {format_rate(cable.link_bps)}",
                "reach": format_length(cable.reach_mm),
                "medium": cable.medium,
                "about": cable.title,
                "figures": _sources(dict(cable.figures)),
            }
        )
    return entries


def _gpus() -> list[_Entry]:
    from railweave.fabric.devices import gpu_model

    entries = []
    for name in _catalogue("gpus"):
        gpu = gpu_model(name)
        entries.append(
            {
                "name": name,
                "memory": f"{gpu.memory_bytes / 1e9:g} GB",
                "bandwidth": f"{gpu.memory_bandwidth_Bps / 1e9:,.0f} GB/s",
                "bf16": f"{gpu.flops['bf16'] / 1e12:g} TFLOP/s" if "bf16" in gpu.flops else None,
                "about": gpu.title,
                "figures": _sources(dict(gpu.figures)),
            }
        )
    return entries


def _nics() -> list[_Entry]:
    from railweave.fabric.devices import nic_model
    from railweave.fabric.units import format_rate

    entries = []
    for name in _catalogue("nics"):
        nic = nic_model(name)
        entries.append(
            {
                "name": name,
                "ports": f"{nic.ports} x {format_rate(nic.rate_bps)}",
                "protocols": ", ".join(sorted(nic.protocols)),
                "about": nic.title,
                "figures": _sources(dict(nic.figures)),
            }
        )
    return entries


def _switches() -> list[_Entry]:
    from railweave.fabric.devices import switch_model
    from railweave.fabric.units import format_rate

    entries = []
    for name in _catalogue("switches"):
        switch = switch_model(name)
        ports = sorted(switch.ports.items(), reverse=True)
        entries.append(
            {
                "name": name,
                "ports": ", or ".join(f"{n} x {format_rate(rate)}" for rate, n in ports),
                "protocols": ", ".join(sorted(switch.protocols)),
                "about": switch.title,
                "figures": _sources(dict(switch.figures)),
            }
        )
    return entries


_Table = tuple[str, Callable[[], list[_Entry]], tuple[str, ...], tuple[int, ...]]
_TABLES: Final[dict[str, _Table]] = {
    "kinds": (
        "kinds (write a file, or start from a design)",
        _kinds,
        ("name", "about"),
        (),
    ),
    "designs": (
        "shipped designs (usable by name wherever a topology is asked for)",
        _designs,
        ("name", "kind", "gpus", "hosts", "about"),
        (2, 3),
    ),
    "hosts": (
        "hosts (model: of hosts)",
        _hosts,
        ("name", "gpus", "nics", "nvlink", "about"),
        (),
    ),
    "racks": (
        "racks (model: of racks)",
        _racks,
        ("name", "gpus", "hosts", "about"),
        (1,),
    ),
    "gpus": (
        "GPUs (of hosts, and --gpu of size)",
        _gpus,
        ("name", "memory", "bandwidth", "bf16", "about"),
        (1, 2, 3),
    ),
    "nics": ("NICs (of hosts)", _nics, ("name", "ports", "protocols", "about"), ()),
    "switches": (
        "switches (switch: of a tier)",
        _switches,
        ("name", "ports", "protocols", "about"),
        (),
    ),
    "cables": (
        "cables and optics",
        _cables,
        ("name", "links", "reach", "medium", "about"),
        (2,),
    ),
}
