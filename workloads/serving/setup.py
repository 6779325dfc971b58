# SPDX-License-Identifier: Apache-2.0
"""What is made before time begins: the model's shape, replicas at their places, requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import UnreachableError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.serving.batching import BATCHINGS
from railweave.workloads.serving.lockstep import Lockstep
from railweave.workloads.serving.memory import MEMORIES
from railweave.workloads.serving.memory.prefix_cache import PrefixCache
from railweave.workloads.serving.placing import place_pools, placed_replicas
from railweave.workloads.serving.pools import plan_pool
from railweave.workloads.serving.replica import Replica
from railweave.workloads.serving.request import Request
from railweave.workloads.shapes import load_shape, shipped_models
from railweave.workloads.shapes_weights import storage_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from railweave.workloads.serving.arrivals import Arrivals
    from railweave.workloads.serving.frontend import Frontend
    from railweave.workloads.serving.handoff.mover import KvMover
    from railweave.workloads.serving.memory import KvMemory
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.replica_plan import ReplicaPlan
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.workload import WorkloadContext

__all__ = ["check_routes", "find_shape", "make_replicas", "make_requests", "plan_replicas"]

LATEST_PS: Final = 2**62  # times of engines end here


def find_shape(workload: ServingModel, context: WorkloadContext) -> ModelShape:
    """Return the shape of the workload's model."""
    model = workload.model
    with context.at():
        if model.lower() in shipped_models() or Path(model).is_absolute():
            return load_shape(model)
        path = context.base / model
        return load_shape(path if path.exists() else model)


def plan_replicas(
    workload: ServingModel, context: WorkloadContext, shape: ModelShape
) -> dict[str, list[ReplicaPlan]]:
    """Place the pools and plan their replicas, by pool."""
    places = place_pools(workload.pools, placed_replicas(workload), context)
    for pool in places.values():
        context.occupy(gpu for replica in pool for gpu in replica)
    with context.at():
        dtype = None if workload.dtype is None else storage_format(shape, workload.dtype)
    hosts = [
        {int(context.fabric.host[device]) for replica in pool for device in replica}
        for pool in places.values()
    ]
    shared = hosts[0] & hosts[1] if len(hosts) > 1 else set()
    if len(hosts) > 1 and workload.kv_transfer.nic != "affine":
        shared |= hosts[0]
    return {
        name: plan_pool(
            name, places[name], shape, workload, context, dtype=dtype, shared_hosts=shared
        )
        for name in places
    }


def make_replicas(
    plans: Mapping[str, Sequence[ReplicaPlan]],
    workload: ServingModel,
    context: WorkloadContext,
    shape: ModelShape,
    requests: Sequence[Request],
) -> dict[str, list[Replica]]:
    """Return the replicas by pool."""
    hash_tokens = _hash_tokens(workload, context, shape, requests)
    with context.at("kv_memory"):
        memory = MEMORIES.get(workload.kv_memory)
    with context.at("batching"):
        batching = BATCHINGS.get(workload.batching)
    longest = longest_sequence(workload, shape, requests)
    together: dict[str, Lockstep] = {}

    def lockstep(plan: ReplicaPlan) -> Lockstep | None:
        if plan.wide is None:
            return None
        name = plan.group_name
        if name not in together:
            tag = f"{context.prefix}{name}"
            together[name] = Lockstep(plan.wide, context.env, context.engine, tag=tag)
        return together[name]

    def make(plan: ReplicaPlan) -> Replica:
        pool = workload.pools[plan.pool]
        cache = None
        if hash_tokens:
            per_id = hash_tokens // workload.block
            bounded = workload.prefix_cache == "lru"
            cache = PrefixCache(hash_tokens, per_id, bounded=bounded)
        own: KvMemory = memory(
            plan.blocks, plan.block_tokens, longest=longest, cache=cache,
            clock=lambda: int(context.env.now),
        )  # fmt: skip
        return Replica(
            plan,
            context.env,
            context.engine,
            memory=own,
            batching=batching(
                own,
                max_num_seqs=pool.max_num_seqs or workload.max_num_seqs,
                max_tokens=pool.max_num_batched_tokens or workload.max_num_batched_tokens,
                chunked=workload.chunked_prefill,
            ),
            tag=f"{context.prefix}{plan.name}",
            lockstep=lockstep(plan),
        )

    return {name: [make(plan) for plan in pool] for name, pool in plans.items()}


def longest_sequence(workload: ServingModel, shape: ModelShape, requests: Sequence[Request]) -> int:
    """Return the most tokens that a sequence may have."""
    if workload.max_model_len is not None:
        return workload.max_model_len
    if shape.max_positions is not None:
        return shape.max_positions
    return max(request.prompt_tokens + request.output_tokens for request in requests)


