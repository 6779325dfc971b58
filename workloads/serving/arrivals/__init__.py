# SPDX-License-Identifier: Apache-2.0
"""When requests arrive. A new kind is one module of this package.

Requests are known before time begins, in their order; a kind says when each of them comes, at
fixed times (open loop) or when those before have been answered (closed loop).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

from railweave.fabric.errors import InputError
from railweave.fabric.registry import Registry
from railweave.workloads.serving.keys import MOST_DRAWN, length_at
from railweave.workloads.traces import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    import simpy

    from railweave.fabric.engine import FabricEnvironment
    from railweave.workloads.serving.keys import ArrivalsModel
    from railweave.workloads.serving.request import Request

__all__ = ["ARRIVALS", "Arrivals", "arrivals", "open_loop"]


class Arrivals(ABC):
    """One kind.

    Parameters
    ----------
    keys
        What the scenario says.
    random
        A stream of its own.
    rate_scale
        Requests arrive so many times as fast.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """Keys that it cannot do without."""

    def __init__(
        self, keys: ArrivalsModel, random: np.random.Generator, *, rate_scale: float = 1.0
    ) -> None:
        self.keys, self.random, self.rate_scale = keys, random, rate_scale

    @classmethod
    def check(cls, keys: ArrivalsModel, *, listed: bool) -> None:
        """Refuse keys that are missing or mean nothing here.

        Raises
        ------
        InputError
            Its field is the key.
        """
        lengths = () if listed else ("count", "prompt", "output")
        known = {*cls.needs, *lengths, *cls.optional()}
        for name in (*cls.needs, *lengths):
            if getattr(keys, name) is None:
                raise InputError(
                    f"it is missing for {keys.kind} arrivals", field=name, expected=f"{name}: ..."
                )
        plain = {name: field.default for name, field in type(keys).model_fields.items()}
        for name in plain:
            if name not in {"kind", *known} and getattr(keys, name) != plain[name]:
                where = " whose requests are listed" if listed and name in _LENGTHS else ""
                raise InputError(
                    f"it says nothing about {keys.kind} arrivals{where}",
                    field=name,
                    expected=", ".join(sorted(known)),
                )

    @classmethod
    def optional(cls) -> tuple[str, ...]:
        """Return keys that it can do without."""
        return ()

    def lengths(self, count: int | None = None) -> list[TraceRequest]:
        """Draw requests of the lengths asked for, all at 0.

        Raises
        ------
        InputError
            They are more than ``MOST_DRAWN``.
        """
        count = self.keys.count if count is None else count
        assert count is not None
        if count > MOST_DRAWN:
            raise InputError(
                f"these are {count:,} requests", field="count", expected=f"at most {MOST_DRAWN:,}"
            )
        assert self.keys.prompt is not None
        assert self.keys.output is not None
        draws = self.random.random((count, 2)).tolist()
        return [
            TraceRequest(
                at_ps=0,
                prompt_tokens=length_at(self.keys.prompt, first),
                output_tokens=length_at(self.keys.output, second),
            )
            for first, second in draws
        ]

    def requests(self, listed: Sequence[TraceRequest] | None) -> list[TraceRequest]:
        """Return all requests in order, at their times where these are known."""
        found = self.lengths() if listed is None else list(listed)
        return [
            replace(one, at_ps=at) for one, at in zip(found, self.times(len(found)), strict=True)
        ]

    @abstractmethod
    def times(self, count: int) -> list[int]:
        """Return when each request arrives, in ps; 0 where that is not known."""

    def drive(
        self, requests: Sequence[Request], submit: Any, env: FabricEnvironment
    ) -> Generator[simpy.Event, Any, None]:
        """Send the requests at their times."""
        yield from open_loop(requests, submit, env)

    def gaps(self, draws: Sequence[float], scale: float = 1.0) -> list[int]:
        """Turn gaps in units of their mean into times in ps, the first at 0, in whole ns."""
        assert self.keys.rate_per_s is not None
        mean_ns = Fraction(10**9) / Fraction(repr(self.keys.rate_per_s * self.rate_scale))
        at, times = 0, []
        for number, draw in enumerate(draws):
            at += round(draw * scale * float(mean_ns)) if number else 0
            times.append(at * 1000)
        return times


_LENGTHS: Final = ("count", "prompt", "output")


def open_loop(
    requests: Sequence[Request], submit: Any, env: FabricEnvironment
) -> Generator[simpy.Event, Any, None]:
    """Send requests at their times, whatever becomes of them."""
    sent = []
    for request in requests:
        if request.arrival_ps > env.now:
            yield env.timeout(request.arrival_ps - int(env.now))
        sent.append(submit(request))
    yield env.all_of(sent)


ARRIVALS: Final[Registry[type[Arrivals]]] = Registry(
    "kind of arrivals", package="railweave.workloads.serving.arrivals"
)
arrivals = ARRIVALS
"""The decorator that registers a kind: ``@arrivals("name")``."""
