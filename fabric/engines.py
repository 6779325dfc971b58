# SPDX-License-Identifier: Apache-2.0
"""Choose an engine by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import InputError, nearest_name
from railweave.fabric.faults import DETECTION_DELAY_PS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from railweave.fabric.engine import FabricEnvironment
    from railweave.fabric.graph import Fabric
    from railweave.fabric.jobs import JobEngine
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.packet.sampling import SampleSettings
    from railweave.fabric.packet.settings import PacketSettings
    from railweave.fabric.routing import Routing

__all__ = ["ENGINES", "make_engine"]

ENGINES = ("analytic", "fluid", "packet")
QP_MODES = ("split", "round-robin")


def make_engine(
    kind: str,
    env: FabricEnvironment,
    fabric: Fabric,
    routing: Routing,
    settings: NetworkSettings,
    *,
    qps: int = 1,
    qp_mode: str = "split",
    memo: bool = True,
    tolerance: float = 0.0,
    packet: PacketSettings | None = None,
    samples: SampleSettings | None = None,
    changing: NDArray[np.bool_] | None = None,
    detection_delay_ps: int = DETECTION_DELAY_PS,
) -> JobEngine:
    """Return the engine named ``kind``, attached to ``env``.

    Parameters
    ----------
    kind
        ``analytic``, ``fluid`` or ``packet``.
    qps, qp_mode
        Queue pairs per connection; ``split`` or ``round-robin``.
    memo
        Let the fluid engine remember what an undisturbed collective takes (exact either way).
    tolerance
        Relative error that the fluid engine may make for the sake of speed.
    packet
        Settings of the packet engine; None: its defaults.
    samples
        What the packet engine samples over time; None: nothing.
    changing, detection_delay_ps
        bool (links,): links that change during the run, and how long routing takes to notice, as
        `FaultyFluidEngine` has them; None: none does.

    Raises
    ------
    InputError
        No engine or way to use queue pairs of that name, or links that cannot change during a run.
    """
    if changing is not None and kind == "analytic":
        raise InputError("links cannot change during a run of the analytic engine")
    if qp_mode not in QP_MODES:
        raise InputError(
            f"'{qp_mode}' is no way to use queue pairs",
            field="qp_mode",
            expected=" | ".join(QP_MODES),
            nearest=nearest_name(qp_mode, QP_MODES),
        )
    options: dict[str, Any] = {"qps": qps, "qp_mode": qp_mode}
    # Each engine is imported only where it runs: their kernels are many.
    if kind == "analytic":
        from railweave.fabric.analytic import AnalyticEngine

        return AnalyticEngine(env, fabric, routing, settings, **options)
    if kind == "fluid":
        options |= {"memo": memo, "tolerance": tolerance}
        if changing is not None:
            from railweave.fabric.fluid_faults import FaultyFluidEngine

            return FaultyFluidEngine(
                env, fabric, routing, settings, changing=changing,
                detection_delay_ps=detection_delay_ps, **options,
            )  # fmt: skip
        from railweave.fabric.fluid import FluidEngine

        return FluidEngine(env, fabric, routing, settings, **options)
    if kind == "packet":
        from railweave.fabric.packet.engine import PacketEngine
        from railweave.fabric.packet.preparing import switch_buffers

        return PacketEngine(
            env, fabric, routing, settings, packet=packet, buffers=switch_buffers(fabric),
            samples=samples, changing=changing, detection_delay_ps=detection_delay_ps, **options,
        )  # fmt: skip
    raise InputError(
        f"'{kind}' is not an engine of this version",
        expected=" | ".join(ENGINES),
        nearest=nearest_name(kind, ENGINES),
    )
