# SPDX-License-Identifier: Apache-2.0
"""Opens measurements with what a person says of them: profile, topology, counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.tools.measured.hardware import Machines
from railweave.tools.measured.judging import Judged, judge
from railweave.tools.measured.reading import read_measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric
    from railweave.fabric.host_profiles import HostProfile
    from railweave.fabric.profiles import DeviceProfile
    from railweave.tools.measured.data import DataSet

__all__ = ["Given", "any_profile", "open_measured", "open_sets"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What was said on the command line; None: nothing."""

    topology: str | None = None
    profile: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    op: str | None = None


def any_profile(name: str | None) -> DeviceProfile | HostProfile | None:
    """Return a device or host profile by name or path.

    Raises
    ------
    InputError
        There is none, or its file is wrong.
    """
    if name is None:
        return None
    from railweave.fabric.catalogue import catalogue_names
    from railweave.fabric.host_profiles import load_host_profile
    from railweave.fabric.profiles import load_profile

    path = Path(name)
    beside = path.with_name(f"{path.name}.yaml")
    if not path.is_file() and beside.is_file() and name not in catalogue_names("profiles"):
        name, path = str(beside), beside  # what `calibrate -o NAME.yaml` left here
    try:
        host = path.is_file() and "host-profile" in path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        host = False
    return load_host_profile(name) if host else load_profile(name)


def open_sets(
    paths: Sequence[Path], given: Given, profile: DeviceProfile | HostProfile | None
) -> tuple[list[DataSet], dict[str, Machines]]:
    """Read files; return their data sets, and their machines by name where a topology is given.

    Raises
    ------
    InputError
        A file or the topology is wrong, or they do not go together.
    """
    fabric = None
    if given.topology is not None:
        from railweave.tools.opening import open_topology

        _, fabric = open_topology(given.topology)
    sets: list[DataSet] = []
    machines: dict[str, Machines] = {}
    for path in paths:
        for data in read_measured(path, op=given.op):
            full = data.with_ranks(nodes=given.nodes, gpus_per_node=given.gpus_per_node)
            if fabric is not None and full.backend != "verbs":
                here = _on_fabric(full, fabric, profile)
                if here is not None:
                    machines[full.name] = here
            sets.append(full)
    return sets, machines


def open_measured(paths: Sequence[Path], given: Given) -> list[Judged]:
    """Read files and predict their rows.

    Raises
    ------
    InputError
        A file, the topology or the profile is wrong; or, with one of them given, a data set
        cannot be predicted.
    """
    profile = any_profile(given.profile)
    sets, machines = open_sets(paths, given, profile)
    required = profile is not None or given.topology is not None
    return [
        judge(data, profile=profile, machines=machines.get(data.name), required=required)
        for data in sets
    ]


def _on_fabric(
    data: DataSet, fabric: Fabric, profile: DeviceProfile | HostProfile | None
) -> Machines | None:
    """Return the machines of a topology that a data set ran on; None for ranks on a CPU host."""
    from railweave.fabric.host_profiles import HostProfile
    from railweave.fabric.nodes import Machines as Nodes

    if data.ranks < 1:
        raise InputError(
            f"{data.name} does not say how many GPUs took part",
            expected="--nodes and --gpus-per-node",
        )
    if data.ranks > len(fabric.gpus):
        raise InputError(
            f"the {data.ranks} ranks of {data.name} do not fit on the {len(fabric.gpus)} of "
            f"{fabric.name}",
            field="--topology",
        )
    cpu_host = fabric.meta.get("kind") == "loopback-host"
    if cpu_host != (data.backend == "gloo"):
        raise InputError(
            f"{data.name} was measured with {data.backend}, and {fabric.name} is "
            f"{'a CPU host' if cpu_host else 'a fabric of GPUs'}",
            field="--topology",
        )
    if cpu_host or isinstance(profile, HostProfile):
        return None
    hosts: dict[int, list[int]] = {}
    for gpu in fabric.gpus.tolist():
        hosts.setdefault(int(fabric.host[gpu]), []).append(gpu)
    wide = [gpus for gpus in hosts.values() if len(gpus) >= data.gpus_per_node]
    if len(wide) < data.nodes:
        raise InputError(
            f"{fabric.name} has no {data.nodes} hosts of {data.gpus_per_node} GPUs",
            field="--topology",
        )
    devices = [gpu for gpus in wide[: data.nodes] for gpu in gpus[: data.gpus_per_node]]
    nodes = Nodes(fabric, devices)
    device = profile or nodes.profile
    if device is None:
        raise InputError(
            f"no profile is known for the GPUs of {fabric.name}", expected="--profile NAME"
        )
    if nodes.network is None:
        return Machines(profile=device)
    return Machines(
        profile=device,
        network=nodes.network,
        nics_per_node=nodes.node_nics,
        nic_rate_bps=nodes.nic_bps,
    )
