# SPDX-License-Identifier: Apache-2.0
"""Set up a packet simulation: its scalars, ports, switches and queues, from fabric and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.devices import switch_model
from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.hashing import mix
from railweave.fabric.network import Framing
from railweave.fabric.packet import layout as lay
from railweave.fabric.packet.layout import records
from railweave.fabric.packet.overrides import link_keys, override
from railweave.fabric.packet.settings import (
    ecn_thresholds,
    headroom_bytes,
    most_response_ps,
    quantum_ps,
    response_ps,
)
from railweave.fabric.packet.spraying import (
    limit_queues,
    prepare_trimming,
    recovery_of,
    trim_marks,
)
from railweave.fabric.packet.timeouts import timeout_ps
from railweave.fabric.units import PS_PER_S, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from railweave.fabric.graph import Fabric
    from railweave.fabric.packet.settings import PacketSettings
    from railweave.fabric.packet.state import PacketState

__all__ = ["lossless", "set_up", "stream_key", "switch_buffers"]

_PMAX: Final = 0.2  # [HPCC]
_PFC_WIRE: Final = 84  # IEEE 802.1Qbb: 64 bytes, preamble and gap
_CNP_EXTRA: Final = 12  # 16 reserved bytes instead of an AETH (InfiniBand annex A17)
_BUFFER: Final = 64_000_000  # of a switch whose catalogue entry gives none; assumed
_CHECK_PS: Final = 100_000_000
_ECN, _BALANCE, _LOSS = 1, 2, 3  # domains of random streams
_SPREADS: Final = {
    "none": lay.SPREAD_NONE,
    "random": lay.SPREAD_RANDOM,
    "rr": lay.SPREAD_TURNS,
    "adaptive": lay.SPREAD_ADAPTIVE,
    "two-choices": lay.SPREAD_TWO,
    "flowlet": lay.SPREAD_FLOWLET,
    "entropy": lay.SPREAD_ENTROPY,
}
_MODES: Final = {
    "go-back-n": lay.GO_BACK_N,
    "go-back-0": lay.GO_BACK_0,
    "selective-repeat": lay.SELECTIVE,
    "trim": lay.TRIM,
}


def stream_key(seed: int, domain: int, number: int) -> int:
    """Return the key of a named random stream: of one domain, and of one element in it."""
    return mix(mix((seed & (2**64 - 1)) ^ mix(domain)) ^ mix(number))


def switch_buffers(fabric: Fabric) -> NDArray[np.int64]:
    """Return each switch's packet buffer in bytes: its catalogue entry's, or 64 MB (assumed)."""
    known: dict[str, int] = {}
    for device in fabric.switches:
        name = fabric.model[device]
        if name not in known:
            given = switch_model(name).buffer_bytes if name else None
            known[name] = _BUFFER if given is None else given
    return np.array([known[fabric.model[device]] for device in fabric.switches], np.int64)


def lossless(
    fabric: Fabric, settings: PacketSettings, *, failing: bool, priorities: Iterable[int] = ()
) -> bool:
    """Tell whether no packet of the network's priority and of ``priorities`` can be lost."""
    models = fabric.link_model[fabric.link_network]
    paused = settings.pfc and {settings.priority, *priorities} <= set(settings.lossless)
    held = (LinkModel.INFINIBAND, *((LinkModel.ROCE_LOSSLESS,) if paused else ()))
    if failing or settings.drops_on_storms:
        return False
    if any(keys.get("loss_rate") or keys.get("pfc") is False for _, keys in link_keys(fabric)):
        return False
    return settings.loss_rate == 0.0 and bool(np.isin(models, held).all())


def set_up(state: PacketState, buffers: NDArray[np.int64] | None, *, tracing: bool) -> None:
    """Write scalars, ports, switches and queues of a simulation that begins.

    Parameters
    ----------
    buffers
        int64 (switches,): bytes of each network switch's buffer; None: 64 MB (assumed).
    tracing
        Add every event to the digest.

    Raises
    ------
    InputError
        Settings contradict each other or the fabric.
    """
    _set_run(state, tracing)
    _set_ports(state)
    _set_switches(state, buffers)
    _set_queues(state)


