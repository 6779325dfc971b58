# SPDX-License-Identifier: Apache-2.0
"""The serving review of ``railweave size --trace``: what is asked, and how it is shown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.errors import InputError
from railweave.tools.output import emit, emit_json, note

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.workloads.traces import Trace, TraceRequest

__all__ = ["refuse_beside_trace", "review_of", "show_review"]

_WIDTH: Final = 96
_NAMED: Final = 5


def refuse_beside_trace(*, tokens: int | None, dp: int) -> None:
    """Refuse options that a trace answers itself.

    Raises
    ------
    InputError
        One of them is given.
    """
    if tokens is not None:
        raise InputError(
            "the trace says how long requests are", field="--tokens", expected="one of both"
        )
    if dp != 1:
        raise InputError("the trace says how many replicas are busy", field="--dp",
                         expected="one of both")  # fmt: skip


def review_of(
    model: str,
    gpu: str,
    trace: Path,
    *,
    read: dict[str, Any],
    host: str | None,
    degrees: tuple[int, int, int] | None,
    fraction: float,
    dtype: str | None,
    kv_dtype: str | None,
) -> dict[str, Any]:
    """Return the review as one JSON-ready object.

    Parameters
    ----------
    model, gpu, trace
        What was named.
    read
        Options of `read_trace`.
    host
        Host of the catalogue, or None for one that has such GPUs.
    degrees
        tp, pp and ep of a replica, or None: the fewest GPUs that hold the model.
    fraction, dtype, kv_dtype
        As for ``railweave size``.

    Raises
    ------
    InputError
        Bad names, degrees or trace; no request fits the model's window.
    """
    from railweave.fabric.devices import gpu_model
    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.shapes import load_shape
    from railweave.workloads.sizing.case import Case, find_site, least_plan
    from railweave.workloads.sizing.questions import answers
    from railweave.workloads.traces import read_trace

    shape, device = load_shape(model), gpu_model(gpu)
    site = find_site(device, host)
    found = read_trace(trace, **read)
    requests, beyond = _within(found, shape.max_positions, shape.name)
    numbers: dict[str, Any] = {"fraction": fraction, "dtype": dtype, "kv_dtype": kv_dtype}
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    if degrees is not None:
        plan: ParallelismPlan | None = ParallelismPlan(degrees[0], degrees[1], ep=degrees[2])
    else:
        plan = least_plan(shape, device, site, tokens=longest, **numbers)
    case = Case(
        shape=shape,
        gpu=device,
        site=site,
        plan=plan or ParallelismPlan(),
        requests=requests,
        beyond=beyond,
        source=found.format,
        **numbers,
    )
    fits = plan is not None and case.fit.fits
    profile = case.profile
    return {
        "model": shape.name,
        "gpu": device.name,
        "host": site.name or None,
        "memory_fraction": fraction,
        "tp": case.plan.tp,
        "pp": case.plan.pp,
        "ep": case.plan.ep,
        "fits": fits,
        "trace": {
            "file": found.file,
            "format": found.format,
            "requests": profile.requests,
            "beyond_window_rows": list(beyond),
            "span_ps": profile.span_ps,
            "rate_per_s": profile.rate_per_s,
            "notes": list(found.notes),
        },
        "questions": [
            {
                "id": answer.key,
                "question": answer.question,
                "answer": answer.answer,
                "reason": answer.reason,
                "figures": answer.figures,
            }
            for answer in answers(case)
        ],
    }


def _within(
    trace: Trace, window: int | None, model: str
) -> tuple[list[TraceRequest], tuple[int, ...]]:
    """Return the requests that fit the model's window, and the rows of those that do not."""
    if window is None:
        return list(trace.requests), ()
    fitting = [r for r in trace.requests if r.prompt_tokens + r.output_tokens <= window]
    beyond = tuple(
        sorted(r.row for r in trace.requests if r.prompt_tokens + r.output_tokens > window)
    )
    if not fitting:
        raise InputError(
            f"no request fits the window of {model}",
            file=trace.file,
            expected=f"prompt and output of at most {window} tokens",
        )
    return fitting, beyond


def show_review(review: dict[str, Any], *, as_json: bool) -> None:
    """Print a review: the answers on stdout, what was done with odd rows on stderr."""
    trace = review["trace"]
    rows = trace["beyond_window_rows"]
    for said in trace["notes"]:
        note(f"note: {trace['file']}: {said}")
    if rows:
        named = ", ".join(map(str, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")
        note(
            f"note: {trace['file']}: {len(rows):,} requests are longer than the window of "
            f"{review['model']} and left out (lines {named})"
        )
    if as_json:
        emit_json(review)
        return
    degrees = "  ".join(f"{name} {review[name]}" for name in ("tp", "pp", "ep")
                        if name == "tp" or review[name] > 1)  # fmt: skip
    rate = trace["rate_per_s"]
    arrive = "all at once" if rate is None else f"{rate:.2f} requests/s"
    emit(
        f"{review['model']} on {review['gpu']}  {degrees}  for {trace['requests']:,} requests of "
        f"{trace['file']} ({trace['format']}, {arrive})"
    )
    for number, question in enumerate(review["questions"], start=1):
        emit(f"\n{number}. {question['question']}")
        emit(_wrapped(question["answer"], first="   "))
        emit(_wrapped(question["reason"], first="   because "))
    if not review["fits"]:
        emit(f"\nIt does not fit: {_why(review)}.")


def _why(review: dict[str, Any]) -> str:
    if review["tp"] * review["pp"] == 1:
        return "no division over hosts of this kind holds the weights and the longest request"
    return f"not with tp {review['tp']} and pp {review['pp']}; leave both out for the fewest GPUs"


def _wrapped(text: str, *, first: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=" " * 11)
