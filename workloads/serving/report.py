# SPDX-License-Identifier: Apache-2.0
"""What a serving workload tells: times beside their bounds, bytes, and how busy the pools were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import PS_PER_S
from railweave.workloads.serving.bench_names import bench_metrics
from railweave.workloads.serving.spread import counted, distribution
from railweave.workloads.workload import TrackSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.request import Request
    from railweave.workloads.serving.serving import ServingRun
    from railweave.workloads.workload import WorkloadContext

__all__ = ["ServingReport"]

_DIGITS: Final = 6


class ServingReport:
    """Looks at the requests and replicas of a run, at its end or before.

    Parameters
    ----------
    workload, context
        What was asked for.
    run
        What is at work.
    """

    def __init__(self, workload: ServingModel, context: WorkloadContext, run: ServingRun) -> None:
        self._workload, self._context, self._run = workload, context, run
        self._requests = run.requests

    def summary(self) -> dict[str, Any]:
        """Return the ``serving`` object of ``result.json``.

        Times are of completed requests. ``queue_ps`` is what a request waited for its prefill step
        and for KV blocks of the decode replica.
        """
        done = [request for request in self._requests if request.completed]
        several = [request for request in done if request.tpot_ps is not None]
        apart = [request for request in done if not request.local_prefill]
        replicas = self._run.fleet.replicas
        for replica in replicas:
            replica.sync()
        gaps = counted(replica.ledger for replica in replicas)
        span_ps = max((request.last_ps for request in done), default=0) - self._workload.start
        summary: dict[str, Any] = {
            "model": self._workload.model,
            "router": self._workload.router.policy,
            "pools": list(self._run.fleet.pools),
            "requests": {
                "count": len(self._requests),
                "completed": len(done),
                "rejected": sum(bool(request.rejected) for request in self._requests),
            },
            "tokens": {
                "prompt": sum(request.prompt_tokens for request in done),
                "output": sum(request.output_tokens for request in done),
            },
            "ttft_ps": distribution(
                [request.ttft_ps for request in done], [request.ttft_bound_ps for request in done]
            ),
            "tpot_ps": distribution(
                [request.tpot_ps or 0 for request in several],
                [request.tpot_bound_ps for request in several],
            ),
            "itl_ps": gaps.distribution(),
            "kv_transfer_ps": distribution(
                [request.kv_ps for request in apart], [request.kv_bound_ps for request in apart]
            ),
            "kv_share_of_ttft": _mean([r.exposed_kv_ps / r.ttft_ps for r in apart if r.ttft_ps]),
            "queue_ps": distribution([_queue_ps(request) for request in done]),
            "e2e_ps": distribution(
                [request.e2e_ps for request in done],
                [_e2e_bound_ps(request) for request in done],
            ),
            "kv_bytes": sum(request.kv_bytes for request in done),
            "prefix": self._prefix(),
            "preemptions": {
                "count": sum(replica.ledger.preemptions for replica in replicas),
                "requests": sum(request.preemptions > 0 for request in self._requests),
                "without_progress": sum(replica.ledger.repeated for replica in replicas),
            },
            **{name: self._pool(pool) for name, pool in self._run.fleet.pools.items()},
        }
        tokens = sum(request.output_tokens for request in done)
        if span_ps > 0:
            summary["output_tokens_per_s"] = round(tokens * PS_PER_S / span_ps, 3)
        if self._workload.slo is not None:
            summary["slo"] = self._slo(done, span_ps)
        summary |= self._beyond(done, apart)
        failed = len(self._requests) - len(done)
        summary["vllm_bench"] = bench_metrics(
            done, gaps, span_ps, summary.get("slo"), failed=failed
        )
        return summary

    def _beyond(self, done: Sequence[Request], apart: Sequence[Request]) -> dict[str, Any]:
        """Return what only some runs have to tell."""
        found: dict[str, Any] = {}
        left = len(self._requests) - len(done) - sum(bool(r.rejected) for r in self._requests)
        backlog = self._backlog()
        if backlog:
            found["backlog"] = backlog
        if left:
            found["unfinished"] = left
        bound = [row for replica in self._run.fleet.replicas for row in self._memory_bound(replica)]
        if bound:
            found["memory_bound"] = bound
        rates = sorted(rate for rate in map(self._break_even, apart) if rate)
        if rates:
            found["break_even_Bps"] = rates[(len(rates) - 1) // 2]
        if self._run.ways.timeouts:
            found["kv_timeouts"] = self._run.ways.timeouts
        if self._run.failures.outages:
            found["outages"] = [
                {
                    "replica": one.replica,
                    "down_ps": one.down_ps,
                    "up_ps": one.up_ps if one.up_ps >= 0 else None,
                    "repaired_ps": one.repaired_ps if one.repaired_ps >= 0 else None,
                    **one.loaded,
                    "requests": one.requests,
                    "served_ps": one.served_ps if one.served_ps >= 0 else None,
                }
                for one in self._run.failures.outages
            ]
            found["sent_again"] = sum(max(request.attempts - 1, 0) for request in self._requests)
        if self._run.autoscaler.events:
            found["autoscale"] = self._run.autoscaler.events
        return found

    def _prefix(self) -> dict[str, Any]:
        looked = [r for r in self._requests if r.prefill_start_ps >= 0]
        found = sum(request.found_tokens for request in looked)
        prompts = sum(request.prompt_tokens for request in looked)
        return {
            "found_tokens": found,
            "share": round(found / prompts, _DIGITS) if prompts else 0.0,
            "forgotten": sum(
                replica.memory.cache.evicted
                for replica in self._run.fleet.replicas
                if replica.memory.cache is not None
            ),
        }

    def _pool(self, replicas: Sequence[Replica]) -> dict[str, Any]:
        span_ps = int(self._context.env.now) - self._workload.start
        ledgers = [replica.ledger for replica in replicas]
        stages = sum(replica.plan.n_stages for replica in replicas)
        busy_ps = sum(ledger.busy_ps for ledger in ledgers)
        steps = sum(ledger.steps for ledger in ledgers)
        blocks = sum(replica.memory.blocks for replica in replicas)
        first = replicas[0]

        def share(part: int, whole: int) -> float:
            return round(part / whole, _DIGITS) if whole > 0 else 0.0

        return {
            "replicas": len({replica.plan.group_name for replica in replicas}),
            "gpus": sum(len(replica.plan.devices) for replica in replicas),
            "steps": steps,
            "utilisation": share(busy_ps, stages * span_ps),
            "kv_capacity_tokens": first.memory.blocks * first.memory.block_tokens,
            "kv_usage": share(
                sum(replica.memory.held_ps for replica in replicas), blocks * span_ps
            ),
            "most_kv_usage": max(
                share(replica.memory.most, replica.memory.blocks) for replica in replicas
            ),
            "mean_batch": share(sum(ledger.sequence_steps for ledger in ledgers), steps),
            "prompt_tokens": sum(ledger.prompt_tokens for ledger in ledgers),
            "tokens": sum(ledger.tokens for ledger in ledgers),
        }

    def _memory_bound(self, replica: Replica) -> Iterator[dict[str, Any]]:
        """Yield the replica if requests wait for its memory while its arithmetic idles."""
        ledger = replica.ledger
        span_ps = int(self._context.env.now) - self._workload.start
        waited = ledger.short_ps / span_ps if span_ps > 0 else 0.0
        limits = self._workload.memory_bound
        if waited <= limits.waited_above or not replica.plan.flops_per_s:
            return
        stages = replica.plan.n_stages
        peak = replica.plan.flops_per_s * span_ps * stages / PS_PER_S
        used = ledger.flops / peak
        if used < limits.arithmetic_below:
            yield {
                "replica": replica.plan.name,
                "memory-bound": True,
                "waited_for_blocks": round(waited, _DIGITS),
                "arithmetic_used": round(used, _DIGITS),
            }

    def _backlog(self) -> dict[str, int]:
        """Return what was still waiting when the last request had arrived."""
        last = max((r.arrival_ps for r in self._requests if not r.rejected), default=0)
        open_then = [
            r
            for r in self._requests
            if not r.rejected and r.arrival_ps <= last and not 0 <= r.last_ps <= last
        ]
        waiting = [r for r in open_then if not 0 <= r.prefill_start_ps <= last]
        return {
            "open_at_last_arrival": len(open_then),
            "waiting_at_last_arrival": len(waiting),
            "drained_ps": max((r.last_ps for r in open_then), default=last) - last,
        }

    def _break_even(self, request: Request) -> int:
        """Return the rate in byte/s above which the cache moves faster than it is computed."""
        computed = request.prefill_end_ps - request.prefill_start_ps
        if computed <= 0 or not request.kv_bytes:
            return 0
        return request.kv_bytes * PS_PER_S // computed

    def _slo(self, done: Sequence[Request], span_ps: int) -> dict[str, Any]:
        """Count the requests that met every limit; rejected and unfinished ones are misses."""
        slo = self._workload.slo
        assert slo is not None
        met = sum(
            (slo.ttft is None or request.ttft_ps <= slo.ttft)
            and (slo.tpot is None or (request.tpot_ps or 0) <= slo.tpot)
            for request in done
        )
        limits = {"ttft_ps": slo.ttft, "tpot_ps": slo.tpot}
        return {
            **{name: limit for name, limit in limits.items() if limit is not None},
            "met": met,
            "share": round(met / len(self._requests), _DIGITS),
            "per_s": round(met * PS_PER_S / span_ps, _DIGITS) if span_ps > 0 else 0.0,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per request for ``requests.csv``; None where it did not come so far."""
        return [self._row(request) for request in self._requests]

    def _row(self, request: Request) -> dict[str, Any]:
        def mark(time_ps: int) -> int | None:
            return time_ps if time_ps >= 0 else None

        done = request.completed
        moved = request.kv_end_ps >= 0
        return {
            "workload": self._context.name,
            "id": request.name,
            "status": "rejected" if request.rejected else "completed" if done else "unfinished",
            "arrival_ps": request.arrival_ps,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "prefill": mark(request.prefill),
            "decode": mark(request.decode),
            "prefill_start_ps": mark(request.prefill_start_ps),
            "prefill_end_ps": mark(request.prefill_end_ps),
            "reserved_ps": mark(request.reserved_ps),
            "kv_start_ps": mark(request.kv_start_ps),
            "kv_end_ps": mark(request.kv_end_ps),
            "first_token_ps": mark(request.first_ps),
            "end_ps": mark(request.last_ps),
            "answered_ps": mark(request.answered_ps),
            "kv_bytes": request.kv_bytes,
            "found_tokens": request.found_tokens,
            "preemptions": request.preemptions,
            "attempts": request.attempts,
            "ttft_ps": request.ttft_ps if request.first_ps >= 0 else None,
            "ttft_bound_ps": request.ttft_bound_ps if done else None,
            "tpot_ps": request.tpot_ps if done else None,
            "tpot_bound_ps": request.tpot_bound_ps if done and request.output_tokens > 1 else None,
            "kv_ps": request.kv_ps if moved else None,
            "kv_bound_ps": request.kv_bound_ps if moved else None,
            "kv_exposed_ps": request.exposed_kv_ps if moved else None,
            "queue_ps": _queue_ps(request) if done else None,
            "rejected": request.rejected or None,
        }

    def tracks(self) -> list[TrackSpan]:
        """Return the steps of every replica, for a timeline."""
        return [
            TrackSpan(
                track=f"{self._context.prefix}{replica.plan.name}",
                name=span.what,
                start_ps=span.start_ps,
                end_ps=span.end_ps,
                args={
                    "steps": span.steps,
                    "sequences": span.sequences,
                    "tokens": span.tokens,
                    "kv_blocks": span.kv_blocks,
                },
            )
            for replica in self._run.fleet.replicas
            for span in replica.ledger.spans
        ]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), _DIGITS) if values else 0.0


def _queue_ps(request: Request) -> int:
    """Return what a request waited for its first step and for KV blocks."""
    waited = request.prefill_start_ps - request.arrival_ps
    if request.reserved_ps >= 0 and request.reserved_ps > request.prefill_end_ps:
        waited += request.reserved_ps - request.prefill_end_ps
    return waited


def _e2e_bound_ps(request: Request) -> int:
    """Return the bound of arrival to last token: the first token's and every further one's."""
    return request.ttft_bound_ps + (request.output_tokens - 1) * request.tpot_bound_ps
