# SPDX-License-Identifier: Apache-2.0
"""The workload ``serving``: the way of every request from its arrival to its last token.

A router picks a prefill replica; when the prompt has been prefilled it picks a decode replica,
which sets KV blocks aside for prompt and output before anything moves; the cache crosses the
fabric; the sequence joins the decode batch. All replicas and transfers share one fabric.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.errors import UnreachableError
from railweave.workloads.serving.decode import DecodeReplica
from railweave.workloads.serving.model import ServingModel
from railweave.workloads.serving.pools import POOLS, place_pools, plan_pool
from railweave.workloads.serving.prefill import PrefillReplica
from railweave.workloads.serving.report import ServingReport
from railweave.workloads.serving.request import Request
from railweave.workloads.serving.routers import ROUTERS
from railweave.workloads.serving.transfer import KvMover
from railweave.workloads.shapes import load_shape, shipped_models
from railweave.workloads.shapes_weights import storage_format
from railweave.workloads.workload import WorkloadContext, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import simpy

    from railweave.workloads.serving.replica import ReplicaPlan
    from railweave.workloads.shapes_model import ModelShape

__all__ = ["ServingRun"]


@workload_kind(ServingModel)
def start(workload: ServingModel, context: WorkloadContext) -> simpy.Event:
    """Check the plan, place the pools, and start the way of every request."""
    return ServingRun(workload, context).start()


class ServingRun:
    """A serving workload while it runs.

    Parameters
    ----------
    workload, context
        Its keys, and the fabric it stands on.

    Raises
    ------
    InputError
        The plan does not fit the model, the model the GPUs, or the pools the fabric; no request
        can be served.
    """

    def __init__(self, workload: ServingModel, context: WorkloadContext) -> None:
        self._workload, self._context = workload, context
        if workload.kv_transfer == "stream":
            raise context.error(
                "layer-wise streaming of the KV cache is not in this version",
                at=("kv_transfer",),
                expected="pull | push",
            )
        with context.at("router"):
            router = ROUTERS.get(workload.router)
        self.shape = self._shape()
        places = place_pools(workload, context)
        for pool in places.values():
            context.occupy(gpu for replica in pool for gpu in replica)
        with context.at():
            dtype = None if workload.dtype is None else storage_format(self.shape, workload.dtype)
        hosts = [
            {int(context.fabric.host[device]) for replica in places[name] for device in replica}
            for name in POOLS
        ]
        plans = {
            name: plan_pool(
                name,
                places[name],
                self.shape,
                workload,
                context,
                dtype=dtype,
                shared_hosts=hosts[0] & hosts[1],
            )
            for name in POOLS
        }
        self._mover = KvMover(
            shape=self.shape,
            prefill_tp=workload.prefill.tp,
            prefill_pp=workload.prefill.pp,
            decode_tp=workload.decode.tp,
            block=workload.block,
            kv_dtype=workload.kv_dtype,
            prefix=context.prefix,
        )
        self._check_routes(plans)
        self.requests = self._requests(plans)
        self.prefill = [
            PrefillReplica(
                plan,
                context.env,
                context.engine,
                max_tokens=workload.max_num_batched_tokens,
                tag=f"{context.prefix}{plan.name}",
            )
            for plan in plans["prefill"]
        ]
        self.decode = [
            DecodeReplica(
                plan,
                context.env,
                context.engine,
                max_num_seqs=workload.max_num_seqs,
                tag=f"{context.prefix}{plan.name}",
            )
            for plan in plans["decode"]
        ]
        self._to_prefill = router(context.random("router", "prefill"))
        self._to_decode = router(context.random("router", "decode"))

    def start(self) -> simpy.Event:
        """Start the way of every request and return the event of the last one's end."""
        context = self._context
        report = ServingReport(self._workload, context, self.requests, self.prefill, self.decode)
        context.findings.serving[context.name] = report.summary
        context.findings.requests.append(report.rows)
        context.findings.waiting.append(self._waiting)
        served = [request for request in self.requests if not request.rejected]
        return context.env.all_of([context.env.process(self._serve(request)) for request in served])

    def _serve(self, request: Request) -> Generator[simpy.Event, Any, None]:
        context, env = self._context, self._context.env
        yield env.timeout(request.arrival_ps - int(env.now))
        request.prefill = self._to_prefill.choose(request, self.prefill)
        source = self.prefill[request.prefill]
        request.doing = f"its turn at {source.plan.name}"
        source.connections += 1
        yield source.prefill(request)
        source.connections -= 1

        request.decode = self._to_decode.choose(request, self.decode)
        target = self.decode[request.decode]
        request.doing = f"KV blocks of {target.plan.name}"
        target.connections += 1
        yield target.reserve(request, request.prompt_tokens + request.output_tokens)
        request.reserved_ps = int(env.now)
        request.doing = f"its KV cache from {source.plan.name} at {target.plan.name}"
        yield from self._mover.move(
            request, source.plan, target.plan, env=env, engine=context.engine
        )
        request.kv_end_ps = int(env.now)
        source.release(request)  # the decode side has acknowledged

        request.doing = f"its tokens from {target.plan.name}"
        yield target.decode(request)
        target.connections -= 1
        self._check_bounds(request, source, target)

    def _check_bounds(
        self, request: Request, source: PrefillReplica, target: DecodeReplica
    ) -> None:
        """Put the bounds beside what was measured; raise `PhysicsError` if one was beaten."""
        engine = self._context.engine
        request.tpot_bound_ps = target.bound_ps(request)
        request.ttft_bound_ps = (
            source.bound_ps(request) + request.kv_bound_ps + request.tpot_bound_ps
        )
        name = f"request {request.name}"
        engine.check_bound(
            f"the KV cache of {name}", took_ps=request.kv_ps, bound_ps=request.kv_bound_ps
        )
        engine.check_bound(
            f"the first token of {name}", took_ps=request.ttft_ps, bound_ps=request.ttft_bound_ps
        )
        if request.tpot_ps is not None:
            engine.check_bound(
                f"a token of {name}", took_ps=request.tpot_ps, bound_ps=request.tpot_bound_ps
            )

    def _waiting(self) -> Iterator[str]:
        """Say what each unfinished request waits for."""
        for replica in (*self.prefill, *self.decode):
            yield from replica.waiting()
        for request in self.requests:
            if not request.rejected and not request.completed:
                yield f"request {request.name} waits for {request.doing}"

    # ------------------------------------------------------------------ before time begins
    def _shape(self) -> ModelShape:
        context, model = self._context, self._workload.model
        with context.at():
            if model.lower() in shipped_models() or Path(model).is_absolute():
                return load_shape(model)
            path = context.base / model
            return load_shape(path if path.exists() else model)

    def _requests(self, plans: dict[str, list[ReplicaPlan]]) -> list[Request]:
        """Return the requests, those that can never be served marked."""
        workload, context = self._workload, self._context
        with context.at():
            arrivals = workload.arrivals(context.base)
        requests = [
            Request.of(number, asked, start_ps=workload.start)
            for number, asked in enumerate(arrivals)
        ]
        for request in requests:
            request.rejected = self._why_never(request, plans)
        refused = [request for request in requests if request.rejected]
        if len(refused) == len(requests):
            raise context.error(
                f"no request can be served: {refused[0].name} {refused[0].rejected}",
                at=("trace" if workload.trace is not None else "requests",),
                expected="requests that fit the model and the KV cache of one replica",
            )
        if refused:
            context.findings.warn(
                f"{len(refused)} of {len(requests)} requests were rejected: "
                f"{refused[0].name} {refused[0].rejected}"
                + (" (and others)" if len(refused) > 1 else "")
            )
        return requests

    def _why_never(self, request: Request, plans: dict[str, list[ReplicaPlan]]) -> str:
        longest = self.shape.max_positions
        total = request.prompt_tokens + request.output_tokens
        if longest is not None and total > longest:
            return f"has {total} tokens, more than the {longest} of {self.shape.name}"
        for name, tokens in (("prefill", request.prompt_tokens), ("decode", total)):
            least = min(plans[name], key=lambda plan: plan.blocks)
            if least.blocks_of(tokens) > least.blocks:
                return (
                    f"needs {least.blocks_of(tokens)} KV blocks for {tokens} tokens, and "
                    f"{least.name} has {least.blocks}"
                )
        return ""

    def _check_routes(self, plans: dict[str, list[ReplicaPlan]]) -> None:
        """Refuse, before anything has run, pools that the fabric does not join."""
        context = self._context
        with context.at("decode", "tp"):
            transfers = self._mover.matrix(1).transfers
        pairs = [
            (source.devices[flow.src_rank], target.devices[flow.dst_rank])
            for source in plans["prefill"]
            for target in plans["decode"]
            for flow in transfers
        ]
        for plan in (*plans["prefill"], *plans["decode"]):
            pairs += [(a, b) for a in plan.devices for b in plan.devices if a != b]
        try:
            self._route(pairs)
        except UnreachableError:
            with context.at():
                for pair in pairs:
                    self._route([pair])
            raise

    def _route(self, pairs: Sequence[tuple[int, int]]) -> None:
        ends = np.array(pairs, np.int32).reshape(-1, 2)
        qp = np.zeros(len(ends), np.int32)
        self._context.routing.routes(ends[:, 0].copy(), ends[:, 1].copy(), qp)
