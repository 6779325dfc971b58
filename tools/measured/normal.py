# SPDX-License-Identifier: Apache-2.0
"""Is a number normal? Each band of a data set against its prediction, and why it may be slow.

A reason is a machine that lacks something, and its evidence is twofold: how near the prediction
for that machine comes to what was measured, and what the file says of the real one (ports, PCIe
links, variables, spreads). Bands are normal within what published sources of the same box differ
by: 8 GPUs, all_reduce, up to 1.8 times below 64 KiB, 1.4 to 8 MiB and 1.15 above (A100: Azure
AI-benchmarking-guide against aiconfigurator; H100: AWS against aiconfigurator, 1.02 above).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError
from railweave.fabric.profiles import find_profile
from railweave.tools.measured.evidence import Facts
from railweave.tools.measured.judging import BANDS, geomean_error, predictor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.tools.measured.data import DataSet, Row
    from railweave.tools.measured.hardware import Machines
    from railweave.tools.measured.judging import Comparison, Judged

__all__ = ["NORMAL_WITHIN", "Reason", "Verdict", "verdicts"]

NORMAL_WITHIN: Final = {"small": 1.8, "mid": 1.4, "large": 1.15}
"""How many times slower than predicted is still normal."""

_TITLES: Final = {"small": "up to 64 KiB", "mid": "64 KiB to 8 MiB", "large": "above 8 MiB"}
_GEN4_BPS: Final = int(27.37e9 * 8)  # PCIe 4.0 x16: 16 GT/s, 128b/130b, headers of 24 in 280 B
_STAGED_BPS: Final = int(13.685e9 * 8)  # through a CPU's root and memory: half of it, assumed
_EAGER: Final = "launched one by one from Python (torch eager), not back to back"
_SOCKETS: Final = "TCP sockets in place of RDMA"
_ALSO_SMALL: Final = (_EAGER, _SOCKETS)
"""What slows small messages too; what takes bandwidth does not."""

_EXPLAINS: Final = 0.5  # share of the error that a reason must take away to be named by fit alone


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a band may be slow.

    ``error`` is that of the prediction under it, None where it was not predicted; ``told`` what
    the file says for it, empty where it says nothing.
    """

    name: str
    error: float | None
    told: str

    @property
    def evidence(self) -> str:
        """Both kinds of evidence in words."""
        fits = "" if self.error is None else f"predicted so, the error is {self.error:.0%}"
        return "; ".join(part for part in (self.told, fits) if part)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One band: ``normal``, ``slow`` or ``fast``, how many times, and reasons, likeliest first."""

    band: str
    verdict: str
    factor: float
    rows: int
    error: float
    reasons: tuple[Reason, ...]

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        head = f"{_TITLES[self.band]}: "
        if self.verdict == "normal":
            return f"{head}normal, {self.factor:.2f} times the predicted time over {rows}."
        if self.verdict == "fast":
            return (
                f"{head}faster than predicted, {self.factor:.2f} times the time over {rows}: is it "
                "the hardware that the profile stands for?"
            )
        head += f"slow, {self.factor:.2f} times the predicted time over {rows}"
        if not self.reasons:
            return f"{head}; no reason that is known explains it."
        listed = "; ".join(
            f"({k}) {reason.name} [{reason.evidence}]" for k, reason in enumerate(self.reasons, 1)
        )
        return f"{head}; likeliest: {listed}."


def verdicts(one: Judged) -> list[Verdict]:
    """Return the verdict of each band that has rows."""
    found = []
    for band in BANDS:
        rows = one.band(band)
        if not rows:
            continue
        factor = math.exp(-sum(math.log(c.ratio) for c in rows) / len(rows))
        limit = NORMAL_WITHIN[band]
        told = "slow" if factor > limit else "fast" if factor < 1 / limit else "normal"
        found.append(
            Verdict(
                band=band,
                verdict=told,
                factor=factor,
                rows=len(rows),
                error=geomean_error(rows),
                reasons=tuple(_reasons(one, rows, band)) if told == "slow" else (),
            )
        )
    return found


def _reasons(one: Judged, rows: Sequence[Comparison], band: str) -> list[Reason]:
    """Return what explains the rows of a band, in order: told by the file first, then by fit."""
    base = geomean_error(rows)
    found: list[tuple[bool, float, Reason]] = []
    for name, again, told in _suspects(one, rows, band):
        error = None if again is None else geomean_error(again)
        gain = 0.0 if error is None else 1 - error / base
        if told or (gain > _EXPLAINS and (band != "small" or name in _ALSO_SMALL)):
            found.append((bool(told), gain, Reason(name=name, error=error, told=told)))
    found.sort(key=lambda entry: (not entry[0], -entry[1]))
    return [reason for _, _, reason in found[:5]]


def _suspects(
    one: Judged, rows: Sequence[Comparison], band: str
) -> Iterator[tuple[str, list[Comparison] | None, str]]:
    """Yield every reason that could be: its name, the rows predicted under it, what tells it."""
    data, machines, facts = one.data, one.machines, Facts(one.data)
    if machines is None:
        if data.backend == "verbs":
            yield from _verbs(facts)
        return

    def under(other: Machines, *, algorithm: str | None = None, launch: str | None = None) -> Any:
        return _again(data, rows, other, algorithm=algorithm, launch=launch)

    yield "GPU clocks below their rate", None, facts.clocks()
    yield "variables that bind NCCL", None, facts.bound()
    if band == "small":
        eager = under(machines, launch="torch-eager")
        if any(c.row.launch == "nccl-tests" for c in rows):
            yield _EAGER, eager, ""
    if machines.profile.nvls is not None and any(c.algorithm.startswith("NVLS") for c in rows):
        told = facts.variable("NCCL_NVLS_ENABLE", ("0",)) or facts.ring_only()
        yield "ring where NVLS is expected", under(machines, algorithm="Ring"), told
    if data.gpus_per_node > 1 and machines.profile.interconnect == "nvlink":
        pcie = replace(machines, profile=find_profile("l40s"))
        told = facts.variable("NCCL_P2P_DISABLE", ("1",)) or facts.no_nvlink()
        yield "no NVLink between GPUs: bytes go over PCIe", under(pcie), told
    if machines.network is not None:
        yield from _network(one, rows, band, facts)


def _network(
    one: Judged, rows: Sequence[Comparison], band: str, facts: Facts
) -> Iterator[tuple[str, list[Comparison] | None, str]]:
    data, machines = one.data, one.machines
    assert machines is not None
    assert machines.network is not None
    nics = machines.nics_per_node or data.gpus_per_node
    rate = machines.nic_rate_bps or machines.network.rate_bps

    def with_nics(count: int, bps: int) -> list[Comparison]:
        other = replace(machines, nics_per_node=count, nic_rate_bps=bps)
        return _again(data, rows, other)

    if nics > 1:
        yield "one NIC missing", with_nics(nics - 1, rate), facts.nics(nics)
    if nics > 2:
        yield "half of the NICs missing", with_nics(nics // 2, rate), ""
    if rate > _GEN4_BPS:
        yield "NICs or GPUs on PCIe Gen4", with_nics(nics, _GEN4_BPS), facts.pcie()
    if rate > _STAGED_BPS:
        told = facts.no_direct()
        yield "no GPUDirect RDMA: bytes go through host memory", with_nics(nics, _STAGED_BPS), told
    if machines.network.kind == "roce":
        half = with_nics(nics, rate // 2) if band == "large" else None
        yield "ECMP collisions: two flows on one uplink", half, facts.uneven()
    told = facts.variable("NCCL_IB_DISABLE", ("1",)) or facts.variable("NCCL_NET", ("Socket",))
    yield _SOCKETS, with_nics(1, 25 * 10**9), told


def _verbs(facts: Facts) -> Iterator[tuple[str, list[Comparison] | None, str]]:
    small = facts.mtu()
    yield "an MTU below 4096", None, f"MTU {small}" if 0 < small < 4096 else ""
    pairs = facts.queue_pairs()
    yield "one queue pair", None, "the test ran with 1 QP" if pairs == 1 else ""


def _again(
    data: DataSet,
    rows: Sequence[Comparison],
    machines: Machines,
    *,
    algorithm: str | None = None,
    launch: str | None = None,
) -> list[Comparison]:
    """Return the rows predicted for another machine, launch or algorithm; as before if not so."""
    predict = predictor(data, None, machines)[0]
    found = []
    for one in rows:
        row: Row = replace(one.row, launch=launch or one.row.launch)
        if algorithm is not None and one.algorithm.startswith("NVLS"):
            row = replace(row, algorithm=algorithm)
        try:
            found.append(predict(row))
        except InputError:
            found.append(one)
    return found
