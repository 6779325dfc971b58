# SPDX-License-Identifier: Apache-2.0
"""Put a host with its GPUs, NICs and inner links into a fabric under construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from railweave.fabric.errors import InputError
from railweave.fabric.graph import DeviceKind, LinkModel
from railweave.fabric.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.devices import HostModel
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
) -> dict[int, int]:
    """Add a host and return the device index of each of its NICs by number.

    Parameters
    ----------
    build
        The fabric under construction.
    name
        Name of the host; its parts are ``name/gpu0``, ``name/nic0``, ``name/nvs0``, ``name/pcie0``.
    model
        What it holds.
    group
        Scalable unit or pod, or -1.
    nics
        Numbers of the NICs of a bare host; otherwise the model says.
    rails
        Whether NIC r is of rail r.

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
    plane = -1
    if model.nvlink is not None:
        plane = build.add_device(f"{name}/nvs0", DeviceKind.NVSWITCH, host=host, group=group)
    trees = [
        build.add_device(f"{name}/pcie{i}", DeviceKind.PCIE_SWITCH, host=host, index=i, group=group)
        for i in range(model.trees)
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
    if model.nvlink is not None:
        for gpu in gpus:
            build.add_cable(
                gpu,
                plane,
                rate_bps=model.nvlink.rate_bps,
                delay_ps=model.nvlink.latency_ps,
                model=LinkModel.NVLINK,
                tier="nvlink",
            )
    _add_pcie(build, model, gpus, trees, devices)
    order = list(devices)
    for gpu, nic in zip(gpus, model.gpu_nic, strict=True):
        build.set_affine_nic(gpu, devices[order[nic]])
    return devices


def _add_pcie(
    build: FabricBuilder,
    model: HostModel,
    gpus: Sequence[int],
    trees: Sequence[int],
    nics: dict[int, int],
) -> None:
    """Join GPUs and NICs to their PCIe switches, or a GPU straight to its NICs."""
    nic_port = model.nic.ports if model.nic else 1

    def join(a: int, b: int, b_port: int | None = None) -> None:
        build.add_cable(
            a,
            b,
            rate_bps=model.pcie.rate_bps,
            delay_ps=model.pcie.latency_ps,
            model=LinkModel.PCIE,
            tier="pcie",
            b_port=b_port,
        )

    if not trees:
        for nic in nics.values():
            join(gpus[0], nic, nic_port)
        return
    for gpu, tree in zip(gpus, model.gpu_tree, strict=True):
        join(gpu, trees[tree])
    for nic, tree in zip(nics.values(), model.nic_tree, strict=True):
        join(trees[tree], nic, nic_port)


def check_nic_rate(model: HostModel, rate_bps: int, *, field: str) -> None:
    """Refuse a cable faster than the host's NIC."""
    if model.nic is not None and rate_bps > model.nic.rate_bps:
        raise InputError(
            f"a link of {format_rate(rate_bps)} does not fit the NIC of {model.name}",
            field=field,
            expected=f"at most {format_rate(model.nic.rate_bps)} ({model.nic.name})",
        )
