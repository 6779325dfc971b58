# SPDX-License-Identifier: Apache-2.0
"""The keys of a ``serving`` workload, and the requests that they stand for."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from railweave.fabric.errors import InputError
from railweave.fabric.fields import LONGEST_PS, Time, fault
from railweave.workloads.serving.arrivals import ARRIVALS
from railweave.workloads.serving.keys import (
    ArrivalsModel,
    AutoscaleModel,
    FrontendModel,
    MemoryBoundModel,
    RequestModel,
    RouterModel,
    SloModel,
    TransferModel,
    WeightsModel,
)
from railweave.workloads.serving.pool_keys import PoolModel
from railweave.workloads.traces import Trace, TraceRequest, read_trace
from railweave.workloads.workload import WorkloadModel

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from railweave.topologies.front_end import FrontEnd
    from railweave.workloads.serving.arrivals import Arrivals

__all__ = ["ServingModel"]


class ServingModel(WorkloadModel):
    """Requests prefilled on one pool and decoded on another; their KV cache crosses the fabric."""

    kind: Literal["serving"]
    model: str = Field(
        description="A shipped model, or a config.json or its folder relative to this file",
        examples=["llama-3.1-70b"],
    )
    prefill: PoolModel | None = Field(None, description="The pool that reads prompts")
    decode: PoolModel | None = Field(None, description="The pool that generates")
    colocated: PoolModel | None = Field(
        None, description="Instead of both: replicas that prefill and decode"
    )
    router: RouterModel = Field(
        RouterModel(),
        description="Chooses a replica of each pool; a name, or a mapping",
        examples=["least-connections"],
    )
    trace: str | None = Field(None, description="Requests: a trace file, relative to this file")
    trace_format: str = Field(
        "auto", description="auto | azure | mooncake | burstgpt | vllm-bench | jsonl"
    )
    jitter: Time = Field(0, description="Arrivals of a trace are later by up to this")
    empty_output: Literal["refuse", "drop"] | None = Field(
        None, description="What becomes of requests of a trace that generate nothing"
    )
    requests: tuple[RequestModel, ...] | None = Field(None, description="Or requests listed here")
    arrivals: ArrivalsModel | None = Field(
        None, description="When they arrive, if not at their own times; or requests by chance"
    )
    limit: int | None = Field(None, ge=1, description="Only the earliest so many requests")
    rate_scale: float = Field(1.0, gt=0, description="Requests arrive so many times as fast")
    block: int = Field(16, ge=1, description="Tokens of a KV block; whole blocks move")
    max_num_seqs: int = Field(256, ge=1, description="Most sequences of a replica")
    max_num_batched_tokens: int = Field(8192, ge=1, description="Most tokens of a step")
    batching: str = Field(
        "continuous", description="continuous | iteration | static", examples=["static"]
    )
    chunked_prefill: bool = Field(
        True, description="Divide prompts over steps; if not, a longer one goes alone"
    )
    kv_memory: str = Field("paged", description="paged | contiguous", examples=["contiguous"])
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence, prompt and output; default: the model's"
    )
    kv_blocks: int | None = Field(
        None, ge=1, description="KV blocks of a replica, instead of what its memory holds"
    )
    prefix_cache: Literal["none", "lru", "unbounded"] = Field(
        "none", description="Whether replicas find prefixes of earlier prompts again"
    )
    dtype: str | None = Field(None, description="Number format of the weights", examples=["fp8"])
    kv_dtype: str | None = Field(None, description="Number format of the cache", examples=["fp8"])
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of GPU memory for weights and cache"
    )
    kv_transfer: TransferModel = Field(
        TransferModel(), description="pull | push | stream, or a mapping", examples=["push"]
    )
    restart_delay: Time = Field(
        0, description="From the repair of what failed until a replica begins to load its weights"
    )
    weights: WeightsModel = Field(
        WeightsModel(), description="Where replicas load them from; a word, or a mapping"
    )
    autoscale: tuple[AutoscaleModel, ...] = Field((), description="Pools that grow and shrink")
    frontend: FrontendModel | None = Field(
        None, description="The network between clients and servers; default: takes no time"
    )
    memory_bound: MemoryBoundModel = Field(
        MemoryBoundModel(), description="When the result says so of a replica"
    )
    slo: SloModel | None = Field(None, description="Counts the requests that meet it")

    @model_validator(mode="before")
    @classmethod
    def _names_stand_for_mappings(cls, keys: Any) -> Any:
        if not isinstance(keys, dict):
            return keys
        keys = dict(keys)
        for key, name in (("router", "policy"), ("kv_transfer", "mode"), ("weights", "source")):
            if isinstance(keys.get(key), str):
                keys[key] = {name: keys[key]}
        if isinstance(keys.get("autoscale"), dict):
            keys["autoscale"] = [keys["autoscale"]]
        return keys

    @model_validator(mode="after")
    def _requests_come_from_one_place(self) -> Self:
        listed = (self.trace is not None) + (self.requests is not None)
        drawn = self.arrivals is not None and self.arrivals.prompt is not None
        if listed + drawn != 1:
            said = "there are none" if listed + drawn < 1 else "they come from two places"
            raise fault(
                said,
                expected="either trace or requests, or arrivals with count, prompt and output",
                key="requests",
            )
        if self.requests is not None and not self.requests:
            raise fault("there are none", expected="at least one", key="requests")
        if self.arrivals is not None and self.arrivals.kind == "trace":
            raise fault("is what happens without arrivals", expected="no arrivals", key="arrivals")
        self._keys_mean_something()
        if self.colocated is not None:
            for pool in ("prefill", "decode"):
                if getattr(self, pool) is not None:
                    raise fault(
                        "colocated replicas prefill and decode", expected=f"no {pool}", key=pool
                    )
        return self

    def _keys_mean_something(self) -> None:
        """Refuse keys that nothing would heed."""
        if self.trace is None:
            for key, plain in (("trace_format", "auto"), ("jitter", 0), ("empty_output", None)):
                if getattr(self, key) != plain:
                    raise fault(
                        "it is about a trace, and there is none", expected="a trace", key=key
                    )
        if self.limit is not None and self.trace is None and self.requests is None:
            raise fault(
                "arrivals say how many requests there are", expected="no limit", key="limit"
            )
        if self.colocated is not None and self.router.order != "prefill-first":
            raise fault("there is one pool to choose from", expected="no order", key="router")

    @property
    def front_end(self) -> FrontEnd | None:
        """The front-end network that it needs beside the fabric."""
        return None if self.frontend is None else self.frontend.network

    @property
    def pools(self) -> dict[str, PoolModel]:
        """Its pools by name, prefill first."""
        if self.colocated is not None:
            return {"colocated": self.colocated}
        return {"prefill": self.prefill or PoolModel(), "decode": self.decode or PoolModel()}

    def listed(self, base: Path, *, seed: int = 1) -> Trace | None:
        """Return the requests that are listed, here or in a file, sorted by arrival; else None.

        Parameters
        ----------
        base
            Folder that ``trace`` is relative to.
        seed
            Of the jitter.

        Raises
        ------
        InputError
            The trace cannot be read, or lasts too long.
        """
        if self.trace is not None:
            found = read_trace(
                base / self.trace,
                format=self.trace_format,
                limit=self.limit,
                rate_scale=self.rate_scale,
                empty_output=self.empty_output,
                jitter_ps=self.jitter,
                seed=seed,
            )
        elif self.requests is not None:
            found = self._own()
        else:
            return None
        if found.requests and found.requests[-1].at_ps > LONGEST_PS:
            raise InputError(
                "the last request arrives too long after the first",
                field="requests" if self.trace is None else "trace",
                expected=f"at most {LONGEST_PS // (3600 * 10**12)}h; see limit and rate_scale",
            )
        return found

    def _own(self) -> Trace:
        scale = Fraction(repr(float(self.rate_scale)))
        listed = [
            TraceRequest(
                at_ps=int(request.at / scale),
                prompt_tokens=request.prompt,
                output_tokens=request.output,
                hash_ids=request.hash_ids or (),
                hash_block=request.hash_block or 0,
                session=request.session or "",
            )
            for request in self.requests or ()
        ]
        listed.sort(key=lambda request: request.at_ps)
        return Trace(requests=tuple(listed[: self.limit]), format="own", file="")

    def arrival_process(self, random: np.random.Generator) -> Arrivals:
        """Return what says when requests arrive.

        Raises
        ------
        InputError
            There is no such kind, or a key that it needs is missing.
        """
        if self.arrivals is None:
            return ARRIVALS.get("trace")(ArrivalsModel(kind="trace"), random)
        kind = ARRIVALS.get(self.arrivals.kind)
        kind.check(self.arrivals, listed=self.trace is not None or self.requests is not None)
        return kind(self.arrivals, random, rate_scale=self.rate_scale)

    def explicit(self, base: Path, *, seed: int = 1) -> Self:
        """Return the same workload with its requests listed."""
        found = self.listed(base, seed=seed)
        if found is None:
            return self
        listed = tuple(
            RequestModel.model_construct(
                prompt=r.prompt_tokens,
                output=r.output_tokens,
                at=r.at_ps,
                session=r.session or None,
                hash_ids=r.hash_ids or None,
                hash_block=r.hash_block or None,
            )
            for r in found.requests
        )
        changed: dict[str, Any] = {
            "trace": None, "requests": listed, "limit": None, "jitter": 0, "empty_output": None,
        }  # fmt: skip
        if self.arrivals is None:
            changed["rate_scale"] = 1.0
        return self.model_copy(update=changed)
