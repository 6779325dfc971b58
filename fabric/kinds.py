# SPDX-License-Identifier: Apache-2.0
"""What devices and links are."""

from __future__ import annotations

from enum import IntEnum

from railweave.fabric.errors import InputError, nearest_name

__all__ = ["DeviceKind", "LinkModel"]


class DeviceKind(IntEnum):
    """What a device is."""

    GPU = 0
    NIC = 1
    NVSWITCH = 2
    PCIE_SWITCH = 3
    CPU = 4
    SWITCH = 5


class LinkModel(IntEnum):
    """How a link carries bytes (PHYSICS of its protocol)."""

    NVLINK = 0
    PCIE = 1
    ROCE_LOSSLESS = 2
    ROCE_LOSSY = 3
    TRIMMING = 4
    INFINIBAND = 5

    @property
    def label(self) -> str:
        """The name used in files: ``roce-lossless``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_label(cls, label: str) -> LinkModel:
        """Return the model of that name, or raise `InputError` naming the nearest."""
        labels = {model.label: model for model in cls}
        if label not in labels:
            raise InputError(
                f"'{label}' is not a link model",
                expected=" | ".join(labels),
                nearest=nearest_name(label, labels),
            )
        return labels[label]
