# SPDX-License-Identifier: Apache-2.0
"""What every kind of workload shares: its keys in a scenario, its start, and what it is given.

A kind is one module under ``workloads/replay/`` or ``workloads/serving/``: a model of its keys and
a start function, joined by `workload_kind`. Nothing else has to know about it::

    class PingModel(WorkloadModel):
        kind: Literal["ping"]
        size: Size

    @workload_kind(PingModel)
    def start(workload: PingModel, context: WorkloadContext) -> Event:
        return context.env.process(ping(workload, context))

``start`` is called once for each workload before time begins. It checks everything that can be
checked (raising `InputError`), and returns the event that ends the workload; the process itself
waits for ``workload.start``.
"""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import Field, model_validator

from railweave.fabric.errors import InputError
from railweave.fabric.fields import FileModel, Time, fault
from railweave.fabric.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from railweave.fabric.document import Document, Key
    from railweave.fabric.engine import Engine, FabricEnvironment
    from railweave.fabric.faults import FaultPlan
    from railweave.fabric.graph import Fabric
    from railweave.fabric.network import NetworkSettings
    from railweave.fabric.routing import Routing
    from railweave.topologies.front_end import FrontEnd

__all__ = [
    "Findings",
    "PlacementModel",
    "TrackSpan",
    "WorkloadContext",
    "WorkloadKind",
    "WorkloadModel",
    "find_kind",
    "kind_names",
    "locating",
    "random_stream",
    "relocated",
    "workload_kind",
]

_ROOMS: Final = ("railweave.workloads.replay", "railweave.workloads.serving")
_WORKLOAD_DOMAIN: Final = 5  # domains of random streams: 1-4 and 6 belong to the fabric

Model = TypeVar("Model", bound="WorkloadModel")


class PlacementModel(FileModel):
    """Which GPUs ranks sit on."""

    policy: Literal["packed", "random", "list"] = Field(
        "packed", description="packed fills hosts in order; random draws; list names the GPUs"
    )
    gpus: tuple[str, ...] | None = Field(
        None,
        description="GPUs or hosts by name, in rank order; for the policy list",
        examples=[["h0/gpu0", "h1"]],
    )

    @model_validator(mode="after")
    def _list_has_gpus(self) -> Self:
        if (self.policy == "list") != (self.gpus is not None):
            said = "it is missing" if self.gpus is None else f"policy {self.policy} takes no list"
            raise fault(said, expected="gpus with policy list, and only there", key="gpus")
        return self


class WorkloadModel(FileModel):
    """The keys that every kind of workload has."""

    kind: str
    name: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]+$", description="Told apart by it when there are several"
    )
    start: Time = Field(0, description="When it begins")
    placement: PlacementModel | None = Field(None, description="Instead of the scenario's")

    @property
    def front_end(self) -> FrontEnd | None:
        """The front-end network that it needs beside the fabric, if any."""
        return None

    def explicit(self, base: Path, *, seed: int = 1) -> Self:
        """Return the same workload without references to files, relative to ``base``, it reads.

        A run folder keeps this form, so that it can be run again from anywhere. ``seed`` is that of
        the scenario, for what is drawn on the way.
        """
        del base, seed
        return self


@dataclass(frozen=True)
class WorkloadKind(Generic[Model]):
    """A registered kind: its name, the model of its keys, and its start function."""

    name: str
    model: type[Model]
    start: Callable[[Model, WorkloadContext], Any]


_KINDS: Final[Registry[WorkloadKind[Any]]] = Registry("kind of workload", package=_ROOMS)


def workload_kind(
    model: type[Model],
) -> Callable[[Callable[[Model, WorkloadContext], Any]], Callable[[Model, WorkloadContext], Any]]:
    """Register a start function under the name in ``model``'s ``kind: Literal[...]``."""
    (name,) = get_args(model.model_fields["kind"].annotation)

    def register(
        start: Callable[[Model, WorkloadContext], Any],
    ) -> Callable[[Model, WorkloadContext], Any]:
        _KINDS.add(name, WorkloadKind(name, model, start))
        return start

    return register


def kind_names() -> list[str]:
    """Return the names of all kinds of workload, sorted."""
    return _KINDS.names()


def find_kind(name: object) -> WorkloadKind[Any]:
    """Return a kind by name.

    Raises
    ------
    InputError
        Unknown name (with the nearest).
    """
    if not isinstance(name, str):
        raise InputError(f"'{name}' is not a kind of workload", expected=" | ".join(_KINDS.names()))
    return _KINDS.get(name)


def _number(name: str) -> int:
    """Return a number below 2**31 that stands for a name (the upper half is for placements)."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def random_stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the random stream of a workload process.

    Streams are PCG64 from ``SeedSequence(seed, spawn_key=(domain, id))``, keyed by name: another
    workload or process never shifts the draws of this one.

    Examples
    --------
    >>> int(random_stream(1, "serving", "arrivals").integers(1000))
    900
    """
    key = _number("/".join(map(str, names)))
    sequence = np.random.SeedSequence(seed, spawn_key=(_WORKLOAD_DOMAIN, key))
    return np.random.Generator(np.random.PCG64(sequence))


@dataclass(frozen=True, kw_only=True)
class TrackSpan:
    """Something that a workload did, on a track of a timeline; times in ps."""

    track: str
    name: str
    start_ps: int
    end_ps: int
    args: dict[str, Any]


