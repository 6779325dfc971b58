# SPDX-License-Identifier: Apache-2.0
"""The paths that the kernels chose, as a `Routing` that engines can be given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.routing import PathSet, Routing
from railweave.tools.emulate.circuits import Want

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import ArrayLike

    from railweave.fabric.flow import Flow
    from railweave.fabric.graph import Fabric
    from railweave.tools.emulate.choosing import PathChooser
    from railweave.tools.emulate.circuits import Circuit, Circuits

__all__ = ["KernelRouting"]


class KernelRouting(Routing):
    """Routes over circuits: every pair of NICs that is asked for gets one, and takes its path.

    Parameters
    ----------
    fabric, policy, seed
        As of `Routing`, for the ways inside hosts.
    circuits, chooser
        Where circuits come from, and which paths they are to take.
    """

    def __init__(
        self, fabric: Fabric, *, policy: str, seed: int, circuits: Circuits, chooser: PathChooser
    ) -> None:
        super().__init__(fabric, policy=policy, seed=seed)
        self._circuits = circuits
        self._chooser = chooser
        self._whole: dict[tuple[int, int], dict[tuple[int, ...], tuple[int, ...]]] = {}
        self._by_links: dict[tuple[int, ...], list[Circuit]] = {}

    # ------------------------------------------------------------------ pairs
    def routes(
        self, src: ArrayLike, dst: ArrayLike, qp: ArrayLike | int = 0, *, of: int | None = None
    ) -> PathSet:
        """Return the path of each pair: the kernel's between hosts, the only one inside."""
        rows = [np.atleast_1d(column).astype(np.int64) for column in (src, dst, qp)]
        keys = list(zip(*(column.tolist() for column in np.broadcast_arrays(*rows)), strict=True))
        wants = [
            self._want(("pair", *key), key[0], key[1], qp=key[2])
            for key in dict.fromkeys(keys)
            if self._crosses(key[0], key[1]) and ("pair", *key) not in self._circuits
        ]
        self._circuits.find(wants)
        paths = []
        for source, target, pair in keys:
            if self._crosses(source, target):
                circuit = self._circuits["pair", source, target, pair]
                same = self._by_links.setdefault(circuit.links, [])
                if circuit not in same:
                    same.append(circuit)
                paths.append(self._full(source, target, circuit.links))
            else:
                paths.append(super().routes([source], [target], pair).path(0))
        ptr = np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.int32)
        links = np.array([link for path in paths for link in path], np.int32)
        return PathSet(ptr, links, np.ones(len(links)))

    def circuits_over(self, links: Sequence[int]) -> Sequence[Circuit]:
        """Return the circuits of pairs over a path (all its links); none where it stays inside."""
        network = self._network(links)
        return self._by_links[network] if network else ()

    # ------------------------------------------------------------------ flows
    def find(self, flows: Iterable[Flow]) -> None:
        """Find a circuit for each flow that has none yet, all at once."""
        wants = []
        for flow in flows:
            if not self._crosses(flow.src, flow.dst) or self._key(flow) in self._circuits:
                continue
            pinned = None if flow.path is None else self._network(flow.path)
            wants.append(self._want(self._key(flow), flow.src, flow.dst, links=pinned))
        self._circuits.find(wants)

    def circuit_of(self, flow: Flow) -> Circuit | None:
        """Return a flow's own circuit, or None where it stays inside a host."""
        if not self._crosses(flow.src, flow.dst):
            return None
        self.find([flow])
        return self._circuits[self._key(flow)]

    def pinned(self, flow: Flow) -> Flow:
        """Return the flow with the path of its circuit."""
        circuit = self.circuit_of(flow)
        if circuit is None:
            return flow
        return replace(flow, path=self._full(flow.src, flow.dst, circuit.links))

    @staticmethod
    def _key(flow: Flow) -> Hashable:
        return ("flow", flow.id, flow.src, flow.dst)

    # ------------------------------------------------------------------ paths
    def _crosses(self, source: int, target: int) -> bool:
        return bool(self.fabric.host[source] != self.fabric.host[target])

    def _network(self, links: Iterable[int]) -> tuple[int, ...]:
        return tuple(link for link in links if self.fabric.link_network[link])

    def _want(
        self,
        key: Hashable,
        source: int,
        target: int,
        *,
        qp: int = 0,
        links: tuple[int, ...] | None = None,
    ) -> Want:
        network = next(iter(self._ways(source, target)))
        near, far = int(self.fabric.link_src[network[0]]), int(self.fabric.link_dst[network[-1]])
        if links is None:
            links = self._chooser.links(near, far, qp=qp)
        return Want(key=key, source=near, target=far, links=links)

    def _ways(self, source: int, target: int) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return the network links of each equal-cost path -> all its links."""
        known = self._whole.get((source, target))
        if known is None:
            paths = self.equal_cost_paths(source, target)
            known = {self._network(path): path for path in paths}
            self._whole[source, target] = known
        return known

    def _full(self, source: int, target: int, network: tuple[int, ...]) -> tuple[int, ...]:
        whole = self._ways(source, target).get(network)
        if whole is None:
            names = self.fabric.device_names
            over = ", ".join(self.fabric.link_name(link) for link in network)
            raise RailweaveError(
                f"the kernel leads {names[source]} -> {names[target]} over {over}, "
                "which is none of the fabric's paths"
            )
        return whole

    def check_outside(self, flow: Flow) -> None:
        """Refuse a flow that leaves a host for itself: its kernel would keep it inside."""
        path = self.equal_cost_paths(flow.src, flow.dst)[0] if flow.path is None else flow.path
        if not self._crosses(flow.src, flow.dst) and self._network(path):
            raise InputError(
                f"flow '{flow.id}' leaves and enters one host, whose kernel keeps it inside",
                expected="endpoints on two hosts",
            )
