# SPDX-License-Identifier: Apache-2.0
"""Sets measurements against predictions: ratios, errors of bands, and what looks wrong."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from railweave.collectives.gloo import predict_gloo
from railweave.collectives.predict import predict
from railweave.fabric.errors import InputError
from railweave.fabric.host_profiles import HostProfile
from railweave.tools.measured.data import Finding, Skip
from railweave.tools.measured.hardware import Machines, machines_of
from railweave.tools.measured.verbs import predict_write_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from railweave.fabric.profiles import DeviceProfile
    from railweave.tools.measured.data import DataSet, Row

__all__ = ["BANDS", "Comparison", "Judged", "band_of", "geomean_error", "judge", "predictor"]

BANDS: Final = {"small": (0, 64 << 10), "mid": (64 << 10, 8 << 20), "large": (8 << 20, math.inf)}
"""Bands of sizes in bytes: above the first bound, up to and with the second."""

_OUTLIER: Final = 1.5  # this many times off its neighbours on both sides
_BROKEN: Final = 4.0  # this many times slower than predicted over all large sizes
_SLIP: Final = 1.35  # how near to a factor of 1000 all rows must lie


@dataclass(frozen=True)
class Comparison:
    """A measured row and its prediction; ``ratio`` is predicted over measured."""

    row: Row
    predicted_us: float
    algorithm: str
    bound_us: float

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_us / self.row.time_us


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A data set with its predictions.

    ``profile`` is the name of what predicted it, None where nothing could. ``machines`` is what
    was predicted for, None for gloo and for messages.
    """

    data: DataSet
    profile: str | None
    rows: tuple[Comparison, ...]
    skipped: tuple[Skip, ...]
    findings: tuple[Finding, ...]
    machines: Machines | None = None

    def band(self, name: str) -> list[Comparison]:
        """Return the rows of a band."""
        return [found for found in self.rows if band_of(found.row.size_bytes) == name]

    def as_json(self) -> dict[str, Any]:
        """Return the data set as `railweave validate --json` has it."""
        return {
            "name": self.data.name,
            "hardware": self.data.hardware,
            "nodes": self.data.nodes,
            "gpus_per_node": self.data.gpus_per_node,
            "profile": self.profile,
            "rows": [
                {
                    "op": found.row.op,
                    "size_bytes": found.row.size_bytes,
                    "measured_us": found.row.time_us,
                    "predicted_us": found.predicted_us,
                    "ratio": found.ratio,
                    "algorithm": found.algorithm,
                }
                for found in self.rows
            ],
            "bands": {
                name: {"rows": len(rows), "geomean_error": geomean_error(rows)} if rows else None
                for name, rows in ((name, self.band(name)) for name in BANDS)
            },
            "skipped": [{"line": skip.line, "why": skip.why} for skip in self.skipped],
        }


def band_of(size_bytes: int) -> str:
    """Return the band of a size.

    Examples
    --------
    >>> [band_of(size) for size in (65536, 65537, 2**23, 2**23 + 1)]
    ['small', 'mid', 'mid', 'large']
    """
    return next(name for name, (_, last) in BANDS.items() if size_bytes <= last)


def geomean_error(rows: Iterable[Comparison]) -> float:
    """Return exp(mean |ln(predicted/measured)|) - 1.

    Examples
    --------
    >>> from railweave.tools.measured.data import Row
    >>> row = Row(op="all_reduce", size_bytes=8, time_us=10.0)
    >>> round(geomean_error([Comparison(row, 12.0, "", 0), Comparison(row, 10 / 1.2, "", 0)]), 9)
    0.2
    """
    logs = [abs(math.log(found.ratio)) for found in rows]
    return math.expm1(sum(logs) / len(logs)) if logs else 0.0


def predictor(
    data: DataSet,
    profile: DeviceProfile | HostProfile | None,
    machines: Machines | None = None,
) -> tuple[Callable[[Row], Comparison], str, Machines | None]:
    """Return what predicts the rows of a data set, and the name of its profile.

    Parameters
    ----------
    data
        The set.
    profile
        Given by a person, or None: by the set's hardware.
    machines
        Of a topology that a person gave, or None: by the set's own words.

    Raises
    ------
    InputError
        Nothing is known that could predict it.
    """
    if data.backend == "verbs":
        return (lambda row: _write(data, row)), "line-rate", None
    if data.backend == "gloo" or isinstance(profile, HostProfile):
        if not isinstance(profile, HostProfile):
            raise InputError(
                f"{data.name} was measured with gloo on CPUs, of which every machine has its own",
                expected="--profile FILE of `railweave calibrate`",
            )
        if data.nodes != 1:
            raise InputError(f"{data.name} has {data.nodes} hosts; gloo is predicted on one")
        host = profile

        def on_host(row: Row) -> Comparison:
            found = predict_gloo(host, row.op, size_bytes=row.size_bytes, ranks=data.ranks)
            return Comparison(row, found.time_s * 1e6, found.algorithm, found.bound_s * 1e6)

        return on_host, host.name, None
    known = machines or machines_of(data, profile)

    def on_gpus(row: Row) -> Comparison:
        if row.op == "rdma_write":
            return _write(data, row)
        launch = row.launch if row.launch in known.profile.launch_ps else "nccl-tests"
        found = predict(
            known.profile,
            row.op,
            size_bytes=row.size_bytes,
            nodes=data.nodes,
            gpus_per_node=data.gpus_per_node,
            network=known.network,
            launch=launch,
            algorithm=row.algorithm,
            protocol=row.protocol,
            nics_per_node=known.nics_per_node,
            nic_rate_bps=known.nic_rate_bps,
        )
        return Comparison(row, found.time_s * 1e6, found.algorithm, found.bound_s * 1e6)

    return on_gpus, known.profile.name or "profile", known


