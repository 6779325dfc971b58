# SPDX-License-Identifier: Apache-2.0
"""The eight questions of a serving review, each answered with its figures and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from railweave.fabric.units import PS_PER_S
from railweave.workloads.shapes import kv_bytes, weight_bytes
from railweave.workloads.sizing.signals import plural, router_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.workloads.parallelism import ParallelismPlan
    from railweave.workloads.sizing.case import Case
    from railweave.workloads.sizing.profile import Spread

__all__ = ["Answer", "answers"]

_CHUNK: Final = 8192  # prompt tokens of a step, as max_num_batched_tokens of `kind: serving`
_SHARE: Final = 0.2  # of compute time that collectives may add before the link is said to bind
_REPETITIVE: Final = 0.1
_LONG: Final = 8192


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question and what is to be said to it.

    Parameters
    ----------
    key
        Its name in JSON.
    question, answer, reason
        For people; the reason has the figures that decide.
    figures
        The figures by name, units in the names.
    """

    key: str
    question: str
    answer: str
    reason: str
    figures: dict[str, Any]


def answers(case: Case) -> list[Answer]:
    """Return the answers in the order in which a review asks; only the first if nothing fits."""
    asked = _QUESTIONS if case.fit.fits else _QUESTIONS[:1]
    return [Answer(key=key, question=question, **ask(case)) for key, question, ask in asked]


def _gb(value: float) -> str:
    return f"{value / 1e9:,.2f} GB"


def _s(value_ps: float) -> str:
    return f"{value_ps / PS_PER_S:,.3f} s" if value_ps >= PS_PER_S else f"{value_ps / 1e9:,.2f} ms"


def _spread(spread: Spread) -> dict[str, float]:
    return {"mean": spread.mean, "p50": spread.p50, "p99": spread.p99, "largest": spread.largest,
            "cv": spread.cv}  # fmt: skip


def _plan(plan: ParallelismPlan) -> str:
    return f"tp {plan.tp}" + (f", pp {plan.pp}" if plan.pp > 1 else "")


def _fits_one(case: Case) -> dict[str, Any]:
    weights = weight_bytes(case.shape, dtype=case.dtype)
    usable = int(case.fraction * case.gpu.memory_bytes)
    said = f"{_gb(weights)} of weights, {_gb(usable)} usable of {_gb(case.gpu.memory_bytes)}"
    if case.alone.fits:
        answer, reason = "yes", f"{said}: the longest request of the trace fits beside them"
    elif weights <= usable:
        answer = "the weights do, the longest request does not"
        reason = f"{said}; {case.longest:,} tokens of cache are more than the rest"
    else:
        answer, reason = "no", said
    return {
        "answer": answer,
        "reason": reason,
        "figures": {
            "fits_one_gpu": case.alone.fits,
            "weight_bytes": weights,
            "usable_bytes": usable,
            "least_gpus": case.plan.n_ranks,
        },
    }


def _left(case: Case) -> dict[str, Any]:
    room = case.fit.kv_capacity_tokens
    paged, whole = case.users(paged=True), case.users(paged=False)
    ratio = f"{float(paged.users / whole.users):.1f} times as many" if whole.users else "no other"
    return {
        "answer": f"{_gb(case.fit.free_bytes_per_rank)} per GPU at {_plan(case.plan)}: "
        f"{room:,} tokens of cache per replica",
        "reason": f"a running sequence holds {float(paged.held_tokens):,.0f} tokens in pages of "
        f"{case.page}, so {float(paged.users):,.1f} run at once; reserving {case.longest:,} for "
        f"each, the longest here, {int(whole.users):,} would ({ratio} with pages)",
        "figures": {
            "free_bytes_per_gpu": case.fit.free_bytes_per_rank,
            "kv_bytes_per_token_per_gpu": case.fit.kv_bytes_per_token_per_rank,
            "kv_capacity_tokens": room,
            "held_tokens": float(paged.held_tokens),
            "users_at_once_paged": float(paged.users),
            "users_at_once_contiguous": int(whole.users),
            "longest_request_tokens": case.longest,
        },
    }


def _heavy(case: Case) -> dict[str, Any]:
    prompt, output = case.profile.prompt, case.profile.output
    prefill, decode = case.prefill_busy_ps, case.decode_busy_ps
    share = prefill / (prefill + decode)
    heavy = "prompt-heavy" if share > 0.6 else "generation-heavy" if share < 0.4 else "balanced"
    reuse = case.profile.reuse
    hits = reuse.hit_tokens / reuse.prompt_tokens if reuse else 0.0
    spared = (
        f"; an unbounded prefix cache would spare {hits:.0%} of the prompt tokens" if hits else ""
    )
    return {
        "answer": f"{heavy}: prefill takes {share:.0%} of a replica's compute time",
        "reason": f"{prompt.mean:,.0f} tokens in and {output.mean:,.0f} out per request; "
        f"{_s(prefill)} of prefill against {_s(decode)} of decode at "
        f"{plural(case.batch, 'sequence')} a step{spared}",
        "figures": {
            "prefill_share": share,
            "tokens_in_per_out": prompt.mean / output.mean,
            "prefill_ps_per_request": prefill,
            "decode_ps_per_request": decode,
            "decode_batch": case.batch,
            "spared_by_prefix_cache": hits if reuse else None,
        },
    }


