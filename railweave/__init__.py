# SPDX-License-Identifier: Apache-2.0
"""railweave: the network fabric and collective-traffic emulator for AI clusters.

The public names below are imported when they are first used, so that ``import railweave`` itself
costs nothing:

>>> import railweave
>>> railweave.parse_rate_bps("400Gbps")
400000000000
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from railweave.collectives import plan as plan
    from railweave.collectives import verify as verify
    from railweave.fabric.engine import Engine as Engine
    from railweave.fabric.engine import FabricEnvironment as FabricEnvironment
    from railweave.fabric.engines import make_engine as make_engine
    from railweave.fabric.errors import InputError as InputError
    from railweave.fabric.errors import RailweaveError as RailweaveError
    from railweave.fabric.flow import Flow as Flow
    from railweave.fabric.flow import FlowRecord as FlowRecord
    from railweave.fabric.graph import Fabric as Fabric
    from railweave.fabric.network import NetworkSettings as NetworkSettings
    from railweave.fabric.routing import Routing as Routing
    from railweave.fabric.schedule import Schedule as Schedule
    from railweave.fabric.units import format_rate as format_rate
    from railweave.fabric.units import format_size as format_size
    from railweave.fabric.units import format_time as format_time
    from railweave.fabric.units import parse_rate_bps as parse_rate_bps
    from railweave.fabric.units import parse_size_bytes as parse_size_bytes
    from railweave.fabric.units import parse_time_ps as parse_time_ps
    from railweave.result import Result as Result
    from railweave.runner import run_scenario as run_scenario
    from railweave.scenario import load_scenario as load_scenario
    from railweave.topologies.load import build_topology as build_topology
    from railweave.topologies.load import load_topology as load_topology
    from railweave.workloads.shapes import load_shape as load_shape

    __version__: str

_HOMES: Final = {
    "Engine": "railweave.fabric.engine",
    "Fabric": "railweave.fabric.graph",
    "FabricEnvironment": "railweave.fabric.engine",
    "Flow": "railweave.fabric.flow",
    "FlowRecord": "railweave.fabric.flow",
    "InputError": "railweave.fabric.errors",
    "NetworkSettings": "railweave.fabric.network",
    "RailweaveError": "railweave.fabric.errors",
    "Result": "railweave.result",
    "Routing": "railweave.fabric.routing",
    "Schedule": "railweave.fabric.schedule",
    "build_topology": "railweave.topologies.load",
    "format_rate": "railweave.fabric.units",
    "format_size": "railweave.fabric.units",
    "format_time": "railweave.fabric.units",
    "load_scenario": "railweave.scenario",
    "load_shape": "railweave.workloads.shapes",
    "load_topology": "railweave.topologies.load",
    "make_engine": "railweave.fabric.engines",
    "parse_rate_bps": "railweave.fabric.units",
    "parse_size_bytes": "railweave.fabric.units",
    "parse_time_ps": "railweave.fabric.units",
    "plan": "railweave.collectives",
    "run_scenario": "railweave.runner",
    "verify": "railweave.collectives",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("railweave")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'railweave' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
