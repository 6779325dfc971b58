# SPDX-License-Identifier: Apache-2.0
"""The metrics of a run under the names that ``vllm bench serve`` gives them.

vllm-project/vllm, ``vllm/benchmarks/serve.py``: times in ms, throughputs per s; percentiles are
linear interpolations there and nearest ranks here, standard deviations those of the population.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from railweave.fabric.units import PS_PER_S
from railweave.workloads.stats import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.workloads.serving.request import Request
    from railweave.workloads.serving.spread import Counted

__all__ = ["bench_metrics"]

_PS_PER_MS = 10**9


def _ms(time_ps: float) -> float:
    return round(time_ps / _PS_PER_MS, 9)


def _times(name: str, values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        f"mean_{name}_ms": _ms(sum(ordered) / len(ordered)),
        f"median_{name}_ms": _ms(statistics.median(ordered)),
        f"std_{name}_ms": _ms(statistics.pstdev(ordered)),
        f"p99_{name}_ms": _ms(nearest_rank(ordered, 99)),
    }


def bench_metrics(
    done: Sequence[Request],
    gaps: Counted,
    span_ps: int,
    slo: Mapping[str, Any] | None,
    *,
    failed: int,
) -> dict[str, Any]:
    """Return the metrics of completed requests.

    Parameters
    ----------
    done
        Requests that were served.
    gaps
        Times between tokens.
    span_ps
        From the start to the last token.
    slo
        Requests that met every limit, as the report has them.
    failed
        Requests that were rejected or not finished.
    """
    prompt = sum(request.prompt_tokens for request in done)
    output = sum(request.output_tokens for request in done)
    found: dict[str, Any] = {
        "completed": len(done),
        "failed": failed,
        "duration": round(span_ps / PS_PER_S, 9),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
    }
    if span_ps > 0:
        per_s = PS_PER_S / span_ps
        found["request_throughput"] = round(len(done) * per_s, 6)
        found["output_throughput"] = round(output * per_s, 6)
        found["total_token_throughput"] = round((prompt + output) * per_s, 6)
        if slo is not None:
            found["request_goodput"] = round(slo["met"] * per_s, 6)
    found |= _times("ttft", [request.ttft_ps for request in done])
    found |= _times("tpot", [r.tpot_ps for r in done if r.tpot_ps is not None])
    if gaps.count:
        found |= {
            "mean_itl_ms": _ms(gaps.mean),
            "median_itl_ms": _ms(gaps.percentile(50)),
            "std_itl_ms": _ms(gaps.deviation()),
            "p99_itl_ms": _ms(gaps.percentile(99)),
        }
    return found | _times("e2el", [request.e2e_ps for request in done])
