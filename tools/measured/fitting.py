# SPDX-License-Identifier: Apache-2.0
"""Fits positive constants to measured times, robustly, and says which the data do not fix.

Least squares over the logarithms of predicted over measured times, so that a microsecond counts as
much as a second; rows far off count less (Huber, "Robust Estimation of a Location Parameter",
Annals of Mathematical Statistics 35, 1964), by steps of Levenberg and Marquardt (Marquardt, SIAM J.
Appl. Math. 11, 1963) with weights renewed in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Constant", "Fit", "fit"]

_HUBER: Final = 1.345  # 95 % efficiency under normal noise (Huber)
_STEP: Final = 1e-4  # of a logarithm, for derivatives
_DEAF: Final = 0.02  # a constant that moves no row by more than this share of its own change
_VAGUE: Final = 0.4  # relative standard error beyond which a constant is not fixed
_TURNS: Final = 60


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One constant after a fit: where it began, where it ended, and its relative error.

    ``error`` is None where no row depends on it: it has kept its start.
    """

    name: str
    start: float
    value: float
    error: float | None

    @property
    def known(self) -> bool:
        """Whether the data fix it."""
        return self.error is not None and self.error <= _VAGUE


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit: its constants, and ln(predicted/measured) and weight (0 to 1) of each row."""

    constants: tuple[Constant, ...]
    residuals: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def values(self) -> dict[str, float]:
        """The fitted constants by name."""
        return {constant.name: constant.value for constant in self.constants}


def fit(
    start: Mapping[str, float],
    predicted: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    *,
    most: Mapping[str, float] | None = None,
    loose: Mapping[str, float] | None = None,
) -> Fit:
    """Fit constants so that predictions meet measured times.

    Parameters
    ----------
    start
        Name and first value of each constant, all above 0.
    predicted
        Returns the time of each row under some constants.
    measured
        Time of each row in the same unit, above 0.
    most
        Largest value of constants that have one.
    loose
        How far, as a standard deviation of its logarithm, a constant should stray from its start
        unless the rows say so; those that are not named stray freely.

    Examples
    --------
    >>> sizes = [1.0, 10.0, 100.0, 1000.0]
    >>> found = fit({"a": 1.0, "b": 1.0}, lambda c: [c["a"] + c["b"] * s for s in sizes],
    ...             [5 + 0.5 * s for s in sizes])
    >>> {name: round(value, 6) for name, value in found.values.items()}
    {'a': 5.0, 'b': 0.5}
    """
    names = list(start)
    target = np.log(np.asarray(measured, dtype=np.float64))
    ceiling = np.log(np.array([(most or {}).get(name, np.inf) for name in names]))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.log(np.asarray(predicted(constants), dtype=np.float64)) - target

    def slopes(logs: NDArray[np.float64], here: NDArray[np.float64]) -> NDArray[np.float64]:
        table = np.empty((len(here), len(names)))
        for k in range(len(names)):
            moved = logs.copy()
            moved[k] -= _STEP  # down: some constants are at their ceiling
            table[:, k] = (here - residuals(moved)) / _STEP
        return table

    first = np.minimum(np.log(np.array([start[name] for name in names])), ceiling)
    ties = np.array([(loose or {}).get(name, np.inf) for name in names]) ** -2.0
    logs, here, damping = first, residuals(first), 1e-2
    for _ in range(_TURNS):
        weight = _weights(here)
        table = slopes(logs, here)
        tied = ties * _scale(here) ** 2
        square = table.T @ (weight[:, None] * table) + np.diag(tied)
        pull = table.T @ (weight * here) + tied * (logs - first)
        now = _loss(here, here) + float(tied @ (logs - first) ** 2) / 2
        diagonal = np.maximum(np.diag(square), 1e-9)
        moved = False
        while damping < 1e9:
            step = np.linalg.solve(square + damping * np.diag(diagonal), -pull)
            step[np.diag(square) < 1e-12] = 0.0
            tried = np.minimum(logs + np.clip(step, -1.5, 1.5), ceiling)
            there = residuals(tried)
            then = _loss(there, here) + float(tied @ (tried - first) ** 2) / 2
            if then < now * (1 - 1e-9):
                moved = float(np.abs(tried - logs).max()) > 1e-7
                logs, here, damping = tried, there, max(damping / 5, 1e-9)
                break
            damping *= 4
        if not moved:
            break
    weight = _weights(here)
    errors = _errors(slopes(logs, here), here, weight, ties * _scale(here) ** 2)
    constants = []
    for name, value, error in zip(names, np.exp(logs).tolist(), errors, strict=True):
        kept = start[name] if error is None else value
        constants.append(Constant(name=name, start=start[name], value=kept, error=error))
    return Fit(constants=tuple(constants), residuals=here, weights=weight)


def _scale(residuals: NDArray[np.float64]) -> float:
    """Return the spread of residuals by their median (1.4826: that of a normal distribution)."""
    return max(1.4826 * float(np.median(np.abs(residuals))), 1e-6)


def _weights(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = _HUBER * _scale(residuals)
    return np.minimum(1.0, limit / np.maximum(np.abs(residuals), 1e-300))


def _loss(residuals: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    limit = _HUBER * _scale(reference)
    size = np.abs(residuals)
    return float(np.where(size <= limit, size**2 / 2, limit * (size - limit / 2)).sum())


def _errors(
    table: NDArray[np.float64],
    residuals: NDArray[np.float64],
    weight: NDArray[np.float64],
    tied: NDArray[np.float64],
) -> list[float | None]:
    """Return the relative standard error of each constant; None: no row depends on it."""
    heard = np.abs(table).max(axis=0, initial=0.0) >= _DEAF
    found: list[float | None] = [None] * table.shape[1]
    kept = np.flatnonzero(heard)
    if not len(kept):
        return found
    part = table[:, kept]
    square = part.T @ (weight[:, None] * part) + np.diag(tied[kept])
    spread = _scale(residuals)
    if len(residuals) <= len(kept):  # as many constants as rows: nothing says how sure they are
        spread = max(spread, 1.0)
    inverse = np.linalg.pinv(square, rcond=1e-10, hermitian=True)
    # A direction that no row fixes has no variance in the pseudo-inverse: it is endless.
    loose = np.abs(np.eye(len(kept)) - inverse @ square).max(axis=1) > 1e-3
    for place, index in enumerate(kept.tolist()):
        error = spread * float(np.sqrt(max(inverse[place, place], 0.0)))
        found[index] = float("inf") if loose[place] else error
    return found
