# SPDX-License-Identifier: Apache-2.0
"""Assertions about a design, for a test file of one's own.

.. code-block:: python

    from railweave.topologies import build_topology, load_topology
    from railweave.topologies.asserts import assert_bisection, assert_clean, assert_rails_aligned

    spec = load_topology("fabric.yaml")
    fabric = build_topology(spec)

    def test_fabric():
        assert_clean(fabric, spec, allow=["growth"])
        assert_rails_aligned(fabric)
        assert_bisection(fabric, at_least="51.2Tbps")

Each raises `AssertionError` with what was found, where, why it matters and how to mend it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.units import format_rate, parse_rate_bps
from railweave.topologies.checks import CHECKS, inspect
from railweave.topologies.min_cut import SwitchGraph
from railweave.topologies.review.capacity import bisection_cut_bps, leaf_cuts, ratio_text
from railweave.topologies.review.paths import path_diversity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from railweave.fabric.graph import Fabric
    from railweave.topologies.checks import Finding
    from railweave.topologies.spec import TopologySpec

__all__ = [
    "assert_bisection",
    "assert_buffers_fit",
    "assert_cables_reach",
    "assert_check",
    "assert_clean",
    "assert_hosts_fill_nics",
    "assert_marks_before_pauses",
    "assert_nics_cabled",
    "assert_no_deadlock",
    "assert_no_unused_switch",
    "assert_oversubscription",
    "assert_path_diversity",
    "assert_planes_balanced",
    "assert_ports_fit",
    "assert_rails_aligned",
    "assert_rates_even",
    "assert_reachable",
]


def _fail(findings: Iterable[Finding]) -> None:
    lines = [
        "\n  ".join(
            part
            for part in (
                f"{found.rule}: {found.message}",
                found.place and f"at {found.place}",
                found.why,
                found.mend and f"mend: {found.mend}",
            )
            if part
        )
        for found in findings
    ]
    if lines:
        raise AssertionError("\n".join(lines))


def assert_check(rule: str, fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a check finds an error or a warning.

    Parameters
    ----------
    rule
        One of `railweave.topologies.checks.CHECKS`.
    fabric, spec
        The fabric, and the topology it was built from.

    Raises
    ------
    InputError
        There is no such check; the nearest name is given.
    """
    if rule not in CHECKS:
        raise InputError(f"there is no check '{rule}'", nearest=nearest_name(rule, CHECKS))
    found = inspect(fabric, spec, rules=[rule]).findings
    _fail(one for one in found if one.level != "info")


def assert_clean(
    fabric: Fabric, spec: TopologySpec | None = None, *, allow: Iterable[str] = ()
) -> None:
    """Fail where any check finds anything, but those named in ``allow``."""
    allowed = set(allow)
    for rule in allowed - CHECKS.keys():
        raise InputError(f"there is no check '{rule}'", nearest=nearest_name(rule, CHECKS))
    _fail(one for one in inspect(fabric, spec).findings if one.rule not in allowed)


def assert_ports_fit(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a port has two cables, or a switch more ports or Tb/s than its model."""
    assert_check("port-once", fabric, spec)
    assert_check("port-budget", fabric, spec)


def assert_no_unused_switch(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a switch has no cable in service."""
    assert_check("unused-switch", fabric, spec)


def assert_nics_cabled(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a NIC has no cable."""
    assert_check("missing-nic", fabric, spec)


def assert_rates_even(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a cable has another rate than its kin."""
    assert_check("odd-rate", fabric, spec)


def assert_rails_aligned(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a NIC is on the leaf of another rail."""
    assert_check("rail-alignment", fabric, spec)


def assert_planes_balanced(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where planes are not equally wide."""
    assert_check("plane-balance", fabric, spec)


def assert_reachable(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where two GPUs are not joined, but by the design of a rail-only fabric."""
    assert_check("reachability", fabric, spec)


def assert_hosts_fill_nics(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where PCIe or the link between sockets is slower than a NIC."""
    assert_check("host-bottleneck", fabric, spec)


def assert_buffers_fit(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where headroom and reserve do not fit a switch's buffer."""
    assert_check("headroom", fabric, spec)


def assert_marks_before_pauses(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where a switch pauses before it marks."""
    assert_check("ecn-before-pfc", fabric, spec)


def assert_no_deadlock(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where lossless links can wait for each other in a ring, also after one failure."""
    assert_check("deadlock", fabric, spec)


def assert_cables_reach(fabric: Fabric, spec: TopologySpec | None = None) -> None:
    """Fail where no cable of the catalogue reaches as far as a link is long."""
    assert_check("cable-reach", fabric, spec)


def assert_bisection(fabric: Fabric, *, at_least: str) -> None:
    """Fail where the cut between the halves of the hosts is less than a rate such as 51.2Tbps."""
    cut, wanted = bisection_cut_bps(fabric), parse_rate_bps(at_least)
    if cut < wanted:
        raise AssertionError(f"bisection: {format_rate(cut)}, wanted {format_rate(wanted)}")


def assert_oversubscription(fabric: Fabric, *, at_most: str) -> None:
    """Fail where a leaf has more bandwidth down than ``at_most`` times the cut above it.

    ``at_most`` is written as in a topology file, ``2:1``.
    """
    down, _, up = at_most.partition(":")
    wanted = Fraction(down) / Fraction(up or "1")
    for leaf, (below, cut) in leaf_cuts(fabric, SwitchGraph(fabric)).items():
        if not cut or Fraction(below, cut) > wanted:
            built = ratio_text(Fraction(below, cut)) if cut else "no way up"
            raise AssertionError(
                f"oversubscription: {fabric.device_names[leaf]} has {built}, wanted "
                f"{ratio_text(wanted)}"
            )


def assert_path_diversity(fabric: Fabric, *, switches: int) -> None:
    """Fail where two leaves are joined over fewer than so many upper switches."""
    found = path_diversity(fabric)
    if found is not None and found.first_hops < switches:
        a, b = (fabric.device_names[leaf] for leaf in found.narrow)
        raise AssertionError(
            f"path-diversity: {a} and {b} are joined over {found.first_hops} switches, wanted "
            f"{switches}"
        )