@dataclass(kw_only=True)
class Findings:
    """What workloads tell about a run beyond its flows.

    Parameters
    ----------
    collectives
        A row per finished collective, as in ``result.json``.
    serving
        Workload name -> function that summarises it up to now (partial runs call it too): counts
        such as ``requests``, and a `railweave.workloads.stats.time_stats` mapping per time. The
        summary of a run prints both.
    tracks
        Functions that return what was done when, on tracks of their own in a timeline.
    steps
        A row per step of a workload that is made of steps, as in ``result.json``.
    warnings
        Sentences for the person who reads the result.
    waiting
        Functions that say, a line each, who waits for whom when nothing moves any more.
    occupied
        Device index of a GPU -> name of the first workload that sits on it.
    """

    collectives: list[dict[str, Any]] = field(default_factory=list)
    serving: dict[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    requests: list[Callable[[], list[dict[str, Any]]]] = field(default_factory=list)
    tracks: list[Callable[[], list[TrackSpan]]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    waiting: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    occupied: dict[int, str] = field(default_factory=dict)

    def warn(self, sentence: str) -> None:
        """Add a warning once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)


@dataclass(frozen=True, kw_only=True)
class WorkloadContext:
    """What a workload is given: the clock, the engine, the fabric, and where it stands.

    Parameters
    ----------
    env, engine, fabric, routing, settings
        The clock and the fabric the workload runs over, built by the runner.
    seed
        The scenario's seed.
    name
        The workload's name, unique in the run.
    prefix
        What the ids of its flows begin with: ``name/`` where there are several workloads, else
        nothing.
    base
        Folder that relative paths in the workload are relative to.
    placement, placement_loc
        The workload's placement, or the scenario's, and its key path.
    findings
        Where to tell results, warnings and who waits.
    faults, detection_delay_ps
        What breaks when, or None, and how long routing takes to notice.
    document, loc
        The scenario file and the key path of the workload in it, for `error` and `at`.
    """

    env: FabricEnvironment
    engine: Engine
    fabric: Fabric
    routing: Routing
    settings: NetworkSettings
    seed: int
    name: str
    prefix: str
    base: Path
    placement: PlacementModel
    placement_loc: tuple[Key, ...]
    findings: Findings
    document: Document
    loc: tuple[Key, ...]
    faults: FaultPlan | None = None
    detection_delay_ps: int = 0

    def random(self, *names: str | int) -> np.random.Generator:
        """Return the random stream of a process of this workload."""
        return random_stream(self.seed, self.name, *names)

    def place(
        self,
        ranks: int | None = None,
        *,
        placement: PlacementModel | None = None,
        at: tuple[Key, ...] = (),
        taken: Collection[int] = (),
    ) -> list[int]:
        """Return the device index of the GPU of each rank.

        Parameters
        ----------
        ranks
            Number of ranks; None: every GPU that is not taken (or all that ``list`` names).
        placement, at
            Instead of the workload's placement, e.g. that of a pool, and its key path.
        taken
            Device indices of GPUs that others sit on.

        Raises
        ------
        InputError
            More ranks than GPUs (field ``ranks``, to be located by the caller), or a name that is
            not a GPU.
        """
        from railweave.fabric.placement import place

        chosen = placement or self.placement
        try:
            placed = place(
                self.fabric,
                chosen.policy,
                ranks,
                gpus=chosen.gpus,
                seed=self.seed,
                stream=_number("/".join((self.name, *map(str, at)))),
                taken=taken,
            )
        except InputError as error:
            if error.field == "ranks":
                raise
            here = (*self.loc, *at) if placement else self.placement_loc
            raise relocated(error, self.document, here) from None
        return [int(device) for device in placed]

    def occupy(self, gpus: Iterable[int]) -> None:
        """Say which GPUs the workload sits on; a warning tells of those that another sits on."""
        occupied = self.findings.occupied
        shared = [gpu for gpu in gpus if occupied.setdefault(gpu, self.name) != self.name]
        if shared:
            names = [self.fabric.device_names[gpu] for gpu in shared[:3]]
            more = f" and {len(shared) - 3} more" if len(shared) > 3 else ""
            self.findings.warn(
                f"workloads {occupied[shared[0]]} and {self.name} sit on the same GPUs, "
                f"{', '.join(names)}{more}: they share their links, "
                "but each has their arithmetic and memory for itself"
            )

    def error(
        self,
        message: str,
        *,
        at: tuple[Key, ...] = (),
        expected: str | None = None,
        nearest: str | None = None,
    ) -> InputError:
        """Make an `InputError` about a key of this workload, with its file and line."""
        return self.document.error(message, at=(*self.loc, *at), expected=expected, nearest=nearest)

    def at(self, *loc: Key) -> AbstractContextManager[None]:
        """Give the errors raised inside the place of a key of this workload."""
        return locating(self.document, *self.loc, *loc)


def relocated(error: InputError, document: Document, loc: tuple[Key, ...]) -> InputError:
    """Return an error with its place in ``document``: the key path ``loc``, then its own field."""
    inner = error.field.split(".") if error.field else []
    keys = (*loc, *(int(key) if key.isdigit() else key for key in inner))
    at = document.error(error.message, at=keys)
    return type(error)(
        at.message,
        file=at.file,
        line=at.line,
        field=at.field,
        expected=error.expected,
        nearest=error.nearest,
    )


@contextmanager
def locating(document: Document, *loc: Key) -> Iterator[None]:
    """Give the `InputError`s raised inside the place of a key of ``document``.

    A field that an error already names is taken as relative to that key; an error that already
    names its file is left alone.
    """
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise relocated(error, document, loc) from None
