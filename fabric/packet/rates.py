# SPDX-License-Identifier: Apache-2.0
"""DCQCN's sender, compiled.

Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015 (``paper``); for
``nic`` and ``scaled`` the structure of its NIC implementation as in the public code of Li et al.,
"HPCC: high precision congestion control", SIGCOMM 2019.

Alpha decays in closed form, so its ticks need no events; the rate timer runs only while a queue
pair is below its line's rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from railweave.fabric.jit import jit
from railweave.fabric.packet.events import push
from railweave.fabric.packet.layout import (
    CC_PAPER,
    CLASS_SHIFT,
    DECREASE,
    KIND_SHIFT,
    PACE,
    QP_PACED,
    RATE,
    SEND,
    TIMER,
)

__all__ = ["congested", "count_bytes", "cut_tick", "gap_ps", "rate_tick", "reset", "tick_alpha"]


@jit(inline=True)
def gap_ps(wire: Any, rate: Any) -> Any:
    """Return the time between the starts of two frames at a rate, in ps."""
    return np.int64(np.floor(wire * 8e12 / rate + 0.5))


@jit(inline=True)
def _power(base: Any, exponent: Any) -> Any:
    """Return base ** exponent by squaring: the same bits everywhere, unlike a library's pow."""
    out = 1.0
    while exponent > 0:
        if exponent & 1:
            out *= base
        base *= base
        exponent >>= 1
    return out


@jit(inline=True)
def tick_alpha(run: Any, state: Any, until: Any) -> None:
    """Let every alpha tick up to and including ``until`` pass."""
    ticks = (until - state.alpha_at) // run.alpha_ps
    if ticks <= 0:
        return
    state.alpha_at += ticks * run.alpha_ps
    if state.seen_alpha == 1:
        state.alpha = (1.0 - run.g) * state.alpha + run.g
        state.seen_alpha = 0
        ticks -= 1
    state.alpha *= _power(1.0 - run.g, ticks)


@jit(inline=True)
def reset(qp: Any, state: Any) -> None:
    """Forget all congestion: a queue pair that begins, or was idle for long."""
    qp.rate = min(qp.line, qp.cap)
    state.target = qp.line
    state.alpha = 1.0
    state.on = 0
    state.bytes = 0
    state.timer_steps = 0
    state.byte_steps = 0
    state.rate_at = -1
    state.seen_alpha = 0
    state.seen_cut = 0


@jit(inline=True)
def _set_rate(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, number: Any, rate: Any) -> None:
    """Change a rate; a frame that waits for its time waits for the time at the new rate."""
    run = runs[0]
    qp = qps[number]
    qp.rate = min(rate, qp.cap)
    if qp.state == QP_PACED:
        free = max(qp.began + gap_ps(qp.wire, qp.rate), run.now)
        qp.free = free
        if free < qp.armed:  # a later event finds that its time is not yet come
            qp.armed = free
            key = (SEND << CLASS_SHIFT) | (PACE << KIND_SHIFT) | number
            push(runs, ev, wheel, far, free, key, 0)


@jit(inline=True)
def _cut(
    runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any, keep: Any
) -> None:
    """Lower the rate by half of alpha and begin to recover."""
    run = runs[0]
    qp = qps[number]
    state = rates[number]
    if keep == 0:
        state.target = qp.rate
    rate = max(state.floor, qp.rate * max(0.5, 1.0 - state.alpha / 2.0))
    _set_rate(runs, ev, wheel, far, qps, number, rate)
    state.timer_steps = 0
    state.byte_steps = 0
    state.bytes = 0
    state.rate_at = run.now + run.rate_ps
    if state.armed == 0:
        state.armed = 1
        key = (TIMER << CLASS_SHIFT) | (RATE << KIND_SHIFT) | number
        push(runs, ev, wheel, far, state.rate_at, key, 0)


@jit(inline=True)
def congested(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any) -> None:
    """Take a congestion notification for a queue pair."""
    run = runs[0]
    state = rates[number]
    now = run.now
    state.cnps += 1
    if run.cc == CC_PAPER:
        if state.on == 1:
            tick_alpha(run, state, now - 1)
        state.on = 1
        _cut(runs, ev, wheel, far, qps, rates, number, 0)
        state.alpha = (1.0 - run.g) * state.alpha + run.g
        state.alpha_at = now
        return
    if state.on == 1:
        tick_alpha(run, state, now - 1)
        state.seen_alpha = 1
    else:
        state.on = 1
        state.alpha = run.alpha0
        state.grid = now
        state.alpha_at = now
        state.target = qps[number].rate
    state.seen_cut = 1
    if state.cut_armed == 0:
        state.cut_armed = 1
        ticks = max((now - state.grid + run.decrease_ps - 1) // run.decrease_ps, 1)
        key = (TIMER << CLASS_SHIFT) | (DECREASE << KIND_SHIFT) | number
        push(runs, ev, wheel, far, state.grid + ticks * run.decrease_ps, key, 0)


@jit(inline=True)
def cut_tick(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any) -> None:
    """Cut the rate at a decrease tick if a notification has come since the last one."""
    run = runs[0]
    state = rates[number]
    state.cut_armed = 0
    if state.seen_cut == 0 or state.on == 0:
        return
    tick_alpha(run, state, run.now)
    state.seen_cut = 0
    keep = 1 if state.timer_steps == 0 and run.clamp == 0 else 0
    _cut(runs, ev, wheel, far, qps, rates, number, keep)


@jit(inline=True)
def _increase(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any) -> None:
    """Raise the rate by a step: recovery, additive or hyper increase."""
    run = runs[0]
    qp = qps[number]
    state = rates[number]
    most = max(state.timer_steps, state.byte_steps)
    least = min(state.timer_steps, state.byte_steps)
    if run.cc != CC_PAPER and run.rate_bytes == 0:
        least = most  # the timer alone counts
    if most >= run.recovery_steps:
        if least > run.recovery_steps:
            state.target += state.leap
        else:
            state.target += state.step
    state.target = min(state.target, qp.line)
    _set_rate(runs, ev, wheel, far, qps, number, (state.target + qp.rate) / 2.0)


@jit(inline=True)
def rate_tick(runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any) -> None:
    """Let the rate timer of a queue pair fire, or find that it was restarted meanwhile."""
    run = runs[0]
    state = rates[number]
    state.armed = 0
    if state.on == 0 or state.rate_at < 0:
        return
    if state.rate_at <= run.now:
        _increase(runs, ev, wheel, far, qps, rates, number)
        state.timer_steps += 1
        state.rate_at = run.now + run.rate_ps
        if qps[number].rate >= min(qps[number].line, qps[number].cap):  # nothing is left to recover
            return
    state.armed = 1
    key = (TIMER << CLASS_SHIFT) | (RATE << KIND_SHIFT) | number
    push(runs, ev, wheel, far, state.rate_at, key, 0)


@jit(inline=True)
def count_bytes(
    runs: Any, ev: Any, wheel: Any, far: Any, qps: Any, rates: Any, number: Any, wire: Any
) -> None:
    """Count what a slowed queue pair sends; every so many bytes raise its rate."""
    run = runs[0]
    if run.rate_bytes == 0:
        return
    state = rates[number]
    if state.on == 0:
        return
    state.bytes += wire
    if state.bytes >= run.rate_bytes:
        state.bytes -= run.rate_bytes
        _increase(runs, ev, wheel, far, qps, rates, number)
        state.byte_steps += 1
