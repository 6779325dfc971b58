# SPDX-License-Identifier: Apache-2.0
"""Results of ``vllm bench serve --save-result --save-detailed``: what was sent, and when.

One JSON object with the lists ``input_lens``, ``output_lens`` and ``start_times`` (seconds of a
monotonic clock), a request per place (vllm-project/vllm, ``vllm/benchmarks/serve.py``). Where there
are ``queue_times``, the time that the client held a request back, they are taken off again: the
arrival is when the request was made, not when it was sent. A request with an entry in ``errors``
failed and has no output; it is left out unless asked for otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from railweave.fabric.errors import InputError
from railweave.workloads.traces.formats import (
    TraceRow,
    count_of,
    json_object,
    seconds_ps,
    trace_format,
)

__all__ = ["parse"]

_KEYS: Final = ("input_lens", "output_lens", "start_times")
_SIGNS: Final = ("completed", "request_throughput")  # of every result, detailed or not


@trace_format(
    "vllm-bench",
    keys=(*_KEYS, *_SIGNS),
    output_key="output_lens",
    empty_output="drop",
    row="entry",
)
def parse(text: str, file: str) -> list[TraceRow]:
    """Return the requests of a result of ``vllm bench serve``; see the module."""
    try:
        result = json_object(text)
        lists = {key: _list(result, key) for key in _KEYS}
        prompts, outputs, starts = lists.values()
        size = len(prompts)
        held = _list(result, "queue_times") if "queue_times" in result else [0] * size
        errors = _list(result, "errors") if "errors" in result else [""] * size
        named = {**lists, "queue_times": held, "errors": errors}
        for key, values in named.items():
            if len(values) != size:
                raise InputError(
                    f"has {len(values)} entries", field=key, expected=f"{size} as input_lens"
                )
        rows = []
        for i in range(size):
            failed = bool(errors[i])
            sent_ps = seconds_ps(starts[i], f"start_times[{i}]")
            held_ps = seconds_ps(held[i], f"queue_times[{i}]")
            if held_ps > sent_ps:
                raise InputError("is more than start_times", field=f"queue_times[{i}]",
                                 expected="the part of it before the request was sent")  # fmt: skip
            rows.append(
                TraceRow(
                    line=i + 1,
                    at_ps=sent_ps - held_ps,
                    prompt_tokens=count_of(prompts[i], f"input_lens[{i}]", least=int(not failed)),
                    output_tokens=0 if failed else count_of(outputs[i], f"output_lens[{i}]"),
                )
            )
    except InputError as error:
        raise error.located(file=file) from None
    return rows


def _list(result: dict[str, Any], key: str) -> list[Any]:
    if key not in result:
        raise InputError(
            f"there is no {key}", expected="a result saved with --save-result --save-detailed"
        )
    found = result[key]
    if not isinstance(found, list):
        raise InputError("is not a list", field=key, expected="a list with a place per request")
    return found
