# SPDX-License-Identifier: Apache-2.0
"""A model on a GPU under a trace: the figures that the questions of a serving review ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from railweave.fabric.devices import catalogue_names, host_model, rack_model
from railweave.fabric.errors import InputError
from railweave.fabric.units import PS_PER_S
from railweave.workloads.memory import MEMORY_FRACTION, memory_fit
from railweave.workloads.parallelism import ParallelismPlan
from railweave.workloads.sizing.profile import Spread, profile_trace
from railweave.workloads.sizing.room import users_at_once
from railweave.workloads.sizing.times import ReplicaTimes
from railweave.workloads.traces import prefix_reuse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from railweave.fabric.devices import GpuModel, HostModel
    from railweave.workloads.memory import MemoryFit
    from railweave.workloads.shapes_model import ModelShape
    from railweave.workloads.sizing.profile import TraceProfile
    from railweave.workloads.sizing.room import UsersAtOnce
    from railweave.workloads.traces import TraceRequest

__all__ = ["Case", "Site", "find_site", "least_plan"]

_MOST_SEQS: Final = 256  # vLLM's max_num_seqs
_MOST_STAGES: Final = 64
_SAMPLE: Final = 512  # prompts that stand for all: evenly spaced quantiles


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a replica's GPUs sit.

    Parameters
    ----------
    name
        The host of the catalogue; empty if it has none with this GPU.
    host_gpus
        GPUs of a host.
    domain_gpus
        GPUs that NVLink joins: a host's, a rack's, or 1 without NVLink.
    nvlink_Bps
        NVLink of a GPU, bytes/s per direction; 0 without.
    nic_Bps
        Share of the host's NICs for one of its GPUs, bytes/s per direction; 0 if not known.
    """

    name: str
    host_gpus: int
    domain_gpus: int
    nvlink_Bps: int
    nic_Bps: int

    @classmethod
    def of(cls, host: HostModel) -> Site:
        """Return what a host of the catalogue gives its GPUs."""
        racks = [rack_model(name) for name in catalogue_names("racks")]
        rack = next((rack for rack in racks if rack.host == host), None)
        nics_bps = 0 if host.nic is None else (host.nics or 0) * host.nic.ports * host.nic.rate_bps
        return cls(
            name=host.name,
            host_gpus=host.gpus,
            domain_gpus=1 if host.nvlink is None else host.gpus if rack is None else rack.gpus,
            nvlink_Bps=0 if host.nvlink is None else host.nvlink.rate_bps // 8,
            nic_Bps=nics_bps // 8 // host.gpus,
        )


def find_site(gpu: GpuModel, host: str | None = None) -> Site:
    """Return where GPUs of this kind sit: the host asked for, or the fullest of the catalogue.

    Of several the one with a NIC for each GPU, then the first by name. A GPU of which the catalogue
    has no host is taken to sit alone.

    Raises
    ------
    InputError
        The host is not in the catalogue, or has other GPUs.
    """
    if host is not None:
        found = host_model(host)
        if found.gpu != gpu:
            raise InputError(
                f"{found.name} has {found.gpu.name} GPUs", field="host", expected=gpu.name
            )
        return Site.of(found)
    known = [host_model(name) for name in catalogue_names("hosts")]
    fitting = [model for model in known if model.gpu == gpu and model.nic is not None]
    if not fitting:
        return Site(name="", host_gpus=1, domain_gpus=1, nvlink_Bps=0, nic_Bps=0)
    return Site.of(min(fitting, key=lambda model: (-model.gpus, model.nics != model.gpus)))


