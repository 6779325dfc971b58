# SPDX-License-Identifier: Apache-2.0
"""Circuits: connections with their ports, and the links that the kernel leads them over.

The kernels of the switches choose among equal-cost next hops by a hash over addresses, protocol and
ports (``fib_multipath_hash_policy=3``), and tell beforehand what they will choose
(``ip route get ... iif ... ipproto tcp sport ... dport ...``). A circuit's path is therefore known
before its first byte, and a wanted path is had by trying ports.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from railweave.fabric.errors import InputError, RailweaveError
from railweave.tools.emulate.sandbox import SandboxError
from railweave.tools.emulate.shaping import ACK_PORTS, CLASSES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from railweave.tools.emulate.plan import NetworkPlan
    from railweave.tools.emulate.sandbox import Sandbox

__all__ = ["Circuit", "Circuits", "Want"]

_TRIES: Final = 12
_ROUNDS: Final = 40
_HALF: Final = ACK_PORTS
_TARGET_PORTS: Final = (20_000, 30_000)
_SOURCE_PORTS: Final = (40_000, 60_000)
_PORT_STREAM: Final = 40  # spawn key of the stream that draws ports


@dataclass(frozen=True, kw_only=True)
class Want:
    """A circuit that is wanted.

    Parameters
    ----------
    key
        Whose it will be.
    source, target
        NICs, by device index.
    links
        The network links it is to take, or None: those of the first ports drawn.
    """

    key: Hashable
    source: int
    target: int
    links: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """A connection: its number inside, its ends, and the links there and back."""

    number: int
    source: int
    target: int
    source_port: int
    target_port: int
    links: tuple[int, ...]
    back: tuple[int, ...]


@dataclass(eq=False)
class _Try:
    """Ports under examination: where the packet is, and what it crossed."""

    source: int
    target: int
    sport: int
    dport: int
    here: int = field(init=False)
    links: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.here = self.source


class Circuits:
    """The circuits of an emulation, opened as they are asked for.

    Parameters
    ----------
    sandbox, plan
        Where the network is and what it looks like.
    """

    def __init__(self, sandbox: Sandbox, plan: NetworkPlan) -> None:
        self._sandbox = sandbox
        self.plan = plan
        self._found: dict[Hashable, Circuit] = {}
        self._taken: set[tuple[int, int, int, int]] = set()
        self._queues: Counter[tuple[int, int]] = Counter()  # circuits by (link, queue)
        self._random = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(plan.seed, spawn_key=(_PORT_STREAM,)))
        )

    def __getitem__(self, key: Hashable) -> Circuit:
        return self._found[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def all(self) -> Iterable[Circuit]:
        """Return every circuit."""
        return self._found.values()

    # ------------------------------------------------------------------ choosing
    def find(self, wants: Sequence[Want]) -> None:
        """Choose ports for circuits that are not there yet, and learn their paths.

        Among ports that lead over one path those are taken whose queue at the shapers is free.

        Raises
        ------
        InputError
            No ports lead over a wanted path (it may not be one of the equal-cost paths).
        """
        open_wants = [want for want in wants if want.key not in self._found]
        chosen: dict[Hashable, _Try] = {}
        for _ in range(_ROUNDS):
            if not open_wants:
                break
            tries = {want.key: [self._draw(want) for _ in range(_TRIES)] for want in open_wants}
            self._trace([one for several in tries.values() for one in several])
            for want in open_wants:
                found = self._choose(want, tries[want.key])
                if found is not None:
                    chosen[want.key] = found
            open_wants = [want for want in open_wants if want.key not in chosen]
        if not open_wants:
            self._add(chosen)
            return
        want = open_wants[0]
        names = self.plan.fabric.device_names
        raise InputError(
            f"no ports lead from {names[want.source]} to {names[want.target]} over the wanted path",
            expected="one of the equal-cost paths between them",
        )

    def _draw(self, want: Want) -> _Try:
        """Draw ports: receivers in the lower half of the classes, senders in the upper."""
        while True:
            dport = int(self._random.integers(*_TARGET_PORTS)) // CLASSES * CLASSES
            dport += int(self._random.integers(_HALF))
            sport = int(self._random.integers(*_SOURCE_PORTS)) // CLASSES * CLASSES
            sport += _HALF + int(self._random.integers(_HALF))
            if (want.source, want.target, sport, dport) not in self._taken:
                return _Try(want.source, want.target, sport, dport)

    def _choose(self, want: Want, tries: Sequence[_Try]) -> _Try | None:
        path = tries[0].links if want.links is None else list(want.links)
        fitting = [one for one in tries if one.links == path]
        if not fitting:
            return None
        best = min(fitting, key=self._crowd)
        for link in best.links:
            self._queues[link, best.dport % CLASSES] += 1
        self._taken.add((best.source, best.target, best.sport, best.dport))
        return best

    def _add(self, chosen: Mapping[Hashable, _Try]) -> None:
        """Make circuits of chosen ports, with the way that acknowledgements take."""
        backs = {
            key: _Try(one.target, one.source, one.dport, one.sport) for key, one in chosen.items()
        }
        self._trace(list(backs.values()))
        for key, one in chosen.items():
            self._found[key] = Circuit(
                number=len(self._found),
                source=one.source,
                target=one.target,
                source_port=one.sport,
                target_port=one.dport,
                links=tuple(one.links),
                back=tuple(backs[key].links),
            )

    def _crowd(self, one: _Try) -> int:
        """Count the circuits that would share a queue with these ports."""
        return sum(self._queues[link, one.dport % CLASSES] for link in one.links)

    # ------------------------------------------------------------------ asking the kernel
    def trace(self, circuit: Circuit) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Ask the kernels which links a circuit takes now, there and back; None: none leads on."""

        def way(source: int, target: int, sport: int, dport: int) -> tuple[int, ...] | None:
            one = _Try(source, target, sport, dport)
            while one.here != one.target:
                name = self.plan.namespace(one.here)
                lines = {name: [self._question(one)]}
                try:
                    said = self._sandbox.call("ip", namespaces=lines, as_json=True)
                except SandboxError:  # the tool fails where there is no route
                    return None
                device = json.loads(said[name].splitlines()[0])[0].get("dev")
                if (name, device) not in self.plan.by_name:
                    return None
                self._step(one, self.plan.by_name[name, device].link)
            return tuple(one.links)

        return (
            way(circuit.source, circuit.target, circuit.source_port, circuit.target_port),
            way(circuit.target, circuit.source, circuit.target_port, circuit.source_port),
        )

    def moved_to(self, sandbox: Sandbox) -> None:
        """Go on in another sandbox built by the same plan: the same ports, the same ways."""
        self._sandbox = sandbox

    def know(self, key: Hashable, source: int, target: int, sport: int, dport: int) -> Circuit:
        """Take up a connection that a program opened, with the ways that the kernel gives it."""
        self._add({key: self._traced(source, target, sport, dport)})
        return self._found[key]

    def _traced(self, source: int, target: int, sport: int, dport: int) -> _Try:
        asked = _Try(source, target, sport, dport)
        self._trace([asked])
        return asked

    def _trace(self, tries: Sequence[_Try]) -> None:
        """Follow every try from hop to hop; all that are at one place are asked for at once."""
        plan, fabric = self.plan, self.plan.fabric
        under_way = [one for one in tries if one.here != one.target]
        while under_way:
            asked: dict[str, list[_Try]] = defaultdict(list)
            for one in under_way:
                only = plan.hops.get(one.here, {}).get(one.target, ())
                if len(only) == 1:  # no choice, no question
                    self._step(one, only[0])
                elif not only:
                    raise RailweaveError(
                        f"no route leads from {fabric.device_names[one.here]} "
                        f"to {fabric.device_names[one.target]}"
                    )
                else:
                    asked[plan.namespace(one.here)].append(one)
            lines = {
                name: [self._question(one) for one in several] for name, several in asked.items()
            }
            said = self._sandbox.call("ip", namespaces=lines, as_json=True) if lines else {}
            for name, several in asked.items():
                answers = [json.loads(line)[0] for line in said[name].splitlines() if line]
                for one, answer in zip(several, answers, strict=True):
                    self._step(one, plan.by_name[name, answer["dev"]].link)
            under_way = [one for one in under_way if one.here != one.target]

    def _step(self, one: _Try, link: int) -> None:
        one.links.append(link)
        one.here = int(self.plan.fabric.link_dst[link])
        if len(one.links) > self.plan.fabric.n_devices:
            raise RailweaveError("the kernel's routes lead in a circle")

    def _question(self, one: _Try) -> str:
        plan = self.plan
        ends = f"{plan.address(one.target)} from {plan.address(one.source)}"
        inward = ""
        if one.links:
            inward = f"iif {plan.interfaces[one.links[-1] ^ 1].name} "
        return f"route get {ends} {inward}ipproto tcp sport {one.sport} dport {one.dport}"

    # ------------------------------------------------------------------ opening
    def request(self, circuit: Circuit) -> dict[str, object]:
        """Return what the inside is told to open a circuit's connection."""
        plan = self.plan

        def end(nic: int, port: int) -> tuple[str, str, int]:
            return plan.namespace(nic), plan.address(nic), port

        return {
            "number": circuit.number,
            "source": end(circuit.source, circuit.source_port),
            "target": end(circuit.target, circuit.target_port),
        }