def _set_run(state: PacketState, tracing: bool) -> None:
    run, network, settings = state.run, state.network, state.settings
    infiniband = bool((state.fabric.link_model == LinkModel.INFINIBAND).any())
    framing = Framing.INFINIBAND if infiniband else Framing.ETHERNET
    overridden = network.frame_overhead_bytes is not None
    run.tracing = int(tracing)
    run.use_wheel = int(settings.use_wheel)
    run.classes = len(state.priorities)
    run.strict = run.classes - 1
    run.control = run.classes - 1 if settings.ack_control else lay.NONE
    run.mtu = network.mtu_bytes
    run.overhead = network.overhead_bytes(framing)
    run.first = network.first_overhead_bytes(framing)
    run.gap = 0 if infiniband or overridden else 20  # preamble and gap stay on the wire
    run.cut = int(network.cut_through)
    run.ack_wire = network.ack_wire_bytes(framing) or 86
    run.cnp_wire = run.ack_wire if network.ack_bytes is not None else run.ack_wire + _CNP_EXTRA
    run.pfc_wire = _PFC_WIRE
    run.eager = int(not settings.lazy_ends)
    run.nic_first = int(settings.nic_first)
    run.sender_ends = int(settings.fct_at_sender)
    run.pfc_expiry = int(settings.pfc_expiry)
    run.check_ps = _CHECK_PS
    run.failing = int(state.failing)
    run.refresh_ps = settings.refresh_ps or 0
    run.poll_ps = 0 if settings.watchdog is None else settings.watchdog.poll_ps
    run.enqueue_marks = int(settings.ecn_at_enqueue)
    run.failed_qp = lay.NONE
    trusted = lossless(
        state.fabric, settings, failing=state.failing, priorities=state.asked_priorities
    )
    state.mode = lay.TRUST if trusted else _MODES[recovery_of(state.fabric, settings)]
    state.cc = settings.cc if settings.cc_given or state.mode != lay.TRIM else None
    sprays = "entropy" if state.mode == lay.TRIM else "random"
    run.spread = _SPREADS[sprays if settings.spread == "spray" else settings.spread]
    run.spread_key = stream_key(settings.seed, _BALANCE, 0)
    run.spread_quantum, run.flowlet_ps = (
        settings.adaptive_quantum_bytes,
        settings.flowlet_gap_ps,
    )
    in_order = settings.spread in ("none", "flowlet")
    run.fold = int(state.mode == lay.TRUST and in_order)
    prepare_trimming(state)
    full = -(-run.mtu // 4) * 4 + run.overhead + run.first
    run.frame = max(full, run.ack_wire, run.cnp_wire, run.trim_wire, run.pull_wire)
    _set_timeouts(state)
    run.retries = settings.retries
    run.most_vain = settings.livelock_packets or lay.FOREVER
    cc = state.cc
    if cc is not None:
        run.cc = lay.CC_PAPER if cc.paper else lay.CC_NIC
        run.ack_echo, run.clamp = int(settings.ack_echo), int(cc.clamp)
        run.g, run.alpha0 = cc.g, cc.alpha0
        run.alpha_ps, run.decrease_ps, run.rate_ps = cc.alpha_ps, cc.decrease_ps, cc.rate_ps
        run.rate_bytes, run.recovery_steps = cc.byte_counter, cc.fast_recovery
        run.cnp_ps = cc.cnp_ps
        run.idle_ps = 10 * 10**9  # back to the line's rate after 10 ms; assumed
    if network.ack_every == 0 and (
        state.mode != lay.TRUST or settings.fct_at_sender or (cc and settings.ack_echo)
    ):
        why = "lost packets are repeated" if state.mode != lay.TRUST else "messages end with them"
        raise InputError(
            f"there are no acknowledgements, but {why}", field="network.ack.every",
            expected="1 or more",
        )  # fmt: skip


def _set_timeouts(state: PacketState) -> None:
    run, settings = state.run, state.settings
    given = settings.rto_ps
    run.rto_ps = timeout_ps(settings.retries, state.notice_ps) if given is None else given
    run.rto_low_ps = min(settings.rto_low_ps, run.rto_ps)
    if given is None and settings.retries * run.rto_low_ps <= state.notice_ps:
        run.rto_low_ps = run.rto_ps


def _set_ports(state: PacketState) -> None:
    fabric, settings, run = state.fabric, state.settings, state.run
    ports = state.ports = records(lay.PORT, fabric.n_links)
    rate = fabric.link_rate_bps
    tau = 8 * PS_PER_S // rate
    ports.tau = np.where((8 * PS_PER_S % rate == 0) & (tau < 2**31), tau, 0)
    ports.rate, ports.prop = rate, fabric.link_delay_ps
    ports.peer_prop = fabric.link_delay_ps[np.arange(fabric.n_links) ^ 1]
    ports.svc_queue = ports.svc_in = ports.switch = lay.NONE
    ports.pull_head = ports.pull_tail = lay.NONE
    ports.inside = ~fabric.link_network
    ports.up = fabric.link_up
    ports.credit = ~fabric.link_network | (fabric.link_model == LinkModel.INFINIBAND)
    ports.need = run.mtu + run.overhead + run.first
    ports.loss = np.where(fabric.link_network, settings.loss_rate, 0.0)
    for links, keys in state.link_keys:
        if "loss_rate" in keys:
            ports.loss[links] = keys["loss_rate"]
    ports.lossy = ports.loss > 0
    domain = _LOSS if ports.lossy.any() else _ECN
    ports.draws = [stream_key(settings.seed, domain, link) for link in range(fabric.n_links)]
    values, inverse = np.unique(rate, return_inverse=True)
    respond = [
        response_ps(int(value)) if settings.response_ps is None else settings.response_ps
        for value in values
    ]
    ports.response = np.array(respond, np.int64)[inverse]
    ports.quantum = np.array([quantum_ps(int(v)) for v in values], np.int64)[inverse]
    if (values < 1000).any():
        raise InputError("a link is too slow for the packet engine", expected="1Kbps or more")


def _set_switches(state: PacketState, buffers: NDArray[np.int64] | None) -> None:
    fabric, settings = state.fabric, state.settings
    numbers = fabric.switches
    state.switches = records(lay.SWITCH, max(len(numbers), 1))
    ptr, links = fabric.out_links
    state.swports = links.copy()
    state.switches.first[: len(numbers)] = ptr[numbers]
    state.switches.last[: len(numbers)] = ptr[numbers + 1]
    dense = np.full(fabric.n_devices, lay.NONE, np.int32)
    dense[numbers] = np.arange(len(numbers))
    state.ports.switch = dense[fabric.link_src]
    state.into = dense[fabric.link_dst]  # switch that a link enters, or NONE
    enters = fabric.link_network & (state.into >= 0)
    state.ports.fixed = fabric.link_delay_ps + enters * state.network.switch_latency_ps
    total = np.full(len(numbers), _BUFFER) if buffers is None else buffers
    if settings.buffer_bytes is not None:
        total = np.full(len(numbers), settings.buffer_bytes)
    state.switches.total[: len(numbers)] = total


def _set_queues(state: PacketState) -> None:
    fabric, settings, run = state.fabric, state.settings, state.run
    classes, links = len(state.priorities), fabric.n_links
    egress = state.egress = records(lay.EGRESS, links * classes)
    ingress = state.ingress = records(lay.INGRESS, links * classes)
    egress.head = egress.tail = egress.ready = egress.ready_tail = lay.NONE
    egress.kmin = egress.kmax = lay.FOREVER
    egress.limit, egress.room = settings.alpha_lossy, lay.FOREVER
    egress.quantum = run.mtu + run.overhead
    rate, delay = fabric.link_rate_bps, fabric.link_delay_ps
    frame = int(state.ports.need.max(initial=0))
    # Twice the bandwidth-delay product and two frames (assumed), where senders hold credit.
    window = np.ceil(2 * rate * 2.0 * delay / 8e12).astype(np.int64) + 2 * frame
    lossless = [p in settings.lossless for p in state.priorities[:-1]]
    if run.trim_wire:
        limit_queues(state)
    for klass in range(classes):
        mine = np.arange(links) * classes + klass
        egress.credit[mine] = window
        ingress.switch[mine] = state.into
        ingress.credit[mine] = state.ports.credit
        if klass == classes - 1 and settings.ack_control:
            continue
        if settings.ecn and klass < classes - 1:
            _set_marks(state, mine)
        if klass < classes - 1 and lossless[klass]:
            _set_thresholds(state, mine, frame)
        credit = (state.ports.credit == 1) & (state.into >= 0)
        ingress.kind[mine[credit]] = 2
        ingress.room[mine[credit]] = ingress.reserve[mine[credit]] = 0
    for some, keys in state.link_keys:
        override(state, some, keys)
    _share_out(state)


def _set_marks(state: PacketState, mine: NDArray[np.int64]) -> None:
    fabric, settings = state.fabric, state.settings
    models = (LinkModel.ROCE_LOSSLESS, LinkModel.ROCE_LOSSY, LinkModel.TRIMMING)
    for link in np.flatnonzero(np.isin(fabric.link_model, models)):
        low, high = ecn_thresholds(int(fabric.link_rate_bps[link]))
        pmax = _PMAX
        row = state.egress[mine[link]]
        if state.run.trim_wire and row.room < lay.FOREVER:
            low, high, pmax = trim_marks(int(row.room))
        row.kmin = low if settings.kmin_bytes is None else settings.kmin_bytes
        row.kmax = high if settings.kmax_bytes is None else settings.kmax_bytes
        row.pmax = pmax if settings.pmax is None else settings.pmax


def _set_thresholds(state: PacketState, mine: NDArray[np.int64], frame: int) -> None:
    """Make the ingress queues of one class lossless on the links that pause."""
    fabric, settings = state.fabric, state.settings
    if not settings.pfc:
        return
    rate = fabric.link_rate_bps
    hosts = fabric.link_network & (fabric.kind[fabric.link_src] == DeviceKind.NIC)
    host_rate = int(rate[hosts].min()) if hosts.any() else 0
    pausing = (fabric.link_model == LinkModel.ROCE_LOSSLESS) & (state.into >= 0)
    for link in np.flatnonzero(pausing):
        row = state.ingress[mine[link]]
        row.kind = 1
        row.reserve = settings.reserve_bytes
        row.hysteresis = settings.hysteresis_bytes
        if settings.xoff_bytes is not None:
            row.xoff = settings.xoff_bytes
            least = settings.xoff_bytes - settings.hysteresis_bytes
            row.xon = max(least, 0) if settings.xon_bytes is None else settings.xon_bytes
        else:
            faster = max(1.0, int(rate[link]) / host_rate) if host_rate else 1.0
            row.alpha = max(min(settings.alpha * faster, 1.0), settings.alpha)
        if settings.headroom_bytes is not None:
            row.room = settings.headroom_bytes
            continue
        slowest = most_response_ps(int(rate[link]))
        if settings.response_ps is not None:
            slowest = max(slowest, settings.response_ps)
        row.room = headroom_bytes(
            int(rate[link]), int(fabric.link_delay_ps[link]), response_ps=slowest,
            pipeline_ps=state.network.switch_latency_ps, frame_bytes=frame,
        )  # fmt: skip


def _share_out(state: PacketState) -> None:
    """Take reserve and headroom off each switch's buffer; what is left is shared."""
    own = np.zeros(len(state.switches), np.int64)
    held = state.ingress.switch >= 0
    np.add.at(own, state.ingress.switch[held], (state.ingress.reserve + state.ingress.room)[held])
    left = state.switches.total - own
    names = state.fabric.device_names
    for number, device in enumerate(state.fabric.switches):
        if left[number] <= 0:
            taken, given = int(own[number]), int(state.switches.total[number])
            raise InputError(
                f"reserve and headroom of '{names[device]}' take {format_size(taken)} "
                f"of its buffer of {format_size(given)}",
                field="network.buffer",
                expected="a larger buffer, shorter links, or less headroom",
            )
    state.switches.total = left
