# SPDX-License-Identifier: Apache-2.0
"""What `topo draw` lays over a fabric: a measure of its links, a path, failures, or a placement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.faults import Fault, plan_faults
from railweave.tools.overlay import MEASURES, measure_of, read_link_loads
from railweave.tools.ranks import read_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from railweave.fabric.graph import Fabric
    from railweave.tools.overlay import LinkLoads
    from railweave.tools.ranks import RankMap

__all__ = ["DrawnRun", "as_run", "overlay_of", "with_failures"]

FAILURES, RANKS = "failures", "ranks"
OVERLAYS: Final = (*(measure.key for measure in MEASURES), FAILURES, RANKS)
_LINK: Final = re.compile(r".+:\d+[->].+:\d+")


@dataclass(frozen=True, eq=False)
class DrawnRun:
    """A fabric with what is drawn over it."""

    fabric: Fabric
    loads: LinkLoads | None = None
    ranks: RankMap | None = None


def as_run(fabric: Fabric, run: Path | None) -> Fabric:
    """Return a fabric with the front-end network that a run had beside it."""
    if run is None or not (run / "scenario.yaml").is_file():
        return fabric
    from railweave.fault_schedule import with_front_end
    from railweave.scenario import load_scenario

    return with_front_end(load_scenario(run / "scenario.yaml"), fabric)


def with_failures(fabric: Fabric, names: Sequence[str]) -> Fabric:
    """Return the fabric with cables, hosts or devices down.

    Raises
    ------
    InputError
        There is no such thing.
    """
    try:
        return plan_faults(fabric, [_fault(name) for name in names]).fabric if names else fabric
    except InputError as error:
        raise error.located(field="--fail") from None


def _fault(name: str) -> Fault:
    return Fault(link=name) if _LINK.fullmatch(name) else Fault(node=name)


def overlay_of(
    fabric: Fabric, *, run: Path | None, overlay: str | None, flow: str | None
) -> DrawnRun:
    """Read from a run what is to be drawn over its fabric.

    Parameters
    ----------
    fabric
        What is drawn.
    run
        Folder of a run of that fabric, or None.
    overlay
        A measure of links, ``failures`` or ``ranks``; None: utilisation, if there is a run.
    flow
        A flow whose path stands out, or None.

    Raises
    ------
    InputError
        There is no such overlay or flow, or the run has nothing to show for it.
    """
    if overlay is not None and overlay not in OVERLAYS:
        raise InputError(
            f"'{overlay}' is nothing that can be drawn over a topology",
            field="--overlay",
            expected=" | ".join(OVERLAYS),
            nearest=nearest_name(overlay, OVERLAYS),
        )
    if run is None:
        for option, given in (("--overlay", overlay), ("--flow", flow)):
            if given is not None:
                raise InputError(
                    f"needs a run to take '{given}' from", field=option, expected="--run FOLDER"
                )
        return DrawnRun(fabric)
    if overlay == RANKS:
        if flow is not None:
            raise InputError("has no place in a drawing of ranks", field="--flow")
        return DrawnRun(fabric, ranks=read_ranks(run, fabric))
    if overlay == FAILURES:
        fabric = _with_faults_of(run, fabric)
        return DrawnRun(fabric, loads=_along(run, fabric, flow))
    loads = read_link_loads(run, fabric, measure_of(overlay or MEASURES[0].key))
    return DrawnRun(fabric, loads=loads if flow is None else _path(run, loads, flow))


def _along(run: Path, fabric: Fabric, flow: str | None) -> LinkLoads | None:
    """Return the loads of a run with a path, or none where no path is asked for."""
    return None if flow is None else _path(run, read_link_loads(run, fabric), flow)


def _with_faults_of(run: Path, fabric: Fabric) -> Fabric:
    """Return the fabric with all that goes down in a run, at whatever time, down at once."""
    from railweave.scenario import load_scenario

    model = load_scenario(run / "scenario.yaml").model
    down = [Fault(link=fault.link, node=fault.node) for fault in model.faults if fault.do == "down"]
    if not down:
        raise InputError(
            "has no fault that takes a link down",
            file=str(run / "scenario.yaml"),
            field="faults",
            expected="a run with faults",
        )
    return plan_faults(fabric, down).fabric


def _path(run: Path, loads: LinkLoads, flow: str) -> LinkLoads:
    """Return the loads with the path of a flow standing out."""
    from railweave.tools.report.routes import flow_links
    from railweave.tools.report.run_data import read_run

    read = read_run(run)
    row = next((row for row in read.flows if row.id == flow), None)
    if row is None:
        known = [row.id for row in read.flows]
        raise InputError(
            f"there is no flow '{flow}'",
            file=str(run / "flows.csv"),
            field="--flow",
            expected=f"one of its {len(known)} flows" if known else "a run with flows",
            nearest=nearest_name(flow, known) if len(known) < 20_000 else None,
        )
    links = flow_links(read, [row])[0]
    if not links:
        raise InputError(
            f"the path of flow '{flow}' cannot be told", file=str(run / "flows.csv"), field="--flow"
        )
    return loads.along(flow, tuple(links))