def _write(data: DataSet, row: Row) -> Comparison:
    took = predict_write_s(data, row.size_bytes)
    return Comparison(row, took * 1e6, "rdma_write", took * 1e6)


def judge(
    data: DataSet,
    *,
    profile: DeviceProfile | HostProfile | None = None,
    machines: Machines | None = None,
    required: bool = False,
) -> Judged:
    """Predict every row of a data set.

    Parameters
    ----------
    required
        Whether a set that nothing predicts is an error, and not a set without rows.

    Raises
    ------
    InputError
        As `predictor`, where ``required``.
    """
    skipped = list(data.skipped)
    rows: list[Comparison] = []
    name: str | None = None
    known = None
    if data.rows:
        try:
            one, name, known = predictor(data, profile, machines)
        except InputError as error:
            if required:
                raise
            skipped.append(Skip(0, str(error)))
        else:
            for row in data.rows:
                try:
                    rows.append(one(row))
                except InputError as error:
                    skipped.append(Skip(row.line, error.message))
    return Judged(
        data=data,
        profile=name,
        rows=tuple(rows),
        skipped=tuple(_merged(skipped)),
        findings=(*data.findings, *_suspicions(data, rows)),
        machines=known,
    )


def _merged(skips: Sequence[Skip]) -> list[Skip]:
    """Return one entry per reason."""
    count = Counter(skip.why for skip in skips)
    first = {skip.why: skip for skip in reversed(skips)}
    return [
        Skip(first[why].line, why if n == 1 else f"{why} ({n} rows)") for why, n in count.items()
    ]


def _suspicions(data: DataSet, rows: Sequence[Comparison]) -> list[Finding]:
    """Return what the ratios say: slips of units, a broken host, single rows out of line."""
    found: list[Finding] = []
    if len(rows) < 3:
        return found
    logs = [math.log(one.ratio) for one in rows]
    middle = math.exp(median(logs))
    for factor, words in ((1e3, "ms that are called us"), (1e-3, "ns that are called us")):
        if max(middle / factor, factor / middle) < _SLIP * 2 and _spread(logs) < math.log(3):
            found.append(data.finding("unit", 0, f"all times look like {words}"))
            return found
    large = [one.ratio for one in rows if band_of(one.row.size_bytes) == "large"]
    if large and max(large) < 1 / _BROKEN:
        times = 1 / math.exp(median(math.log(ratio) for ratio in large))
        what = f"sizes above 8 MiB take {times:.3g} times the prediction, all over {_BROKEN:g}"
        found.append(data.finding("broken", 0, f"a broken host? {what}"))
    small = [one.ratio for one in rows if band_of(one.row.size_bytes) == "small"]
    if large and small and 0.6 < median(small) < 1.6:
        for element in (2, 4):
            if all(abs(ratio * element - 1) < 0.15 for ratio in large):
                words = f"large sizes take {element} times the prediction and small ones do not"
                what = (
                    f"{words}: are the sizes elements of {element} B, or is half of the links gone?"
                )
                found.append(data.finding("unit", 0, what))
    by_curve: dict[tuple[str, str, str], list[Comparison]] = defaultdict(list)
    for one in rows:
        by_curve[one.row.op, one.row.algorithm, one.row.launch].append(one)
    for curve in by_curve.values():
        found += _outliers(data, sorted(curve, key=lambda one: one.row.size_bytes))
    return found


def _spread(logs: Sequence[float]) -> float:
    middle = median(logs)
    return median(abs(value - middle) for value in logs)


def _outliers(data: DataSet, curve: Sequence[Comparison]) -> list[Finding]:
    """Return rows that take far more or less than both neighbours in size let expect."""
    found = []
    rough = math.exp(3 * _spread([math.log(one.ratio) for one in curve]))
    for k, one in enumerate(curve):
        near = [c for c in curve[max(0, k - 2) : k + 3] if c is not one]
        if len(near) < 2:
            continue
        expected = math.exp(median(math.log(c.ratio) for c in near))
        times = expected / one.ratio
        noise = math.exp(3 * _spread([math.log(c.ratio) for c in near]))
        if max(times, 1 / times) > max(_OUTLIER, noise, rough):
            row = one.row
            what = (
                f"{row.op} of {row.size_bytes} B takes {row.time_us:g} us, {times:.2f} times what "
                "its neighbours let expect"
            )
            found.append(data.finding("outlier", one.row.line, what))
    return found
