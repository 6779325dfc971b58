# SPDX-License-Identifier: Apache-2.0
"""Checks of lossless Ethernet: buffers and headroom, and marks before pauses.

Headroom is that of `railweave.fabric.packet.settings.headroom_bytes` (802.1Qbb annex O and SONiC's
script), with the longest response that the standard allows. Beside it stands what the Linux mlx5
driver reserves: (301 + 2.16 x metres) bytes per Gb/s + 2.72 MTU (drivers/net/ethernet/mellanox/
mlx5/core/en/port_buffer.c), which is 1.2 to 2.6 times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.graph import LinkModel
from railweave.fabric.network import Framing
from railweave.fabric.network_model import phy_latency_ps
from railweave.fabric.packet.settings import (
    ecn_thresholds,
    headroom_bytes,
    most_response_ps,
)
from railweave.fabric.units import format_rate
from railweave.fabric.words import plural, shown_size
from railweave.topologies.review.case import listed
from railweave.topologies.review.findings import Fact, Found, check_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from railweave.topologies.review.case import Case

__all__ = ["BufferBudget", "buffer_budgets", "driver_headroom_bytes"]

_PS_PER_M: Final = 5000
_PART_LEFT: Final = 0.25
"""Share of the buffer that should be left to share after reserve and headroom (assumed)."""


class BufferBudget(NamedTuple):
    """What lossless ports take of a switch's buffer, in bytes; ``alike`` switches have the same.

    ``buffer`` is None where the catalogue has no figure for the model and the file gives none.
    """

    switch: int
    alike: int
    ports: int
    headroom: int
    reserve: int
    driver: int
    buffer: int | None

    @property
    def shared(self) -> int | None:
        """What is left to share."""
        return None if self.buffer is None else self.buffer - self.headroom - self.reserve


def driver_headroom_bytes(rate_bps: int, length_m: float, mtu_bytes: int) -> int:
    """Return what the mlx5 driver of Linux reserves for a lossless port.

    Examples
    --------
    >>> driver_headroom_bytes(400 * 10**9, 40, 4096)
    166101
    """
    return round((301 + 2.16 * length_m) * rate_bps / 1e9 + 2.72 * mtu_bytes)


def buffer_budgets(case: Case) -> list[BufferBudget]:
    """Return the buffer budget of each kind of switch with lossless RoCE links."""
    fabric, packet, settings = case.fabric, case.packet, case.settings
    pausing = fabric.link_model == LinkModel.ROCE_LOSSLESS
    # The buffer is at the end where frames arrive.
    links = np.flatnonzero(pausing & (fabric.tier[fabric.link_dst] != 0))
    frame = settings.mtu_bytes + settings.overhead_bytes(Framing.ETHERNET)
    phy = phy_latency_ps(case.spec.network if case.spec else None)
    classes = len(packet.lossless)
    one: dict[tuple[int, int], tuple[int, int]] = {}
    totals: dict[int, list[int]] = {}
    for device, rate, delay in zip(
        fabric.link_dst[links].tolist(),
        fabric.link_rate_bps[links].tolist(),
        fabric.link_delay_ps[links].tolist(),
        strict=True,
    ):
        if (rate, delay) not in one:
            response = max(most_response_ps(rate), packet.response_ps or 0)
            rule = headroom_bytes(
                rate,
                delay,
                response_ps=response,
                pipeline_ps=settings.switch_latency_ps,
                frame_bytes=frame,
            )
            own = rule if packet.headroom_bytes is None else packet.headroom_bytes
            metres = max(0.0, (delay - phy) / _PS_PER_M)
            one[rate, delay] = own, driver_headroom_bytes(rate, metres, settings.mtu_bytes)
        row = totals.setdefault(device, [0, 0, 0])
        own, driver = one[rate, delay]
        row[0] += 1
        row[1] += own * classes
        row[2] += driver * classes
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for device, (ports, head, _) in totals.items():
        kinds.setdefault((fabric.model[device], ports, head), []).append(device)
    found = []
    for (model, ports, head), devices in kinds.items():
        known = switch_model(model).buffer_bytes if model else None
        found.append(
            BufferBudget(
                switch=devices[0],
                alike=len(devices),
                ports=ports,
                headroom=head,
                reserve=ports * classes * packet.reserve_bytes,
                driver=totals[devices[0]][2],
                buffer=packet.buffer_bytes or known,
            )
        )
    return found


@check_named(
    "headroom",
    about="The switch's buffer holds the headroom and reserve of its lossless ports, for their "
    "rates and cable lengths, and leaves a share for queues.",
    why="What does not fit is dropped after a pause, and a drop there costs a go-back.",
    mend="shorter cables, fewer lossless priorities, a deeper buffer, or loss-tolerant transport",
    part="effect",
)
def headroom(case: Case) -> Iterator[Found | Fact]:
    """Compare reserve and headroom with the buffer of the named switch."""
    budgets = buffer_budgets(case) if case.packet.pfc else []
    if not budgets:
        yield Fact(
            rule="headroom",
            text="no link is lossless Ethernet" if case.packet.pfc else "pauses are off",
            checked=False,
        )
    rule = "802.1Qbb" if case.packet.headroom_bytes is None else "as the file says"
    for one in budgets:
        name = case.name(one.switch)
        said = f"{name} and {one.alike - 1} like it" if one.alike > 1 else name
        taken = f"{shown_size(one.headroom)} of headroom for {plural(one.ports, 'port')} ({rule})"
        values: dict[str, object] = {
            "switch": name,
            "ports": one.ports,
            "headroom_bytes": one.headroom,
            "mlx5_bytes": one.driver,
            "reserve_bytes": one.reserve,
            "buffer_bytes": one.buffer,
        }
        if one.buffer is None or one.shared is None:
            what = case.fabric.model[one.switch] or "this switch"
            yield Fact(
                rule="headroom",
                text=f"{said}: {taken}; the catalogue knows no buffer of {what}",
                values=values,
                checked=False,
            )
            continue
        yield Fact(
            rule="headroom",
            text=f"{said}: {taken}, of a buffer of {shown_size(one.buffer)}; the mlx5 driver "
            f"would take {shown_size(one.driver)}",
            values=values,
        )
        if one.shared <= 0 or one.shared < _PART_LEFT * one.buffer:
            over = one.shared <= 0
            yield Found(
                level="error" if over else "warning",
                message=f"{said}: reserve and headroom of {plural(one.ports, 'port')} take "
                f"{shown_size(one.headroom + one.reserve)} of a buffer of "
                f"{shown_size(one.buffer)} ({rule})",
                where=(name,),
                devices=frozenset((one.switch,)),
                at=one.switch,
            )


@check_named(
    "ecn-before-pfc",
    about="Switches mark before they pause: Kmin lies below the threshold of a pause.",
    why="Pauses act before congestion control does, and spread to flows that are not to blame.",
    mend="lower kmin, raise xoff or alpha, or take a deeper buffer",
    part="effect",
)
def ecn_before_pfc(case: Case) -> Iterator[Found | Fact]:
    """Compare the thresholds of marks and pauses (Zhu et al., SIGCOMM 2015, section 4)."""
    packet, fabric = case.packet, case.fabric
    lossless = fabric.link_model == LinkModel.ROCE_LOSSLESS
    if not packet.pfc or not lossless.any():
        yield Fact(rule="ecn-before-pfc", text="nothing is paused", checked=False)
        return
    if packet.cc is None:
        yield Fact(
            rule="ecn-before-pfc",
            text="congestion control is off (cc: none): nobody heeds marks",
            checked=False,
        )
        return
    if not packet.ecn:
        yield Found(
            level="error",
            message="DCQCN is on, but switches do not mark (ecn: {enabled: false})",
        )
        return
    marks = _marks(case)
    for one in buffer_budgets(case):
        name = case.name(one.switch)
        kmin, kmax, rate = marks[one.switch]
        first, last = _pause_thresholds(case, one)
        if first is None or last is None:
            yield Fact(
                rule="ecn-before-pfc",
                text=f"{name}: no buffer is known, so no threshold of pauses",
                checked=False,
            )
            continue
        yield Fact(
            rule="ecn-before-pfc",
            text=f"{name}: marks from {shown_size(kmin)} to {shown_size(kmax)} at "
            f"{format_rate(rate)}; pauses above {shown_size(first)} of one ingress, "
            f"{shown_size(last)} each when all {one.ports} are full",
            values={
                "switch": name,
                "kmin_bytes": kmin,
                "kmax_bytes": kmax,
                "xoff_alone_bytes": first,
                "xoff_full_bytes": last,
            },
        )
        if kmin >= first or kmax > first:
            never = kmin >= first
            yield Found(
                level="error" if never else "warning",
                message=f"{name}: a pause is sent above {shown_size(first)}, "
                + (
                    f"before any mark (kmin {shown_size(kmin)})"
                    if never
                    else f"before all packets are marked (kmax {shown_size(kmax)})"
                ),
                where=(name,),
                devices=frozenset((one.switch,)),
                at=one.switch,
            )


def _marks(case: Case) -> dict[int, tuple[int, int, int]]:
    """Return Kmin, Kmax and rate of the fastest port of each switch, where marks begin last."""
    fabric, packet = case.fabric, case.packet
    found: dict[int, tuple[int, int, int]] = {}
    leaving = np.flatnonzero(fabric.link_network & (fabric.tier[fabric.link_src] != 0))
    fastest = np.zeros(fabric.n_devices, np.int64)
    np.maximum.at(fastest, fabric.link_src[leaving], fabric.link_rate_bps[leaving])
    for device in fabric.switches.tolist():
        rate = int(fastest[device])
        if rate:
            low, high = ecn_thresholds(rate)
            low = low if packet.kmin_bytes is None else packet.kmin_bytes
            high = high if packet.kmax_bytes is None else packet.kmax_bytes
            found[device] = low, high, rate
    return found


def _pause_thresholds(case: Case, one: BufferBudget) -> tuple[int | None, int | None]:
    """Return the ingress bytes above which pauses are sent: one queue alone, and all full.

    Dynamic thresholds: alpha B / (1 + n alpha) for n full queues (Choudhury and Hahne, "Dynamic
    queue length thresholds for shared-memory packet switches", IEEE/ACM ToN 6(2), 1998).
    """
    packet = case.packet
    if packet.xoff_bytes is not None:
        return packet.xoff_bytes, packet.xoff_bytes
    if one.shared is None:
        return None, None
    shared = max(0, one.shared)
    alone = packet.alpha * shared / (1 + packet.alpha)
    full = packet.alpha * shared / (1 + one.ports * packet.alpha)
    return int(alone) + packet.reserve_bytes, int(full) + packet.reserve_bytes


@check_named(
    "lossless-setting",
    about="Links that are called lossless have pauses, and lossy ones a recovery that bears loss.",
    why="Without pauses a lossless link drops, and go-back-N resends a window for each drop.",
    mend="turn pauses on, or use selective repeat",
    part="effect",
)
def lossless_setting(case: Case) -> Iterator[Found | Fact]:
    """Find lossless links without pauses."""
    fabric, packet = case.fabric, case.packet
    counts = {
        model: int((fabric.link_model == model).sum()) // 2
        for model in (LinkModel.ROCE_LOSSLESS, LinkModel.ROCE_LOSSY)
    }
    if counts[LinkModel.ROCE_LOSSLESS] and not packet.pfc:
        yield Found(
            level="warning",
            message=f"{counts[LinkModel.ROCE_LOSSLESS]} cables are roce-lossless, but pauses are "
            "off (pfc: {enabled: false})",
        )
    if packet.pfc and packet.priority not in packet.lossless and counts[LinkModel.ROCE_LOSSLESS]:
        yield Found(
            level="warning",
            message=f"data travels in priority {packet.priority}, and lossless are "
            f"{listed(map(str, packet.lossless))}",
        )
    goes_back = (packet.recovery or "go-back-n").startswith("go-back")
    if counts[LinkModel.ROCE_LOSSY] and goes_back:
        yield Found(
            level="info",
            message=f"{counts[LinkModel.ROCE_LOSSY]} cables are roce-lossy, and recovery is "
            f"{packet.recovery}: each loss resends a window",
        )