def _repetitive(case: Case) -> dict[str, Any]:
    profile, reuse = case.profile, case.profile.reuse
    prompt = profile.prompt
    long = "long" if prompt.p50 >= _LONG else "of mixed length" if prompt.p99 >= _LONG else "short"
    lengths = f"prompts of {prompt.p50:,} tokens in the median, {prompt.p99:,} at p99"
    sessions, turns = profile.sessions
    said = (
        f"; {plural(sessions, 'conversation')} of {turns / sessions:.1f} turns" if sessions else ""
    )
    figures: dict[str, Any] = {"prompt_tokens": _spread(prompt), "conversations": sessions,
                               "turns": turns}  # fmt: skip
    if reuse is None:
        return {
            "answer": f"{long}; whether they repeat cannot be told",
            "reason": f"{lengths}{said}; the format {case.source} has no block ids, so prefixes "
            "count as never shared",
            "figures": {**figures, "hit_share": None},
        }
    share = reuse.hit_tokens / reuse.prompt_tokens
    one = case.hits_together(1) / reuse.prompt_tokens
    return {
        "answer": f"{long}, {'repetitive' if share >= _REPETITIVE else 'hardly repetitive'}: "
        f"{share:.0%} of the prompt tokens were there before",
        "reason": f"{lengths}{said}; of {reuse.blocks:,} blocks {reuse.hits:,} are in the prefix "
        f"of an earlier prompt; one replica's room would find {one:.0%} of the tokens",
        "figures": {
            **figures,
            "hit_share": share,
            "hit_share_one_replica": one,
            "blocks": reuse.blocks,
            "hit_blocks": reuse.hits,
        },
    }


def _variable(case: Case) -> dict[str, Any]:
    prompt, output, service = case.profile.prompt, case.profile.output, case.service
    gaps = case.profile.gaps_cv
    factor = (1 + service.cv**2) / 2
    how = "hardly" if service.cv < 0.5 else "moderately" if service.cv < 1 else "very"
    bursts = "" if gaps is None else f"; times between arrivals vary by {gaps:.2f} (Poisson: 1)"
    return {
        "answer": f"{how}: service times vary by {service.cv:.2f} of their mean",
        "reason": f"prompts vary by {prompt.cv:.2f} (p99 is {prompt.p99 / prompt.p50:.0f} times "
        f"the median), outputs by {output.cv:.2f}{bursts}; the queue of a server that "
        f"takes one at a time is {factor:.1f} times that of exponential service times and "
        f"{2 * factor:.1f} times that of equal ones (Pollaczek and Khinchine)",
        "figures": {
            "prompt_cv": prompt.cv,
            "output_cv": output.cv,
            "service_cv": service.cv,
            "arrival_cv": gaps,
            "queue_factor": factor,
        },
    }


def _spans(case: Case) -> dict[str, Any]:
    plan, site = case.plan, case.site
    decode = case.times.traffic("decode", case.batch)
    chunk = min(_CHUNK, case.profile.prompt.p50)
    prefill = case.times.traffic("prefill", chunk)
    computes = {
        "decode": (decode, case.step_ps),
        "prefill": (prefill, case.times.busy_prefill_ps(chunk)),
    }
    needs = {
        phase: traffic.bytes_per_rank * PS_PER_S / (_SHARE * took)
        for phase, (traffic, took) in computes.items()
    }
    figures: dict[str, Any] = {
        "gpus": plan.n_ranks,
        "hosts": case.hosts,
        "host": site.name or None,
        "nvlink_Bps": site.nvlink_Bps,
        "nic_Bps_per_gpu": site.nic_Bps,
        **{f"{phase}_bytes_per_gpu_and_step": traffic.bytes_per_rank
           for phase, (traffic, _) in computes.items()},
        **{f"{phase}_collectives_per_step": traffic.collectives
           for phase, (traffic, _) in computes.items()},
        **{f"{phase}_needs_Bps": need for phase, need in needs.items()},
        "between_stages_bytes": prefill.between_stages_bytes,
        **_handoff(case),
    }  # fmt: skip
    where = "within one host" if case.hosts == 1 else f"on {case.hosts} hosts"
    if plan.n_ranks == 1:
        answer = "one GPU: no link between GPUs is needed for the model"
    elif plan.tp == 1:
        answer = f"{plan.n_ranks} GPUs ({_plan(plan)}) {where}: NICs will do between stages"
    elif max(needs.values()) <= site.nic_Bps:
        answer = f"{plan.n_ranks} GPUs ({_plan(plan)}) {where}: NICs would do"
    else:
        answer = f"{plan.n_ranks} GPUs ({_plan(plan)}) {where}: tensor parallelism needs NVLink"
        answer += "" if site.nvlink_Bps else f", which {site.name or 'such a GPU'} has not"
    return {"answer": answer, "reason": "; ".join(_links(case, needs, figures)), "figures": figures}


