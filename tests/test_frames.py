# SPDX-License-Identifier: Apache-2.0
"""Frame sizes and efficiencies of RoCEv2 and InfiniBand, worked out field by field."""

from __future__ import annotations

import pytest

from railweave.fabric.network import Framing, NetworkSettings

# MTU, IP version: wire bytes of a full packet, payload share, goodput in Gb/s at 100 to 800 Gb/s.
TABLE = [
    (1024, 4, 1106, "0.92586", ["92.59", "185.17", "370.34", "740.69"]),
    (2048, 4, 2130, "0.96150", ["96.15", "192.30", "384.60", "769.20"]),
    (4096, 4, 4178, "0.98037", ["98.04", "196.07", "392.15", "784.30"]),
    (1024, 6, 1126, "0.90941", ["90.94", "181.88", "363.77", "727.53"]),
    (2048, 6, 2150, "0.95256", ["95.26", "190.51", "381.02", "762.05"]),
    (4096, 6, 4198, "0.97570", ["97.57", "195.14", "390.28", "780.56"]),
]


@pytest.mark.parametrize(("mtu", "ip", "wire", "share", "goodput"), TABLE)
def test_a_full_packet(mtu: int, ip: int, wire: int, share: str, goodput: list[str]) -> None:
    settings = NetworkSettings(mtu_bytes=mtu, ip_version=ip)
    assert mtu + settings.overhead_bytes(Framing.ETHERNET) == wire
    assert f"{settings.efficiency():.5f}" == share
    seen = [f"{rate * settings.efficiency():.2f}" for rate in (100, 200, 400, 800)]
    assert seen == goodput


def test_a_message_of_one_mebibyte() -> None:
    settings = NetworkSettings()
    assert settings.packets(2**20) == 256
    wire = settings.wire_bytes(2**20)
    assert wire == 1_069_584
    time_ps = wire * 20  # at 400 Gb/s a byte takes 20 ps
    assert time_ps == 21_391_680
    assert f"{8 * 2**20 / time_ps * 1e3:.2f}" == "392.14"


def test_a_vlan_tag_adds_four_bytes() -> None:
    assert NetworkSettings(vlan=True).overhead_bytes(Framing.ETHERNET) == 86
    assert NetworkSettings(vlan=True, ip_version=6).overhead_bytes(Framing.ETHERNET) == 106


@pytest.mark.parametrize(
    ("size", "wire"),
    [(0, 82 + 16), (1, 4 + 82 + 16), (4, 4 + 82 + 16), (4096, 4194), (4097, 4100 + 2 * 82 + 16)],
)
def test_short_messages_are_padded_and_never_free(size: int, wire: int) -> None:
    assert NetworkSettings().wire_bytes(size) == wire


def test_acknowledgements() -> None:
    settings = NetworkSettings(ack_every=1)
    assert settings.ack_wire_bytes(Framing.ETHERNET) == 86
    # One ACK per packet costs a saturated reverse flow 2.06 % at MTU 4096 and 7.78 % at 1024.
    assert f"{100 * settings.ack_share(Framing.ETHERNET):.2f}" == "2.06"
    small = NetworkSettings(ack_every=1, mtu_bytes=1024)
    assert f"{100 * small.ack_share(Framing.ETHERNET):.2f}" == "7.78"
    assert NetworkSettings(ack_every=0).ack_share(Framing.ETHERNET) == 0


def test_infiniband() -> None:
    settings = NetworkSettings()
    assert settings.overhead_bytes(Framing.INFINIBAND) == 26
    assert f"{settings.efficiency(Framing.INFINIBAND):.4f}" == "0.9937"
    assert settings.wire_bytes(4096, Framing.INFINIBAND) == 4096 + 26 + 16
