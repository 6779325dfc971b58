# SPDX-License-Identifier: Apache-2.0
"""How far a run with a quantum is off: its beginning once more, packet by packet.

Both runs keep when their first messages ended. Where the exact run stops, the times at which each
had ended as many messages are compared: progress curves, which collectives have as flows do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from railweave.fabric.errors import StalledError
from railweave.fabric.packet.engine import PacketEngine
from railweave.scenario import ENDS_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.fabric.engine import Engine

__all__ = ["sampled_error"]

_LEAST_HOPS: Final = 1_000_000
_SHARE: Final = 0.25  # of the events that the run itself took, about


def sampled_error(engine: PacketEngine, again: Callable[[], Engine]) -> dict[str, Any]:
    """Run the beginning of a run once more without quantum, and compare.

    Parameters
    ----------
    engine
        Whose run has ended.
    again
        Prepares the same run without quantum and returns its engine.

    Returns
    -------
    dict
        ``error``: mean of how far the times are apart, relative to the exact ones; ``compared``:
        messages; ``until_ps``: where the exact run stopped. Empty where nothing went in trains.
    """
    run = engine.state.run
    if not run.train_hops:
        return {}
    most = max(_LEAST_HOPS, int(_SHARE * int(run.train_hops) / engine.packet.quantum))
    exact = again()
    assert isinstance(exact, PacketEngine)
    env, state = exact.env, exact.state
    with suppress(StalledError):
        while (
            (exact.busy or env.peek() < np.inf)
            and int(state.run.hops) < most
            and int(state.run.ended) < ENDS_KEPT
        ):
            env.step()
    count = min(int(state.run.ended), int(run.ended), ENDS_KEPT)
    ours, theirs = engine.state.ends_at[:count], state.ends_at[:count]
    told = theirs > 0
    if not told.any():
        return {}
    error = np.abs(ours[told] / theirs[told] - 1.0).mean()
    return {
        "error": round(float(error), 6),
        "compared": int(told.sum()),
        "until_ps": int(theirs[-1]),
    }