def _handoff(case: Case) -> dict[str, Any]:
    """Return what a cache on its way from prefill to decode weighs, and when moving it pays."""
    prompt, rate = case.profile.prompt, case.profile.rate_per_s
    median = kv_bytes(case.shape, prompt.p50, kv_dtype=case.kv_dtype, block=case.page)
    mean = kv_bytes(case.shape, int(prompt.mean), kv_dtype=case.kv_dtype, block=case.page)
    nics_Bps = case.site.nic_Bps * case.plan.n_ranks
    return {
        "kv_bytes_median_prompt": median,
        "kv_Bps_at_trace_rate": None if rate is None else mean * rate,
        "kv_move_ps_median": int(median * PS_PER_S / nics_Bps) if nics_Bps else None,
        "prefill_ps_median": case.times.prefill_ps(prompt.p50),
        "break_even_Bps": case.times.break_even_Bps(prompt.p50),
    }


def _links(case: Case, needs: dict[str, float], figures: dict[str, Any]) -> list[str]:
    said = []
    site = case.site
    if case.plan.tp > 1:
        said.append(
            f"collectives add at most {_SHARE:.0%} to compute at {_gb(needs['prefill'])}/s per GPU "
            f"in prefill and {_gb(needs['decode'])}/s in decode, "
            f"{figures['decode_collectives_per_step']:,} of them one after another per step"
        )
        for name, rate_Bps in (("NVLink", site.nvlink_Bps), ("a NIC", site.nic_Bps)):
            if rate_Bps:
                adds = [f"{_SHARE * needs[phase] / rate_Bps:.0%} in {phase}" for phase in needs]
                said.append(f"{name} of {_gb(rate_Bps)}/s makes them {' and '.join(adds)}")
    if case.plan.pp > 1:
        said.append(
            f"each GPU passes {figures['between_stages_bytes']:,} B to the next stage per prefill "
            "step"
        )
    moved = figures["kv_move_ps_median"]
    if moved is not None:
        said.append(
            f"with prefill on another replica the cache of the median prompt, "
            f"{_gb(figures['kv_bytes_median_prompt'])}, takes {_s(moved)} through all NICs of a "
            f"replica after {_s(figures['prefill_ps_median'])} of prefill"
        )
    said.append(
        f"below {_gb(figures['break_even_Bps'])}/s computing it again is sooner than moving it"
    )
    return said


def _signals(case: Case) -> dict[str, Any]:
    signals = router_signals(case)
    needed = [signal for signal in signals if signal.needed]
    return {
        "answer": ", ".join(signal.name for signal in needed) or "none: any router will do",
        "reason": "; ".join(f"{signal.name}: {signal.reason}" for signal in signals),
        "figures": {
            "signals": [
                {"name": signal.name, "needed": signal.needed, **signal.figures}
                for signal in signals
            ]
        },
    }


def _together(case: Case) -> dict[str, Any]:
    plan = case.plan
    loaded = case.fit.weight_bytes_per_rank
    load_ps = int(loaded * PS_PER_S / case.site.nic_Bps) if case.site.nic_Bps else None
    again_ps = case.batch * case.times.prefill_ps(max(1, case.context))
    group = "each GPU is a replica of its own"
    if plan.n_ranks > 1:
        group = f"the {plan.n_ranks} GPUs of a replica, as one group"
    rate = case.profile.rate_per_s
    if rate is None:
        least = "all requests arrive at once, so the trace does not say how many replicas it needs"
    else:
        least = (
            f"{rate:.2f} requests/s keep {case.replicas:,} busy, so that one group is "
            f"{1 / case.replicas:.0%} of the capacity"
        )
    wait = "" if load_ps is None else f", {_s(load_ps)} at the rate of its NIC"
    return {
        "answer": f"{group} on {plural(case.hosts, 'host')}",
        "reason": f"every step needs all ranks: one lost GPU stops {plan.n_ranks} and the "
        f"{plural(case.batch, 'sequence')} that run there, {_s(again_ps)} of prefill to do again; "
        f"a new replica loads {_gb(loaded)} on every GPU{wait}; {least}",
        "figures": {
            "group_gpus": plan.n_ranks,
            "group_hosts": case.hosts,
            "sequences_lost": case.batch,
            "recompute_ps": again_ps,
            "load_bytes_per_gpu": loaded,
            "load_ps": load_ps,
            "replicas_at_trace_rate": case.replicas,
        },
    }


_QUESTIONS: Final[tuple[tuple[str, str, Callable[[Case], dict[str, Any]]], ...]] = (
    ("one-gpu", "Does the model fit on one GPU?", _fits_one),
    ("memory-left", "How much memory remains after the weights?", _left),
    ("prompt-or-generation", "Is the workload prompt- or generation-heavy?", _heavy),
    ("prefix-reuse", "Are conversations long or repetitive?", _repetitive),
    ("variability", "How variable are request sizes?", _variable),
    ("interconnect", "Does it span GPUs or nodes, and what must join them?", _spans),
    ("router-signals", "Which signals must the router see?", _signals),
    ("groups", "Which workers must scale and recover together?", _together),
)