def least_plan(
    shape: ModelShape,
    gpu: GpuModel,
    site: Site,
    *,
    tokens: int,
    fraction: Fraction | float = MEMORY_FRACTION,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> ParallelismPlan | None:
    """Return the fewest GPUs that hold the weights and one sequence of ``tokens``; None: no plan.

    Tensor parallelism within an NVLink domain (or a host) first, in powers of two, then pipeline
    stages across hosts, at most 64.

    Raises
    ------
    InputError
        A fraction or a number format that does not exist.
    """

    def fits(plan: ParallelismPlan) -> bool:
        return memory_fit(
            shape,
            plan,
            memory_bytes=gpu.memory_bytes,
            fraction=fraction,
            tokens=tokens,
            dtype=dtype,
            kv_dtype=kv_dtype,
        ).fits

    alone = ParallelismPlan()
    if fits(alone):  # here what is wrong whatever the plan is said
        return alone
    widest = max(site.domain_gpus, site.host_gpus)
    tps = [1 << power for power in range(widest.bit_length()) if 1 << power <= widest]
    plans = [ParallelismPlan(tp) for tp in tps[1:]]
    plans += [
        ParallelismPlan(tp, stages)
        for stages in range(2, min(shape.n_layers, _MOST_STAGES) + 1)
        for tp in reversed(tps)
    ]
    for plan in plans:
        try:
            plan.check(shape)
        except InputError:
            continue  # the model has not so many heads
        if fits(plan):
            return plan
    return None


@dataclass(frozen=True, kw_only=True)
class Case:
    """See the module; everything derived is computed when it is asked for.

    Parameters
    ----------
    shape, gpu, site, plan
        The model, the GPU, where it sits, and how the model is divided over one replica.
    requests
        Those that fit the model's window, in order of arrival, at least one.
    beyond
        Rows of those that do not.
    source
        Format of the trace, in messages.
    fraction
        Share of GPU memory for weights and cache.
    dtype, kv_dtype
        Number formats of the weights and of the cache.
    page
        Tokens of a page of the cache.
    """

    shape: ModelShape
    gpu: GpuModel
    site: Site
    plan: ParallelismPlan
    requests: Sequence[TraceRequest]
    beyond: tuple[int, ...] = ()
    source: str = ""
    fraction: Fraction | float = MEMORY_FRACTION
    dtype: str | None = None
    kv_dtype: str | None = None
    page: int = 16
    times: ReplicaTimes = field(init=False)

    def __post_init__(self) -> None:
        times = ReplicaTimes(self.shape, self.plan, self.gpu, self.dtype, self.kv_dtype)
        object.__setattr__(self, "times", times)

    def fit_of(self, plan: ParallelismPlan) -> MemoryFit:
        """Return how the model and the longest request sit in GPUs so divided."""
        return memory_fit(
            self.shape,
            plan,
            memory_bytes=self.gpu.memory_bytes,
            fraction=self.fraction,
            tokens=self.longest,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
        )

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        return max(r.prompt_tokens + r.output_tokens for r in self.requests)

    @cached_property
    def profile(self) -> TraceProfile:
        """What the requests look like."""
        return profile_trace(self.requests)

    @cached_property
    def alone(self) -> MemoryFit:
        """The fit on one GPU."""
        return self.fit_of(ParallelismPlan())

    @cached_property
    def fit(self) -> MemoryFit:
        """The fit of a replica."""
        return self.fit_of(self.plan)

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """Prompt and output of each request."""
        return [(r.prompt_tokens, r.output_tokens) for r in self.requests]

    def users(self, *, paged: bool) -> UsersAtOnce:
        """Return the sequences that a full replica runs at once."""
        return users_at_once(
            self.lengths,
            "pages" if paged else "longest",
            room_tokens=self.fit.kv_capacity_tokens,
            page=self.page,
            longest=self.longest,
        )

    @cached_property
    def batch(self) -> int:
        """Sequences of a full replica's decode step: those that fit, at most 256."""
        return max(1, min(int(self.users(paged=True).users), _MOST_SEQS))

    @cached_property
    def context(self) -> int:
        """Tokens of cache of a running sequence, in the mean over time."""
        return int(self.users(paged=True).used_tokens)

    @cached_property
    def step_ps(self) -> int:
        """Time of a full replica's decode step, computation alone."""
        return self.times.decode_ps(self.batch, self.context)

    @cached_property
    def _service(self) -> list[tuple[int, int]]:
        """Prefill and decode time of sampled requests: evenly spaced in order of prompt length."""
        ordered = sorted(self.lengths)
        count = min(_SAMPLE, len(ordered))
        sample = [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
        known: dict[int, int] = {}
        for prompt, _ in sample:
            if prompt not in known:
                known[prompt] = self.times.busy_prefill_ps(prompt)
        return [
            (known[prompt], (output - 1) * self.step_ps // self.batch) for prompt, output in sample
        ]

    @cached_property
    def prefill_busy_ps(self) -> int:
        """Mean time that a request's prefill keeps the replica."""
        return sum(prefill for prefill, _ in self._service) // len(self._service)

    @cached_property
    def decode_busy_ps(self) -> int:
        """Mean of a request's share in the decode steps of a full replica.

        The first token comes from the prefill.
        """
        mean = (self.profile.output.mean - 1) * self.step_ps / self.batch
        return int(mean)

    @cached_property
    def service(self) -> Spread:
        """Spread of the time that a request keeps a full replica, in ps."""
        return Spread.of([prefill + decode for prefill, decode in self._service])

    @cached_property
    def replicas(self) -> int:
        """Replicas that the trace's rate keeps busy, rounded up; computation alone."""
        rate = self.profile.rate_per_s
        if rate is None:
            return 1
        busy = rate * (self.prefill_busy_ps + self.decode_busy_ps) / PS_PER_S
        return max(1, -int(-busy // 1))

    @cached_property
    def hosts(self) -> int:
        """Hosts that a replica spans."""
        return -(-self.plan.n_ranks // self.site.host_gpus)

    def hits_apart(self, replicas: int) -> int:
        """Return the hit tokens of replicas that take requests in turn, each with its own cache."""
        room = self.fit.kv_capacity_tokens
        parts = [self.requests[i::replicas] for i in range(replicas)]
        return sum(prefix_reuse(part, room_tokens=room).hit_tokens for part in parts)

    def hits_together(self, replicas: int) -> int:
        """Return the hit tokens of one cache as large as those of all replicas."""
        room = self.fit.kv_capacity_tokens * replicas
        return prefix_reuse(self.requests, room_tokens=room).hit_tokens
