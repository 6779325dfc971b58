# SPDX-License-Identifier: Apache-2.0
"""What a serving workload tells: times beside their bounds, bytes, and how busy the pools were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import PS_PER_S
from railweave.workloads.stats import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.workloads.serving.decode import DecodeReplica
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.prefill import PrefillReplica
    from railweave.workloads.serving.replica import Replica
    from railweave.workloads.serving.request import Request
    from railweave.workloads.workload import WorkloadContext

__all__ = ["ServingReport", "distribution"]

_DIGITS: Final = 6


def distribution(values: Sequence[int], bounds: Sequence[int] = ()) -> dict[str, int]:
    """Return count, mean (rounded down), nearest-rank percentiles and maximum, beside the bounds'.

    Examples
    --------
    >>> distribution([30, 10, 21], [9, 8, 7])["bound_mean"]
    8
    """
    if not values:
        return {"count": 0}
    ordered, least = sorted(values), sorted(bounds)
    found = {
        "count": len(ordered),
        "mean": sum(ordered) // len(ordered),
        "p50": nearest_rank(ordered, 50),
        "p99": nearest_rank(ordered, 99),
        "max": ordered[-1],
    }
    if least:
        found["bound_mean"] = sum(least) // len(least)
        found["bound_p50"] = nearest_rank(least, 50)
        found["bound_p99"] = nearest_rank(least, 99)
    return found


class ServingReport:
    """Looks at the requests and replicas of a run, at its end or before.

    Parameters
    ----------
    workload, context
        What was asked for.
    requests, prefill, decode
        What is at work.
    """

    def __init__(
        self,
        workload: ServingModel,
        context: WorkloadContext,
        requests: Sequence[Request],
        prefill: Sequence[PrefillReplica],
        decode: Sequence[DecodeReplica],
    ) -> None:
        self._workload, self._context = workload, context
        self._requests, self._prefill, self._decode = requests, prefill, decode

    def summary(self) -> dict[str, Any]:
        """Return the ``serving`` object of ``result.json``.

        Times are of completed requests. ``queue_ps`` is what a request waited for its prefill step
        and for KV blocks of the decode replica.
        """
        done = [request for request in self._requests if request.completed]
        several = [request for request in done if request.tpot_ps is not None]
        summary: dict[str, Any] = {
            "model": self._workload.model,
            "router": self._workload.router,
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
            "kv_transfer_ps": distribution(
                [request.kv_ps for request in done], [request.kv_bound_ps for request in done]
            ),
            "queue_ps": distribution(
                [
                    request.prefill_start_ps
                    - request.arrival_ps
                    + request.reserved_ps
                    - request.prefill_end_ps
                    for request in done
                ]
            ),
            "e2e_ps": distribution(
                [request.last_ps - request.arrival_ps for request in done],
                [_e2e_bound_ps(request) for request in done],
            ),
            "kv_bytes": sum(request.kv_bytes for request in done),
            "prefill": self._pool(self._prefill),
            "decode": self._pool(self._decode),
        }
        steps = sum(replica.steps for replica in self._decode)
        tokens = sum(replica.tokens for replica in self._decode)
        summary["decode"]["mean_batch"] = round(tokens / steps, _DIGITS) if steps else 0.0
        span_ps = max((request.last_ps for request in done), default=0) - self._workload.start
        if span_ps > 0:
            summary["output_tokens_per_s"] = round(tokens * PS_PER_S / span_ps, 3)
        if self._workload.slo is not None:
            summary["slo"] = self._slo(done)
        return summary

    def _pool(self, replicas: Sequence[PrefillReplica] | Sequence[DecodeReplica]) -> dict[str, Any]:
        span_ps = int(self._context.env.now) - self._workload.start
        stages = sum(len(replica.plan.stages) for replica in replicas)
        busy_ps = sum(replica.busy_ps for replica in replicas)
        first: Replica = replicas[0]
        return {
            "replicas": len(replicas),
            "gpus": sum(len(replica.plan.devices) for replica in replicas),
            "steps": sum(replica.steps for replica in replicas),
            "utilisation": round(busy_ps / (stages * span_ps), _DIGITS) if span_ps > 0 else 0.0,
            "kv_capacity_tokens": first.plan.blocks * first.plan.block_tokens,
        }

    def _slo(self, done: Sequence[Request]) -> dict[str, Any]:
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
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per request for ``requests.csv``; None where it did not come so far."""
        return [self._row(request) for request in self._requests]

    def _row(self, request: Request) -> dict[str, Any]:
        def mark(time_ps: int) -> int | None:
            return time_ps if time_ps >= 0 else None

        done = request.completed
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
            "kv_start_ps": mark(request.reserved_ps),
            "kv_end_ps": mark(request.kv_end_ps),
            "first_token_ps": mark(request.first_ps),
            "end_ps": mark(request.last_ps),
            "kv_bytes": request.kv_bytes,
            "ttft_ps": request.ttft_ps if request.first_ps >= 0 else None,
            "ttft_bound_ps": request.ttft_bound_ps if done else None,
            "tpot_ps": request.tpot_ps if done else None,
            "tpot_bound_ps": request.tpot_bound_ps if done and request.output_tokens > 1 else None,
            "kv_ps": request.kv_ps if request.kv_end_ps >= 0 else None,
            "kv_bound_ps": request.kv_bound_ps if request.kv_end_ps >= 0 else None,
        }


def _e2e_bound_ps(request: Request) -> int:
    """Return the bound of arrival to last token: the first token's and every further one's."""
    return request.ttft_bound_ps + (request.output_tokens - 1) * request.tpot_bound_ps
