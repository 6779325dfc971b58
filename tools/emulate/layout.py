# SPDX-License-Identifier: Apache-2.0
"""From a scenario to the plan of its network: options, frames, faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.faults import Fault, plan_faults
from railweave.fabric.routing import Routing
from railweave.scenario import load_scenario
from railweave.tools.emulate.plan import make_plan
from railweave.tools.emulate.shaping import FRAME_HEADER_BYTES, PAYLOAD_BYTES
from railweave.topologies.load import build_topology
from railweave.workloads.workload import locating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from railweave.fabric.faults import LinkChange
    from railweave.fabric.graph import Fabric
    from railweave.scenario import Scenario, ScenarioSource
    from railweave.tools.emulate.choosing import Choice
    from railweave.tools.emulate.plan import NetworkPlan
    from railweave.tools.emulate.shaping import Mode

__all__ = ["ACKS_IN_QUEUE", "Options", "lay_out", "load_for_emulation"]

DEFAULT_SCALE: Final = 2000
DEFAULT_LIMIT_S: Final = 300.0
DEFAULT_REROUTE_S: Final = 0.05
ACKS_IN_QUEUE: Final[Mapping[str, Any]] = {
    "network.ack.every": 11,
    "network.ack.size": "66B",
}
"""Where acknowledgements share the rate of the data: one for a GSO packet of 16 kB, which holds 11,
of Ethernet 14, IPv4 20, TCP 20 and timestamps 12 bytes, as the shapers count."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to emulate.

    Parameters
    ----------
    scale
        Rates are divided by it.
    mode
        ``fair`` or ``fifo`` cables.
    paths
        Which paths connections take, see `PathChooser`.
    limit_s
        Wall time of the traffic, at most.
    reroute_s
        Wall time from a change of a cable until the control plane changes the routes.
    """

    scale: int = DEFAULT_SCALE
    mode: Mode = "fair"
    paths: Choice = "kernel"
    limit_s: float = DEFAULT_LIMIT_S
    reroute_s: float = DEFAULT_REROUTE_S


def load_for_emulation(
    source: ScenarioSource, *, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Read a scenario with the frames of TCP over Ethernet in place of its own.

    Raises
    ------
    InputError
        Anything wrong in the scenario.
    """
    frames = {
        "engine": "fluid",
        "network.mtu": f"{PAYLOAD_BYTES}B",
        "network.frame_overhead": f"{FRAME_HEADER_BYTES}B",
        "network.switching": "cut-through",
        "network.switch_latency": "0s",
        "network.host_latency": "0s",
        "network.ack.every": 0,  # they go beside the data
    }
    return load_scenario(source, overrides={**frames, **(overrides or {})})


def _without_delays(fabric: Fabric) -> Fabric:
    """Return the fabric with links of no length: a veth pair has none to speak of."""
    return replace(fabric, link_delay_ps=np.zeros_like(fabric.link_delay_ps))


def lay_out(
    scenario: Scenario, options: Options
) -> tuple[NetworkPlan, Routing, tuple[LinkChange, ...]]:
    """Return the plan of a scenario's network, the fabric's own routing on it, and what changes.

    Raises
    ------
    InputError
        The fabric, its routes or a fault cannot be in a Linux network.
    """
    model = scenario.model
    fabric = _without_delays(build_topology(scenario.topology, network=model.network))
    faults = [
        Fault(
            at_ps=fault.at,
            link=fault.link,
            node=fault.node,
            do=fault.do,
            rate_bps=fault.rate,
            for_ps=fault.duration,
        )
        for fault in model.faults
    ]
    with locating(scenario.document):
        planned = plan_faults(fabric, faults)
    routing = Routing(planned.fabric, policy=model.routing.policy, seed=model.seed)
    plan = make_plan(planned.fabric, routing, scale=options.scale, seed=model.seed)
    return plan, routing, planned.changes
