# SPDX-License-Identifier: Apache-2.0
"""The packet engine's event loop, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric._walk import mix
from railweave.fabric.jit import jit
from railweave.fabric.packet.balance import choose
from railweave.fabric.packet.buffers import PS_BYTE, admit, leave_quietly, refresh
from railweave.fabric.packet.elision import arrive, board, leave, let_go
from railweave.fabric.packet.events import pull, push
from railweave.fabric.packet.hosts import post, wake
from railweave.fabric.packet.layout import (
    ACTION,
    ARRIVE,
    CHECK,
    CLASS_BITS,
    CLASS_SHIFT,
    COMPLETED,
    CONTROL,
    CREDIT,
    DECREASE,
    DONE,
    EFFECTIVE,
    ENTITY_MASK,
    EXPIRY,
    FAILED,
    FOREVER,
    HEAD,
    HEADER_BYTES,
    IDLE,
    KIND_SHIFT,
    LINK_CHANGE,
    LIVELOCK,
    NEED_EVENTS,
    NEED_PACKETS,
    NEED_ROWS,
    NONE,
    PAUSED,
    POLL,
    POST,
    PULL,
    QP_PACED,
    RATE,
    REACHED,
    REFRESH,
    REPOST,
    RTO,
    SEND,
    SUSPECT,
    TRAIN,
    TRIM,
    TRIMMED,
    TX_END,
)
from railweave.fabric.packet.lookahead import fetch_next
from railweave.fabric.packet.outages import astray, lose
from railweave.fabric.packet.ports import mark, start
from railweave.fabric.packet.queues import enqueue, free_packet
from railweave.fabric.packet.rates import cut_tick, rate_tick
from railweave.fabric.packet.receive import receive, timeout
from railweave.fabric.packet.sprayed import pull_credit, receive_sprayed, timeout_sprayed
from railweave.fabric.packet.trains import depart, roll, takes_trains, wire_bytes
from railweave.fabric.packet.trimming import trim
from railweave.fabric.packet.work import (
    begin,
    complete,
    early,
    free_row,
    message_bytes,
    take_row,
    turn,
)

__all__ = ["advance"]

_BURST = 1 << 20  # events between two moments for Python
_SPARE_PACKETS = 8
_KINDS = (1 << KIND_SHIFT) - 1
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@jit(inline=True)
def _note(run: Any, trace: Any, packets: Any, qps: Any, time: Any, key: Any, arg: Any) -> None:
    """Add an event to the digest of all, and to the trace while there is room."""
    what = arg
    if key >> CLASS_SHIFT == ARRIVE:
        packet = packets[arg]
        what = (qps[packet.qp].flow << 34) ^ (np.int64(packet.psn) << 14) ^ packet.flag
    if run.traced < len(trace):
        trace[run.traced, 0] = time
        trace[run.traced, 1] = key
        trace[run.traced, 2] = what
        run.traced += 1
    word = np.uint64(time) ^ (np.uint64(key) * _PRIME) ^ mix(np.uint64(what & 0x7FFFFFFFFFFF))
    run.digest = mix(run.digest ^ word)


@jit(inline=True)
def _effective(
    runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any, entity: Any, arg: Any
) -> Any:
    """Let a pause, its end or a credit take effect; return the port to try, or NONE."""
    run = runs[0]
    kind = entity >> KIND_SHIFT
    link = (entity & _KINDS) >> 4
    klass = entity & 15
    port = ports[link]
    row = egress[link * run.classes + klass]
    bit = 1 << klass
    if kind == CREDIT:
        row.credit += arg
        if port.blocked & bit and row.credit >= port.need:
            port.blocked &= ~bit
            return link
        return np.int64(NONE)
    if kind == EXPIRY:
        row.expiry = 0
        if port.blocked & bit == 0:
            return np.int64(NONE)
        if row.until > run.now:
            row.expiry = 1
            push(runs, ev, wheel, far, row.until, (EFFECTIVE << CLASS_SHIFT) | entity, 0)
            return np.int64(NONE)
    elif ports[link ^ 1].up == 0:  # the frame was lost with the link it came by
        return np.int64(NONE)
    elif arg > 0:
        row.pauses += 1
        row.heard = run.now
        if port.deaf & bit:  # a watchdog lets it heed no pause
            return np.int64(NONE)
        if port.blocked & bit == 0:
            port.blocked |= bit
            row.since = run.now
            run.blocked += 1
        if run.pfc_expiry == 1:
            row.until = run.now + arg * port.quantum
            if row.expiry == 0:
                row.expiry = 1
                key = (EFFECTIVE << CLASS_SHIFT) | (EXPIRY << KIND_SHIFT) | (link << 4) | klass
                push(runs, ev, wheel, far, row.until, key, 0)
        if run.poll_ps > 0 and run.polling == 0:
            run.polling = 1
            at = (run.now // run.poll_ps + 1) * run.poll_ps
            push(runs, ev, wheel, far, at, (CHECK << CLASS_SHIFT) | POLL, 0)
        if run.check_ps > 0 and run.checking == 0:
            run.checking = 1
            push(runs, ev, wheel, far, run.now + run.check_ps, CHECK << CLASS_SHIFT, 0)
        return np.int64(NONE)
    if port.blocked & bit:
        port.blocked &= ~bit
        row.paused += run.now - row.since
        run.blocked -= 1
    return link


@jit(inline=True)
def _check(runs: Any, ev: Any, wheel: Any, far: Any, ports: Any, egress: Any) -> Any:
    """Look for paused queues that have packets and sent none since the last look."""
    run = runs[0]
    run.checking = 0
    if run.blocked == 0:
        return 0
    found = 0
    for link in range(len(ports)):
        if ports[link].blocked == 0:
            continue
        for klass in range(run.classes):
            row = egress[link * run.classes + klass]
            if (ports[link].blocked >> klass) & 1:
                if row.frames == row.seen and run.now - row.since >= run.check_ps and row.head >= 0:
                    found = 1
                row.seen = row.frames
    run.checking = 1
    push(runs, ev, wheel, far, run.now + run.check_ps, CHECK << CLASS_SHIFT, 0)
    return found


@jit
def advance(
    runs: Any, ev: Any, wheel: Any, far: Any, near: Any, ports: Any, egress: Any, ingress: Any,
    switches: Any, swports: Any, packets: Any, qps: Any, rates: Any, nodes: Any, groups: Any,
    succ: Any, hops: Any, bits: Any, ready: Any, trace: Any, loops: Any, lanes: Any, flights: Any,
    trail: Any, zones: Any, users: Any, riders: Any, ends: Any, ptr: Any, trains: Any, kept: Any,
    spare: Any, limit: Any,
) -> Any:  # fmt: skip
    """Process events up to ``limit``; stop after an instant in which groups ended.

    ``spare`` is how many events one step may add at most.
    """
    run = runs[0]
    burst = 0
    while True:
        if run.ev_left < spare or len(far) - run.far < spare:
            return NEED_EVENTS
        if run.pk_left < _SPARE_PACKETS:
            return NEED_PACKETS
        if run.ready > 0:
            run.ready -= 1
            begin(runs, ev, wheel, far, qps, nodes, np.int64(ready[run.ready]))
            continue
        until = run.now if run.done > 0 else limit
        if pull(runs, ev, wheel, far, near, packets, ports, egress, ingress, qps, until) == 0:
            if run.done > 0:
                return COMPLETED
            if run.far == 0 and run.in_wheel == 0 and run.at >= run.count:
                return IDLE
            return REACHED
        if run.fetch == 1:
            fetch_next(run, near, packets, ports, egress, ingress, qps, hops)
        now = run.ev_time
        run.now = now
        run.events += 1
        key = run.ev_key
        arg = run.ev_arg
        kind = key >> CLASS_SHIFT
        entity = key & ENTITY_MASK
        run.tie = FOREVER
        if run.tracing == 1:
            _note(run, trace, packets, qps, now, key, arg)
        kick = np.int64(NONE)
        posted = np.int64(NONE)
        if kind == ARRIVE:
            link = entity >> 4
            packet = packets[arg]
            ahead = np.int64(packet.at)
            onward = np.int64(packet.next)
            if onward < NONE:
                ahead = choose(runs, ports, egress, qps, hops, packet, ahead)
                onward = np.int64(hops[ahead].link)
            if run.failing == 1 and astray(ports, packet, link, onward):
                lose(runs, ev, wheel, far, ports, egress, packets, qps, link, onward, arg)
            elif onward < 0:
                if qps[packet.qp].mode == TRIM:
                    kick = receive_sprayed(
                        runs, ev, wheel, far, ports, egress, packets, qps, rates, nodes, groups,
                        bits, arg,
                    )  # fmt: skip
                else:
                    kick = receive(
                        runs, ev, wheel, far, ports, egress, packets, qps, rates, nodes, groups,
                        bits, arg,
                    )  # fmt: skip
                    if run.elide == 1 and packet.flag & CONTROL:
                        let_go(zones, ends, qps, hops, lanes, np.int64(packet.qp))
                free_packet(runs, packets, arg)
                if run.vain >= run.most_vain:
                    return LIVELOCK
            else:
                klass = np.int64(packet.flag >> CLASS_BITS)
                port = ports[onward]
                if port.svc_queue >= 0 and port.svc_end <= now:
                    leave_quietly(ports, egress, ingress, switches, onward)
                queue = link * run.classes + klass
                out = onward * run.classes + klass
                taken = 1
                if entity & 15 == HEAD and (
                    port.busy > now or port.mask != 0 or (port.blocked >> klass) & 1
                ):
                    # No cutting through: taken up again when it is there as a whole.
                    rest = np.int64(max(packet.wire - HEADER_BYTES, 0))
                    at = now + (rest * PS_BYTE + ports[link].rate - 1) // ports[link].rate
                    push(runs, ev, wheel, far, at, (ARRIVE << CLASS_SHIFT) | (link << 4), arg)
                    taken = 2
                elif port.switch >= 0:
                    size = np.int64(packet.wire) - run.gap
                    if run.enqueue_marks == 1 and packet.flag & CONTROL == 0:
                        row = egress[out]
                        if row.bytes > row.kmin:
                            mark(ports, row, onward, qps[packet.qp], packet, row.bytes)
                    while True:
                        taken = admit(
                            runs, ev, wheel, far, ports, egress, ingress, switches, swports,
                            queue, out, size,
                        )  # fmt: skip
                        if taken == 1 or run.trim_wire == 0 or ingress[queue].kind != 0:
                            break
                        if packet.flag & (CONTROL | TRIMMED):
                            break
                        # What does not fit goes on as its header, or the last of the queue does.
                        trim(
                            ports,
                            run,
                            egress,
                            ingress,
                            switches,
                            packets,
                            qps,
                            out,
                            queue,
                            ahead,
                            arg,
                        )
                        ahead = np.int64(packet.at)
                        klass = np.int64(run.strict)
                        queue = np.int64(packet.ingress) // run.classes * run.classes + klass
                        out = onward * run.classes + klass
                        size = np.int64(packet.wire) - run.gap
                if taken == 1:
                    packet.at = ahead
                    packet.ingress = queue
                    enqueue(ports, egress, packets, onward, klass, out, arg)
                    kick = onward
                elif taken == 0:
                    run.drops_buffer += 1
                    if run.fold == 0 or packet.flag & CONTROL:
                        qps[packet.qp].inflight -= 1
                    free_packet(runs, packets, arg)
        elif kind == TX_END:
            ports[entity].pending = 0
            run.tie = entity
            kick = entity
        elif kind == EFFECTIVE:
            kick = _effective(runs, ev, wheel, far, ports, egress, entity, arg)
        elif kind == SEND:
            number = entity & _KINDS
            if entity >> KIND_SHIFT == POST:
                looped = nodes[number].loop >= 0
                if (looped and run.row_left <= run.flights) or (
                    run.elide == 1
                    and (
                        run.flight_left < 1
                        or run.train_left < 1
                        or run.ev_left < spare + run.flights
                        or len(far) - run.far < spare + run.flights
                    )
                ):
                    run.events -= 1
                    push(runs, ev, wheel, far, now, key, arg)
                    return NEED_ROWS
                done = 0
                if groups[nodes[number].group].left <= 0:  # cancelled
                    done = 3
                elif run.elide == 1:
                    done = board(
                        runs, ev, wheel, far, ports, egress, ingress, qps, rates, nodes, loops,
                        hops, lanes, flights, trail, zones, riders, ends, ptr, swports, number,
                    )  # fmt: skip
                if done == 2:
                    push(runs, ev, wheel, far, now, key, arg)
                elif looped:
                    early(runs, ev, wheel, far, loops, nodes[number], key, arg)
                if done == 0:
                    posted = number
                    if looped:
                        size = message_bytes(nodes, loops, number)
                        posted = take_row(runs, nodes, number, size)
                        turn(loops, nodes[number])
            elif entity >> KIND_SHIFT == PULL:
                kick = pull_credit(runs, ev, wheel, far, ports, egress, packets, qps, number)
            elif qps[number].state == QP_PACED and qps[number].armed == now:
                if qps[number].free > now:
                    qps[number].armed = qps[number].free
                    push(runs, ev, wheel, far, qps[number].free, key, 0)
                else:
                    wake(ports, egress, qps, run.classes, number)
                    kick = np.int64(qps[number].queue // run.classes)
        elif kind == DONE:
            ends_now = 1
            if arg < 0:
                ends_now = arrive(
                    runs, ports, egress, ingress, qps, hops, lanes, flights, trail, zones, ends,
                    -1 - arg,
                )  # fmt: skip
            elif nodes[arg].qp >= 0:
                if run.elide == 1:
                    if run.quantum > 1:
                        run.under_way -= wire_bytes(run, nodes[arg])
                    leave(zones, ends, qps, hops, lanes, np.int64(nodes[arg].qp))
                free_row(runs, nodes, arg)
            elif nodes[arg].loop >= 0:
                early(runs, ev, wheel, far, loops, nodes[arg], key, arg)
            if ends_now == 1:
                if run.ended < len(kept):
                    kept[run.ended] = now
                run.ended += 1
                complete(runs, nodes, loops, groups, succ, ready, entity)
        elif kind == CHECK:
            if entity > 0:
                return ACTION
            if _check(runs, ev, wheel, far, ports, egress) == 1:
                return SUSPECT
        elif kind == LINK_CHANGE:
            run.tie = 0  # frames that end now leave after it
            return ACTION
        else:
            number = entity & _KINDS
            timer = entity >> KIND_SHIFT
            if timer == RATE:
                rate_tick(runs, ev, wheel, far, qps, rates, number)
            elif timer == DECREASE:
                cut_tick(runs, ev, wheel, far, qps, rates, number)
            elif timer == REFRESH:
                refresh(runs, ev, wheel, far, ports, ingress, number)
            elif timer == TRAIN:
                if run.train_left < 1:
                    run.events -= 1
                    push(runs, ev, wheel, far, now, key, arg)
                    return NEED_ROWS
                roll(
                    runs, ev, wheel, far, ports, egress, qps, lanes, nodes, trains, hops,
                    users, np.int64(arg),
                )  # fmt: skip
            elif timer == REPOST:
                posted = np.int64(arg)
            elif timer == RTO:
                if qps[number].mode == TRIM:
                    kick = timeout_sprayed(
                        runs, ev, wheel, far, ports, egress, packets, qps, bits, number
                    )
                else:
                    kick = timeout(runs, ev, wheel, far, ports, egress, qps, nodes, bits, number)
                if run.failed_qp >= 0:
                    return FAILED
        if posted >= 0:
            if run.quantum > 1 and takes_trains(runs, lanes, nodes, posted):
                depart(
                    runs, ev, wheel, far, ports, egress, qps, lanes, nodes, trains, hops, users,
                    posted,
                )  # fmt: skip
            else:
                kick = post(
                    runs, ev, wheel, far, ports, egress, packets, qps, rates, nodes, bits, posted
                )
        if kick >= 0:
            start(
                runs, ev, wheel, far, ports, egress, ingress, switches, swports, packets, qps,
                rates, nodes, hops, bits, kick,
            )  # fmt: skip
        burst += 1
        if burst == _BURST:
            return PAUSED
