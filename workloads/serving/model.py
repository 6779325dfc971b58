# SPDX-License-Identifier: Apache-2.0
"""The keys of a ``serving`` workload, and the requests that they stand for."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path  # noqa: TC003 - a default of pydantic's namespace
from typing import Literal, Self

from pydantic import Field, model_validator

from railweave.fabric.errors import InputError
from railweave.fabric.fields import LONGEST_PS, FileModel, Time, fault
from railweave.workloads.traces import TraceRequest, read_trace
from railweave.workloads.workload import PlacementModel, WorkloadModel

__all__ = ["DecodePoolModel", "PoolModel", "RequestModel", "ServingModel", "SloModel"]


class RequestModel(FileModel):
    """One request."""

    prompt: int = Field(ge=1, description="Tokens of the prompt")
    output: int = Field(ge=1, description="Tokens that are generated")
    at: Time = Field(0, description="Arrival, counted from the start of the workload")


class PoolModel(FileModel):
    """Replicas of a model that do one phase."""

    replicas: int = Field(1, ge=1, description="How many")
    tp: int = Field(1, ge=1, description="Tensor-parallel ranks of a replica")
    pp: int = Field(1, ge=1, description="Pipeline stages of a replica")
    placement: PlacementModel | None = Field(None, description="Instead of the workload's")


class DecodePoolModel(PoolModel):
    """The decode pool."""

    pp: Literal[1] = Field(1, description="Pipeline stages; only 1 in this version")


class SloModel(FileModel):
    """What a request must meet to count as served well."""

    ttft: Time | None = Field(None, description="Longest time to the first token")
    tpot: Time | None = Field(None, description="Longest mean time of each further token")


class ServingModel(WorkloadModel):
    """Requests prefilled on one pool and decoded on another; their KV cache crosses the fabric."""

    kind: Literal["serving"]
    model: str = Field(
        description="A shipped model, or a config.json or its folder relative to this file",
        examples=["llama-3.1-70b"],
    )
    prefill: PoolModel = Field(PoolModel(), description="The pool that reads prompts")
    decode: DecodePoolModel = Field(DecodePoolModel(), description="The pool that generates")
    router: str = Field(
        "round-robin", description="Chooses a replica of each pool", examples=["least-connections"]
    )
    trace: str | None = Field(
        None, description="Requests: a CSV in the Azure LLM format, relative to this file"
    )
    requests: tuple[RequestModel, ...] | None = Field(None, description="Or requests listed here")
    limit: int | None = Field(None, ge=1, description="Only the earliest so many requests")
    rate_scale: float = Field(1.0, gt=0, description="Requests arrive so many times as fast")
    block: int = Field(16, ge=1, description="Tokens of a KV block; whole blocks move")
    max_num_seqs: int = Field(256, ge=1, description="Most sequences of a decode replica")
    max_num_batched_tokens: int = Field(
        8192, ge=1, description="Most prompt tokens of a prefill step; a longer prompt goes alone"
    )
    dtype: str | None = Field(None, description="Number format of the weights", examples=["fp8"])
    kv_dtype: str | None = Field(None, description="Number format of the cache", examples=["fp8"])
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of GPU memory for weights and cache"
    )
    kv_transfer: Literal["pull", "push", "stream"] = Field(
        "pull", description="Who starts it: the decode or the prefill side; stream: not yet"
    )
    slo: SloModel | None = Field(None, description="Counts the requests that meet it")

    @model_validator(mode="after")
    def _requests_come_from_one_place(self) -> Self:
        if (self.trace is None) == (self.requests is None):
            said = "there are none" if self.trace is None else "they come from two places"
            raise fault(said, expected="either trace or requests", key="requests")
        if self.requests is not None and not self.requests:
            raise fault("there are none", expected="at least one", key="requests")
        return self

    def arrivals(self, base: Path) -> list[TraceRequest]:
        """Return the requests, sorted by arrival; those of one instant keep their order.

        Parameters
        ----------
        base
            Folder that ``trace`` is relative to.

        Raises
        ------
        InputError
            The trace cannot be read.
        """
        arrivals = self._arrivals(base)
        if arrivals and arrivals[-1].at_ps > LONGEST_PS:
            raise InputError(
                "the last request arrives too long after the first",
                field="requests" if self.trace is None else "trace",
                expected=f"at most {LONGEST_PS // (3600 * 10**12)}h; see limit and rate_scale",
            )
        return arrivals

    def _arrivals(self, base: Path) -> list[TraceRequest]:
        if self.trace is not None:
            found = read_trace(base / self.trace, limit=self.limit, rate_scale=self.rate_scale)
            return list(found.requests)
        scale = Fraction(repr(float(self.rate_scale)))
        listed = [
            TraceRequest(
                at_ps=int(request.at / scale),
                prompt_tokens=request.prompt,
                output_tokens=request.output,
            )
            for request in self.requests or ()
        ]
        listed.sort(key=lambda request: request.at_ps)
        return listed[: self.limit]

    def explicit(self, base: Path) -> Self:
        """Return the same workload with its requests listed."""
        listed = tuple(
            RequestModel.model_construct(prompt=r.prompt_tokens, output=r.output_tokens, at=r.at_ps)
            for r in self.arrivals(base)
        )
        changed = {"trace": None, "requests": listed, "limit": None, "rate_scale": 1.0}
        return self.model_copy(update=changed)
