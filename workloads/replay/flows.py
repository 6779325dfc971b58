# SPDX-License-Identifier: Apache-2.0
"""The workload ``flows``: listed transfers, each at its time or after others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from railweave.fabric.errors import UnreachableError, nearest_name
from railweave.fabric.fields import FileModel, Rate, Size, Time
from railweave.fabric.flow import Flow
from railweave.workloads.replay.paths import pinned_path
from railweave.workloads.workload import WorkloadContext, WorkloadModel, workload_kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import simpy

__all__ = ["FlowModel", "FlowsModel"]

_MANY = 256  # flows that are worth sending together


class FlowModel(FileModel):
    """One transfer."""

    id: str | None = Field(None, min_length=1, description="Unique in the run; default f0, f1, ...")
    src: str = Field(description="A GPU, a NIC or a host with one NIC", examples=["h0"])
    dst: str = Field(description="A GPU, a NIC or a host with one NIC", examples=["h1/gpu3"])
    size: Size = Field(description="Payload")
    start: Time = Field(0, description="Counted from the start of the workload")
    path: tuple[str, ...] | None = Field(
        None, description="Devices from src to dst, instead of the routing policy"
    )
    ack_path: tuple[str, ...] | None = Field(
        None, description="Devices from dst to src that its acknowledgements pass (packet engine)"
    )
    priority: int | None = Field(None, ge=0, le=7, description="Traffic class 0 to 7")
    tag: str = Field("", alias="class", description="A word for accounting")
    qps: int | None = Field(
        None, ge=1, le=4096, description="Queue pairs the payload is split over"
    )
    weight: float = Field(
        1.0, ge=1e-6, le=1e6, description="Share of a bottleneck relative to other flows"
    )
    cap: Rate | None = Field(None, ge=1, description="Highest rate on the wire")
    after: tuple[str, ...] = Field((), description="Ids of flows that must have ended before")


class FlowsModel(WorkloadModel):
    """Listed transfers."""

    kind: Literal["flows"]
    flows: tuple[FlowModel, ...]


@workload_kind(FlowsModel)
def start(workload: FlowsModel, context: WorkloadContext) -> simpy.Event:
    """Check the flows, start a process for each, and return the end of them all."""
    return _Replay(workload, context).start()


class _Replay:
    """The flows of one workload while they run."""

    def __init__(self, workload: FlowsModel, context: WorkloadContext) -> None:
        self._workload = workload
        self._context = context
        if not workload.flows:
            raise context.error("there are no flows", at=("flows",), expected="at least one flow")
        self._ids = self._unique_ids()
        self._flows = [
            self._flow(i, model, flow_id)
            for i, (model, flow_id) in enumerate(zip(workload.flows, self._ids, strict=True))
        ]
        self._check_reachable()
        for i, model in enumerate(workload.flows):
            for k, before in enumerate(model.after):
                if before not in self._ids:
                    raise context.error(
                        f"there is no flow '{before}'",
                        at=("flows", i, "after", k),
                        expected="the id of another flow of this workload",
                        nearest=nearest_name(before, self._ids),
                    )
        self._ends = {flow_id: context.env.event() for flow_id in self._ids}

    def start(self) -> simpy.Event:
        """Start the flows that depend on no others at once, and a process for each of the rest."""
        env, context = self._context.env, self._context
        rows = list(zip(self._workload.flows, self._ids, self._flows, strict=True))
        linked = {before for model in self._workload.flows for before in model.after}
        alone = [row for row in rows if not row[0].after and row[1] not in linked]
        ends = [self._ends[flow_id] for _, flow_id, _ in rows]
        if len(alone) >= _MANY:
            now = int(env.now)
            starts = [max(self._workload.start + model.start, now) for model, _, _ in alone]
            sent = context.engine.send_all([flow for _, _, flow in alone], start_ps=starts)
            taken = {flow_id for _, flow_id, _ in alone}
            rows = [row for row in rows if row[1] not in taken]
            ends = [*(self._ends[flow_id] for _, flow_id, _ in rows), sent]
        for model, flow_id, flow in rows:
            if model.after and not model.start:
                context.engine.expect(flow, [f"{context.prefix}{one}" for one in model.after])
            env.process(self._run(model, flow_id, flow))
        context.findings.waiting.append(self._waiting)
        packets = context.engine.capabilities.packets
        if not packets and any(model.priority is not None for model in self._workload.flows):
            context.findings.warn(
                f"the {context.engine.name} engine has no traffic classes: "
                "the priority of flows changes nothing"
            )
        return env.all_of(ends)

    def _run(self, model: FlowModel, flow_id: str, flow: Flow) -> Generator[simpy.Event, Any, None]:
        env = self._context.env
        begin = self._workload.start + model.start
        if begin > env.now:
            yield env.timeout(begin - env.now)
        for before in model.after:
            if not self._ends[before].processed:
                yield self._ends[before]
        record = yield self._context.engine.send(flow)
        self._ends[flow_id].succeed(record)

    def _waiting(self) -> Iterator[str]:
        """Say which flows have not begun because of which."""
        for model, flow_id in zip(self._workload.flows, self._ids, strict=True):
            left = [before for before in model.after if not self._ends[before].triggered]
            if left:
                prefix = self._context.prefix
                names = ", ".join(f"{prefix}{before}" for before in left)
                yield f"flow {prefix}{flow_id} waits for {names}"

    def _unique_ids(self) -> list[str]:
        first: dict[str, int] = {}
        for i, model in enumerate(self._workload.flows):
            flow_id = f"f{i}" if model.id is None else model.id
            if flow_id in first:
                place = self._context.loc
                line = self._context.document.line((*place, "flows", first[flow_id], "id"))
                where = f" (first on line {line})" if line else ""
                raise self._context.error(
                    f"the flow id '{flow_id}' is used twice{where}",
                    at=("flows", i, "id"),
                    expected="an id of its own for each flow",
                )
            first[flow_id] = i
        return list(first)

    def _flow(self, i: int, model: FlowModel, flow_id: str) -> Flow:
        context, fabric = self._context, self._context.fabric
        with context.at("flows", i, "src"):
            src = fabric.endpoint(model.src)
        with context.at("flows", i, "dst"):
            dst = fabric.endpoint(model.dst)
        if src == dst:
            raise context.error(
                f"flow '{flow_id}' goes from {model.src} to itself",
                at=("flows", i, "dst"),
                expected="another endpoint",
            )
        if model.weight != 1.0 and context.engine.capabilities.packets:
            raise context.error(
                f"flow '{flow_id}' has weight {model.weight:g}, which packets do not heed",
                at=("flows", i, "weight"),
                expected="no weight, or engine: fluid",
            )
        path = ack_path = None
        if model.ack_path is not None:
            if not context.engine.capabilities.packets:
                raise context.error(
                    f"the {context.engine.name} engine sends acknowledgements back on the cables "
                    "of the data",
                    at=("flows", i, "ack_path"),
                    expected="no ack_path, or engine: packet",
                )
            with context.at("flows", i, "ack_path"):
                ack_path = pinned_path(fabric, model.ack_path, src=dst, dst=src)
        if model.path is not None:
            with context.at("flows", i, "path"):
                path = pinned_path(fabric, model.path, src=src, dst=dst)
        return Flow(
            id=f"{context.prefix}{flow_id}",
            src=src,
            dst=dst,
            size_bytes=model.size,
            weight=model.weight,
            cap_bps=model.cap,
            qps=model.qps,
            path=path,
            tag=model.tag,
            priority=model.priority,
            ack_path=ack_path,
        )

    def _check_reachable(self) -> None:
        """Refuse a flow without a route before anything has run."""
        engine = self._context.engine
        try:
            engine.prepare(self._flows)
        except UnreachableError:
            for i, flow in enumerate(self._flows):
                with self._context.at("flows", i):
                    engine.prepare([flow])
            raise
