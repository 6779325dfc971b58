# SPDX-License-Identifier: Apache-2.0
"""The workload ``serving``: requests arrive, replicas serve them, their caches cross the fabric.

The front-end network brings a request to the gateway; the endpoint picker chooses replicas; the
prompt is prefilled, its cache moves, its tokens come out. Everything that crosses a link is a flow
or a schedule on the engine, so that it contends with everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.workloads.serving.autoscale import Autoscaler
from railweave.workloads.serving.failures import Failures
from railweave.workloads.serving.fleet import Fleet
from railweave.workloads.serving.frontend import Frontend
from railweave.workloads.serving.handoff import HANDOFFS
from railweave.workloads.serving.handoff.mover import KvMover
from railweave.workloads.serving.model import ServingModel
from railweave.workloads.serving.report import ServingReport
from railweave.workloads.serving.setup import (
    check_routes,
    find_shape,
    make_replicas,
    make_requests,
    plan_replicas,
)
from railweave.workloads.serving.waiting import waiting_lines
from railweave.workloads.serving.way import Ways
from railweave.workloads.serving.weights import WeightLoader
from railweave.workloads.workload import WorkloadContext, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import simpy

    from railweave.workloads.serving.request import Request

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
        self.shape = find_shape(workload, context)
        with context.at("kv_transfer"):
            handoff = HANDOFFS.get(workload.kv_transfer.mode)
        plans = plan_replicas(workload, context, self.shape)
        mover = None if workload.colocated is not None else self._mover()
        self.frontend = Frontend(workload.frontend, context)
        check_routes(plans, mover, self.frontend, context)
        self.requests, self._arrivals = make_requests(workload, context, self.shape, plans)
        pools = make_replicas(plans, workload, context, self.shape, self.requests)
        self.fleet = Fleet(pools, workload.router, context)
        self.ways = Ways(
            workload, context, self.fleet, self.frontend, mover, handoff if mover else None
        )
        loader = WeightLoader(workload, context, self.fleet, self.shape)
        self.failures = Failures(workload, context, self.fleet, mover, self.frontend, loader)
        self.autoscaler = Autoscaler(workload, context, self.fleet, loader)

    def _mover(self) -> KvMover:
        workload, context = self._workload, self._context
        prefill, decode = workload.pools["prefill"], workload.pools["decode"]
        return KvMover(
            shape=self.shape,
            prefill_tp=prefill.tp,
            prefill_pp=prefill.pp,
            decode_tp=decode.tp,
            decode_pp=decode.pp,
            block=workload.block,
            kv_dtype=workload.kv_dtype,
            prefix=context.prefix,
            message_ps=workload.kv_transfer.message_cost,
            nic=workload.kv_transfer.nic,
            efficiency=context.settings.efficiency(),
            routing=context.routing,
        )

    def start(self) -> simpy.Event:
        """Start the way of every request and return the event of the last one's end."""
        context = self._context
        report = ServingReport(self._workload, context, self)
        context.findings.serving[context.name] = report.summary
        context.findings.requests.append(report.rows)
        context.findings.tracks.append(report.tracks)
        context.findings.waiting.append(self._waiting)
        served = [request for request in self.requests if not request.rejected]
        self.failures.start()
        self.autoscaler.start(lambda: self.open_requests)
        self.open_requests = len(served)
        return context.env.process(self._arrivals.drive(served, self._submit, context.env))

    def _submit(self, request: Request) -> simpy.Event:
        return self._context.env.process(self._serve(request))

    def _serve(self, request: Request) -> Generator[simpy.Event, Any, None]:
        yield from self.frontend.arrive(request)
        yield from self.ways.serve(request)
        self.open_requests -= 1
        self.failures.served(request)

    def _waiting(self) -> Iterator[str]:
        """Say what each unfinished request waits for."""
        yield from waiting_lines(self.fleet.replicas, self.requests)