def _hash_tokens(
    workload: ServingModel,
    context: WorkloadContext,
    shape: ModelShape,
    requests: Sequence[Request],
) -> int:
    """Return the tokens that an id of the prefix cache stands for; 0 without a cache."""
    if workload.prefix_cache == "none":
        return 0
    at = ("prefix_cache",)
    if workload.kv_memory != "paged":
        raise context.error("only paged memory shares blocks", at=at, expected="kv_memory: paged")
    if any(layer.mixer is not None for layer in shape.layers):
        raise context.error(
            f"{shape.name} has recurrent states, which no block of a prompt stands for",
            at=at,
            expected="none",
        )
    sizes = sorted({request.hash_block for request in requests if request.hash_ids})
    if len(sizes) > 1:
        raise context.error(
            f"the ids of requests stand for {sizes[0]} and for {sizes[1]} tokens",
            at=at,
            expected="one size of blocks",
        )
    if not sizes:
        context.findings.warn(
            "prefix_cache: no request says what its prompt has in common with others, "
            "so nothing is ever found"
        )
        return workload.block
    if sizes[0] % workload.block:
        raise context.error(
            f"a KV block of {workload.block} tokens does not divide the {sizes[0]} that an id "
            "stands for",
            at=("block",),
            expected=f"a divisor of {sizes[0]}",
        )
    return sizes[0]


def make_requests(
    workload: ServingModel,
    context: WorkloadContext,
    shape: ModelShape,
    plans: Mapping[str, Sequence[ReplicaPlan]],
) -> tuple[list[Request], Arrivals]:
    """Return the requests, those that can never be served marked, and what sends them."""
    with context.at():
        listed = workload.listed(context.base, seed=context.seed)
    with context.at("arrivals"):
        process = workload.arrival_process(context.random("arrivals"))
        found = process.requests(None if listed is None else listed.requests)
    for note in () if listed is None else listed.notes:
        context.findings.warn(note)
    requests = [
        Request.of(number, asked, start_ps=workload.start) for number, asked in enumerate(found)
    ]
    last = max(requests, key=lambda request: request.arrival_ps)
    if last.arrival_ps >= LATEST_PS:
        rated = workload.arrivals is not None and workload.arrivals.rate_per_s is not None
        raise context.error(
            f"{last.name} arrives after {last.arrival_ps // PS_PER_S:,} s",
            at=("arrivals", "rate_per_s") if rated else (),
            expected=f"times below {LATEST_PS // PS_PER_S:,} s (2^62 ps)",
        )
    for request in requests:
        request.rejected = _why_never(request, workload, shape, plans)
    refused = [request for request in requests if request.rejected]
    said = _said(refused[0], workload) if refused else ""
    if len(refused) == len(requests):
        raise context.error(
            f"no request can be served: {said}",
            at=("trace" if workload.trace is not None else "requests",),
            expected="requests that fit the model and the KV cache of one replica",
        )
    if refused:
        more = " (and others)" if len(refused) > 1 else ""
        context.findings.warn(
            f"{len(refused)} of {len(requests)} requests were rejected: {said}{more}"
        )
    return requests, process


def _said(request: Request, workload: ServingModel) -> str:
    where = f" (row {request.row} of {workload.trace})" if request.row and workload.trace else ""
    return f"{request.name}{where} {request.rejected}"


def _why_never(
    request: Request,
    workload: ServingModel,
    shape: ModelShape,
    plans: Mapping[str, Sequence[ReplicaPlan]],
) -> str:
    total = request.prompt_tokens + request.output_tokens
    longest = workload.max_model_len or shape.max_positions
    if longest is not None and total > longest:
        of = shape.name if workload.max_model_len is None else "max_model_len"
        return f"has {total} tokens, more than the {longest} of {of}"
    for name, pool in plans.items():
        tokens = request.prompt_tokens if name == "prefill" else total
        if workload.kv_memory == "contiguous" and longest is not None:
            tokens = longest
        least = min(pool, key=lambda plan: plan.blocks)
        if least.blocks_of(tokens) > least.blocks:
            return (
                f"needs {least.blocks_of(tokens)} KV blocks for {tokens} tokens, and "
                f"{least.name} has {least.blocks}"
            )
    return ""


def check_routes(
    plans: Mapping[str, Sequence[ReplicaPlan]],
    mover: KvMover | None,
    frontend: Frontend,
    context: WorkloadContext,
) -> None:
    """Refuse, before anything has run, pools that the fabric does not join."""
    pairs = frontend.outside
    if mover is not None:
        with context.at("decode", "tp"):
            transfers = mover.matrix(1).transfers
        pairs += [
            (source.devices[flow.src_rank], target.devices[flow.dst_rank])
            for source in plans["prefill"]
            for target in plans["decode"]
            for flow in transfers
        ]
    for pool in plans.values():
        for plan in pool:
            if plan.member == 0:  # all of a group have the same
                pairs += plan.pairs
            pairs += frontend.pairs(plan)
    try:
        _route(pairs, context)
    except UnreachableError:
        with context.at():
            for pair in pairs:
                _route([pair], context)
        raise


def _route(pairs: Sequence[tuple[int, int]], context: WorkloadContext) -> None:
    ends = np.array(pairs, np.int32).reshape(-1, 2)
    qp = np.zeros(len(ends), np.int32)
    context.routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), qp)
