# SPDX-License-Identifier: Apache-2.0
"""Put a host with its GPUs, NICs and inner links into a fabric under construction."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import HostLink, HostModel
    from railweave.fabric.graph import FabricBuilder

__all__ = ["add_host", "check_nic_rate"]


def add_host(
    build: FabricBuilder,
    name: str,
    model: HostModel,
    *,
    group: int = -1,
    nics: Sequence[int] | None = None,
    rails: bool = False,
    plane: int | None = None,
) -> dict[int, int]:
    """Add a host and return the device index of each of its NICs by number.

    Parameters
    ----------
    build
        The fabric under construction.
    name
        Name of the host; its parts are ``name/gpu0``, ``name/nic0``, ``name/nvs0``,
        ``name/pcie0``, ``name/cpu0``.
    model
        What it holds.
    group
        Scalable unit or pod, or -1.
    nics
        Numbers of the NICs of a bare host; otherwise the model says.
    rails
        Whether NIC r is of rail r.
    plane
        Device of the NVSwitch plane of a rack to which the GPUs go, instead of one of their own.

    Notes
    -----
    Network cables take the ports of a NIC from 0 on; its PCIe side is the port after them.
    """
    host = build.add_host(name)
    numbers = range(model.nics) if model.nics is not None else (nics or (0,))
    nic_name = model.nic.name if model.nic else ""
    gpus = [
        build.add_device(
            f"{name}/gpu{i}",
            DeviceKind.GPU,
            host=host,
            index=i,
            group=group,
            model=model.gpu.name,
        )
        for i in range(model.gpus)
    ]
    if model.nvlink is not None and plane is None:
        plane = build.add_device(f"{name}/nvs0", DeviceKind.NVSWITCH, host=host, group=group)
    trees = [
        build.add_device(f"{name}/pcie{i}", DeviceKind.PCIE_SWITCH, host=host, index=i, group=group)
        for i in range(model.trees)
    ]
    roots = [
        build.add_device(f"{name}/cpu{i}", DeviceKind.CPU, host=host, index=i, group=group)
        for i in range(model.cpus)
    ]
    devices = {
        i: build.add_device(
            f"{name}/nic{i}",
            DeviceKind.NIC,
            host=host,
            index=i,
            group=group,
            rail=i if rails else -1,
            model=nic_name,
        )
        for i in numbers
    }
    if model.nvlink is not None and plane is not None:
        for gpu in gpus:
            build.add_cable(
                gpu,
                plane,
                rate_bps=model.nvlink.rate_bps,
                delay_ps=model.nvlink.latency_ps,
                model=LinkModel.NVLINK,
                tier="nvlink",
            )
    _add_pcie(build, model, gpus, (trees, roots), devices)
    order = list(devices)
    for gpu, nic in zip(gpus, model.gpu_nic, strict=True):
        build.set_affine_nic(gpu, devices[order[nic]])
    return devices


def _add_pcie(
    build: FabricBuilder,
    model: HostModel,
    gpus: Sequence[int],
    inner: tuple[Sequence[int], Sequence[int]],
    nics: dict[int, int],
) -> None:
    """Join GPUs and NICs to PCIe switches and CPU roots, or a GPU straight to its NICs."""
    trees, roots = inner
    nic_port = model.nic.ports if model.nic else 1

    def join(a: int, b: int, link: HostLink, b_port: int | None = None) -> None:
        build.add_cable(
            a,
            b,
            rate_bps=link.rate_bps,
            delay_ps=link.latency_ps,
            model=LinkModel.PCIE,
            tier="pcie",
            b_port=b_port,
        )

    if not roots:
        for nic in nics.values():
            join(gpus[0], nic, model.pcie, nic_port)
        return
    to_root = model.root or model.pcie
    for gpu, tree, root in zip(gpus, model.gpu_tree, model.gpu_root, strict=True):
        join(gpu, trees[tree] if tree >= 0 else roots[root], model.pcie if tree >= 0 else to_root)
    for nic, tree, root in zip(nics.values(), model.nic_tree, model.nic_root, strict=True):
        join(trees[tree] if tree >= 0 else roots[root], nic, model.pcie, nic_port)
    for tree, root in zip(trees, model.tree_root, strict=True):
        join(tree, roots[root], to_root)
    if model.socket is not None:
        for one, other in combinations(roots, 2):
            join(one, other, model.socket)


def check_nic_rate(model: HostModel, rate_bps: int, *, field: str) -> None:
    """Refuse a cable faster than the host's NIC."""
    if model.nic is not None and rate_bps > model.nic.rate_bps:
        raise InputError(
            f"a link of {format_rate(rate_bps)} does not fit the NIC of {model.name}",
            field=field,
            expected=f"at most {format_rate(model.nic.rate_bps)} ({model.nic.name})",
        )
