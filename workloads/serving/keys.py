# SPDX-License-Identifier: Apache-2.0
"""The keys of a ``serving`` workload that are mappings of their own."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from railweave.fabric.fields import FileModel, Rate, Size, Time, fault
from railweave.fabric.units import PS_PER_S
from railweave.topologies.front_end import FrontEnd
from railweave.workloads.traces import LengthMoments

__all__ = [
    "MOST_DRAWN",
    "ArrivalsModel",
    "AutoscaleModel",
    "FrontendModel",
    "LengthModel",
    "MemoryBoundModel",
    "RequestModel",
    "RouterModel",
    "SloModel",
    "TransferModel",
    "WeightsModel",
    "length_at",
]

Tokens = Annotated[int, Field(ge=1)]
MOST_DRAWN: Final = 10**6  # requests: what a run can hold in memory


class RequestModel(FileModel):
    """One request."""

    prompt: int = Field(ge=1, description="Tokens of the prompt")
    output: int = Field(ge=1, description="Tokens that are generated")
    at: Time = Field(0, description="Arrival, counted from the start of the workload")
    session: str | None = Field(None, description="What the turns of a conversation share")
    hash_ids: tuple[int, ...] | None = Field(
        None, description="An id for each block of the prompt; equal ids have equal prefixes"
    )
    hash_block: int | None = Field(None, ge=1, description="Tokens of such a block")

    @model_validator(mode="after")
    def _ids_fit_the_prompt(self) -> Self:
        if (self.hash_ids is None) != (self.hash_block is None):
            raise fault(
                "hash_ids and hash_block come together", expected="both or none", key="hash_ids"
            )
        if self.hash_ids is not None and self.hash_block is not None:
            blocks = math.ceil(self.prompt / self.hash_block)
            if len(self.hash_ids) != blocks:
                raise fault(
                    f"{len(self.hash_ids)} ids are given for {self.prompt} tokens",
                    expected=f"{blocks}, one for each {self.hash_block} tokens",
                    key="hash_ids",
                )
        return self


class SloModel(FileModel):
    """What a request must meet to count as served well."""

    ttft: Time | None = Field(None, description="Longest time to the first token")
    tpot: Time | None = Field(None, description="Longest mean time of each further token")


class LengthModel(FileModel):
    """Lengths that are drawn: lognormal by mean and median, or uniform."""

    mean: float | None = Field(None, gt=0, description="Mean, with median and largest")
    median: float | None = Field(None, gt=0, description="Median")
    largest: int | None = Field(None, ge=1, description="What would be longer is this long")
    least: int | None = Field(None, ge=1, description="Uniform: the least, with most")
    most: int | None = Field(None, ge=1, description="Uniform: the most")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        lognormal = (self.mean, self.median, self.largest)
        uniform = (self.least, self.most)
        both = [None not in lognormal, None not in uniform]
        given = [any(x is not None for x in lognormal), any(x is not None for x in uniform)]
        if both != given or sum(both) != 1:
            raise fault(
                "it is half a distribution", expected="mean, median, largest; or least, most"
            )
        if self.least is not None and self.most is not None and self.least > self.most:
            raise fault(f"{self.least} is more than {self.most}", expected="least <= most")
        if self.mean is not None and self.median is not None and self.mean < self.median:
            raise fault(
                f"a mean of {self.mean:g} below the median of {self.median:g} is not lognormal",
                expected="mean >= median",
                key="mean",
            )
        return self

    def value(self, uniform: float) -> int:
        """Return the length at a quantile, 0 to 1."""
        if self.least is not None and self.most is not None:
            return min(self.least + int(uniform * (self.most - self.least + 1)), self.most)
        assert self.mean is not None
        assert self.median is not None
        assert self.largest is not None
        moments = LengthMoments(mean=self.mean, median=self.median, largest=self.largest)
        return moments.value(min(max(uniform, 1e-12), 1 - 1e-12))


def length_at(length: LengthModel | int, uniform: float) -> int:
    """Return a length at a quantile, 0 to 1.

    Examples
    --------
    >>> length_at(512, 0.3), length_at(LengthModel(least=1, most=4), 0.5)
    (512, 3)
    """
    return length if isinstance(length, int) else length.value(uniform)


class ArrivalsModel(FileModel):
    """When requests arrive, and how long they are if none are listed."""

    kind: str = Field(description="How they come", examples=["poisson"])
    rate_per_s: float | None = Field(None, gt=0, description="Requests (or sessions) per second")
    cv: float | None = Field(
        None, gt=0, le=100, description="Coefficient of variation of the gaps; 1 is Poisson"
    )
    users: int | None = Field(None, ge=1, description="Requests at once, in a closed loop")
    think: Time = Field(0, description="From an answer to the next request of the same user")
    turns: int | None = Field(None, ge=1, le=MOST_DRAWN, description="Requests of a session")
    count: int | None = Field(None, ge=1, le=MOST_DRAWN, description="Requests, or sessions")
    prompt: LengthModel | Tokens | None = Field(None, description="Tokens of prompts")
    output: LengthModel | Tokens | None = Field(None, description="Tokens generated")
    block: int = Field(16, ge=1, description="Tokens of a block that turns may share")


_OF_POLICY: Final = {
    "prefix-aware": ("balance_abs_threshold", "balance_rel_threshold", "cache_threshold"),
    "topology-aware": ("near_factor", "near_slack"),
}


class RouterModel(FileModel):
    """Who chooses replicas, and what it knows."""

    policy: str = Field("round-robin", description="For both pools", examples=["prefix-aware"])
    prefill: str | None = Field(None, description="Instead, for the prefill pool")
    decode: str | None = Field(None, description="Instead, for the decode pool")
    scrape_interval: Time = Field(
        0, description="Metrics of replicas are this old when they are read again; 0s: never old"
    )
    scorers: dict[str, float] = Field(
        {}, description="Weights of the scorers of the policy weighted", examples=[{"queue": 1}]
    )
    order: Literal["prefill-first", "decode-first"] = Field(
        "prefill-first", description="Which replica is chosen first"
    )
    remote_prefill_above: int = Field(
        0,
        ge=0,
        description="decode-first: prompts with fewer tokens that the decode replica does not "
        "have cached are prefilled by itself",
    )

    balance_abs_threshold: int = Field(
        64, ge=0, description="prefix-aware: load has drifted apart by more requests (SGLang's)"
    )
    balance_rel_threshold: float = Field(
        1.5, ge=1, description="prefix-aware: and by more than this factor (SGLang's)"
    )
    cache_threshold: float = Field(
        0.3, ge=0, le=1, description="prefix-aware: share of a prompt that decides (SGLang's)"
    )
    near_factor: float = Field(
        1.25, ge=1, description="topology-aware: times as many requests as the idlest, and"
    )
    near_slack: int = Field(
        2, ge=0, description="topology-aware: so many more, are not much busier (both assumed)"
    )

    @model_validator(mode="after")
    def _keys_mean_something(self) -> Self:
        for policy, keys in _OF_POLICY.items():
            fields = type(self).model_fields
            given = [key for key in keys if getattr(self, key) != fields[key].default]
            if given and policy not in (self.policy, self.prefill, self.decode):
                raise fault(
                    f"no pool has the policy {policy}", expected=f"policy: {policy}", key=given[0]
                )
        if self.scorers and "weighted" not in (self.policy, self.prefill, self.decode):
            raise fault(f"{self.policy} has no scorers", expected="policy: weighted", key="scorers")
        if self.remote_prefill_above and self.order != "decode-first":
            raise fault(
                "the decode replica is not known before the prefill",
                expected="order: decode-first",
                key="remote_prefill_above",
            )
        return self


class TransferModel(FileModel):
    """How KV caches cross the fabric."""

    mode: str = Field("pull", description="pull | push | stream", examples=["push"])
    message_cost: Time = Field(
        0,
        description="Time that a rank takes to post one message, a K or V block of a layer; "
        "at most 1s",
    )
    read_delay: Time = Field(
        0, description="From the end of the prefill to the read of the decode side (pull)"
    )
    sync_cost: Time = Field(
        0,
        description="Time that each piece of layers adds to the step that sends it; at most 1s "
        "(stream)",
    )
    timeout: Time | None = Field(
        None, description="A prefilled cache that waits longer for decode blocks is dropped"
    )
    nic: Literal["affine", "single"] = Field(
        "affine", description="Which NIC a GPU sends through: its own, or all the replica's first"
    )
    stream_groups: int = Field(
        8, ge=1, le=1024, description="Pieces of layers that a step sends as it computes (stream)"
    )

    @model_validator(mode="after")
    def _keys_mean_something(self) -> Self:
        for key in ("message_cost", "sync_cost"):
            if getattr(self, key) > PS_PER_S:
                raise fault("longer than a second", expected="at most 1s", key=key)
        for key, mode in (("read_delay", "pull"), ("sync_cost", "stream")):
            if getattr(self, key) and self.mode != mode:
                raise fault(f"{self.mode} has none", expected=f"mode: {mode}", key=key)
        return self


class AutoscaleModel(FileModel):
    """How a pool grows and shrinks."""

    pool: str = Field(description="Which pool", examples=["decode"])
    metric: Literal["queue", "kv"] = Field(
        "queue", description="Waiting requests per replica, or share of KV blocks in use"
    )
    above: float = Field(gt=0, description="A replica is started above this")
    below: float = Field(ge=0, description="One is stopped below this, when it is empty")
    every: Time = Field(10 * 10**12, description="How often to look; at least 1ms")
    least: int = Field(1, ge=1, description="Fewest replicas")
    most: int = Field(ge=1, description="Most replicas; their GPUs are kept for them")
    start_delay: Time = Field(0, description="Before the weights are loaded: scheduling, start-up")
    weights_from: str | None = Field(
        None, description="Instead of the workload's weights: {source}", examples=["storage"]
    )

    @model_validator(mode="after")
    def _looks_end(self) -> Self:
        if self.every < PS_PER_S // 1000:
            raise fault("too often to end", expected="at least 1ms", key="every")
        return self


class MemoryBoundModel(FileModel):
    """When a replica is said to be ``memory-bound``: its memory is full while compute idles.

    Both limits are assumptions: waiting that shows, and an arithmetic of which half is unused.
    """

    waited_above: float = Field(
        0.05, ge=0, le=1, description="Share of its time in which requests wait for KV blocks"
    )
    arithmetic_below: float = Field(
        0.5, ge=0, le=1, description="Share of its peak arithmetic rate that it uses"
    )


class WeightsModel(FileModel):
    """Where a replica that starts or comes back loads its weights from."""

    source: str = Field(
        "peer",
        description="peer: a serving replica; storage: over the front-end network; disk: the "
        "server's own; or a host by name, over the fabric",
    )
    disk_rate: Rate = Field(
        100 * 10**9,
        description="At which a server reads its disks (assumed: two PCIe 4 x4 SSDs)",
    )


class FrontendModel(FileModel):
    """The network that requests and tokens cross, apart from the fabric of the GPUs.

    A token of English text is about four characters (llm-d's picker estimates so too). All else
    is assumed: a streamed token is a server-sent event with a ``chat.completion.chunk`` as JSON
    around it, some 200 to 250 bytes with an id of 32 digits.
    """

    rate: Rate = Field(25 * 10**9, description="Of a server's front-end link")
    core_rate: Rate = Field(
        100 * 10**9, description="Of the links of gateway, clients and storage, between switches"
    )
    delay: Time = Field(
        50 * 10**6, description="From a client to the gateway, and from there to a server"
    )
    servers_per_leaf: int = Field(32, ge=1, description="Servers on a front-end leaf")
    bytes_per_token: Size = Field(4, description="Of a prompt")
    token_message: Size = Field(256, description="Of a streamed token, with what is around it")

    @property
    def network(self) -> FrontEnd:
        """What is built of it."""
        return FrontEnd(
            rate_bps=self.rate,
            core_rate_bps=self.core_rate,
            delay_ps=self.delay,
            servers_per_leaf=self.servers_per_leaf,
        )
