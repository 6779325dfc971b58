# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction
from importlib import resources

import pytest
import yaml

from railweave.fabric.cables import cable_model, cables_for
from railweave.fabric.catalogue import CLASSES, Footprint, Price, catalogue_names
from railweave.fabric.devices import (
    gpu_model,
    host_model,
    nic_model,
    rack_model,
    switch_model,
)
from railweave.fabric.errors import InputError, RailweaveError
from railweave.fabric.network import Framing
from railweave.fabric.network_model import AckModel, NetworkModel, network_settings, phy_latency_ps
from railweave.fabric.registry import Registry

CATALOGUE = resources.files("railweave.fabric").joinpath("catalog")
LOOK_UP = {
    "gpus": gpu_model,
    "nics": nic_model,
    "switches": switch_model,
    "hosts": host_model,
    "racks": rack_model,
    "cables": cable_model,
}


def raw(section):
    return yaml.safe_load(CATALOGUE.joinpath(f"{section}.yaml").read_text("utf-8"))[section]


def numbers(item, path=()):
    """Every number of an entry: bare ones, and the text of quantities such as 400Gbps."""
    if isinstance(item, dict):
        if "value" in item:
            yield path, item
            return
        for key, value in item.items():
            yield from numbers(value, (*path, key))
    elif isinstance(item, list):
        for position, value in enumerate(item):
            yield from numbers(value, (*path, position))
    elif isinstance(item, int | float) or (isinstance(item, str) and item[:1].isdigit()):
        yield path, item


@pytest.mark.parametrize("section", LOOK_UP)
def test_every_number_is_sourced(section):
    sources = yaml.safe_load(CATALOGUE.joinpath("sources.yaml").read_text("utf-8"))["sources"]
    seen = 0
    for name, entry in raw(section).items():
        for path, item in numbers(
            {k: v for k, v in entry.items() if k not in ("aliases", "title")}
        ):
            assert isinstance(item, dict), f"{name} {path} has no source: {item}"
            assert set(item) == {"value", "source", "class"}, (name, path)
            assert item["source"] in sources, (name, path)
            assert item["class"] in CLASSES, (name, path)
            assert (item["source"] == "assumption") <= (item["class"] == "assumed"), (name, path)
            seen += 1
    assert seen >= 3


def test_every_source_is_used():
    used = {
        word
        for section in LOOK_UP
        for line in CATALOGUE.joinpath(f"{section}.yaml").read_text("utf-8").splitlines()
        for word in line.replace(",", " ").replace("}", " ").split()
    }
    sources = yaml.safe_load(CATALOGUE.joinpath("sources.yaml").read_text("utf-8"))["sources"]
    assert set(sources) <= used


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section in LOOK_UP for name in raw(section)]
)
def test_every_entry_loads_with_its_figures(section, name):
    model = LOOK_UP[section](name)
    assert model.name == name
    assert name in catalogue_names(section)
    assert {figure.source for figure in model.figures.values()}
    for alias in raw(section)[name].get("aliases", ()):
        assert LOOK_UP[section](alias.upper()) == model


def test_dgx_h100():
    host = host_model("dgx-h100")
    assert (host.gpus, host.nics, host.trees) == (8, 8, 8)
    assert host.nvlink is not None
    assert host.nvlink.rate_bps == 8 * 370_800_000_000  # 18 links x 20.6 GB/s
    assert host.nvlink.latency_ps == 350_000
    assert host.pcie.rate_bps == 437_840_000_000  # 54.73 GB/s
    assert host.gpu_nic == tuple(range(8))
    assert host.nic is not None
    assert host.nic.rate_bps == 400_000_000_000


def test_pcie_rate_is_what_its_derivation_gives():
    exact = Fraction(32 * 10**9) * 16 * Fraction(128, 130) * Fraction(256, 280) * Fraction(95, 100)
    assert host_model("dgx-h100").pcie.rate_bps == round(exact / 8, -7) * 8


def test_dgx_a100_shares_each_pcie_switch():
    host = host_model("dgx-a100")
    assert host.trees == 4
    assert host.gpu_tree == host.nic_tree == (0, 0, 1, 1, 2, 2, 3, 3)
    assert host.gpu_nic == tuple(range(8))


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "dtype", "flops"),
    [
        ("T4", 16, 320, "fp16", 65.0),
        ("A100", 80, 2039, "bf16", 312.0),
        ("H100", 80, 3350, "bf16", 989.0),
        ("h200", 141, 4800, "fp8", 1979.0),
        ("B200", 180, 8000, "fp4", 9000.0),
        ("L40S", 48, 864, "fp8", 733.0),
        ("RTX 4090", 24, 1008, "bf16", 165.0),
        ("rtx_pro_6000", 96, 1597.6, "bf16", 467.8),
        ("V100", 32, 900, "fp16", 125.0),
        ("A100-40", 40, 1555, "bf16", 312.0),
        ("a100 pcie", 80, 1935, "tf32", 156.0),
        ("H100-PCIe", 80, 2000, "fp8", 1513.0),
        ("H20", 96, 4000, "fp8", 296.0),
        ("H20-141", 141, 4000, "bf16", 148.0),
        ("GB200", 186, 8000, "bf16", 2500.0),
        ("GB300", 288, 8000, "fp4", 15000.0),
        ("MI300X", 192, 5300, "bf16", 1307.0),
    ],
)
def test_gpus(name, memory, bandwidth, dtype, flops):
    gpu = gpu_model(name)
    assert gpu.memory_bytes == memory * 10**9
    assert gpu.memory_bandwidth_Bps == round(bandwidth * 10**9)
    assert gpu.flops[dtype] == round(flops * 10**12)
    assert 0 < gpu.efficiency.compute <= 1
    assert 0 < gpu.efficiency.memory <= 1


def test_switches():
    quantum = switch_model("Quantum-2")
    assert (quantum.ports[400 * 10**9], quantum.protocols) == (64, frozenset({"infiniband"}))
    for name in ("spectrum-4", "tomahawk5"):
        switch = switch_model(name)
        assert switch.ports == {800 * 10**9: 64, 400 * 10**9: 128, 200 * 10**9: 256}
        assert switch.capacity_bps == 51_200_000_000_000
        assert switch.protocols == {"ethernet"}
    assert switch_model("tomahawk5").port_mode_bps(100 * 10**9) == 200 * 10**9
    assert switch_model("tomahawk5").port_mode_bps(1600 * 10**9) is None
    assert switch_model("tomahawk5").buffer_bytes == 165_660_324


def test_power_size_and_price():
    assert switch_model("spectrum-4").footprint == Footprint(
        power_mw=940_000, rack_units=2, price=Price(cents=6_721_300, currency="USD")
    )
    assert host_model("dgx-b200").footprint.max_power_mw == 14_300_000
    assert nic_model("connectx-5").footprint == Footprint()
    priced = [
        entry["price"] for section in LOOK_UP for entry in raw(section).values() if "price" in entry
    ]
    assert len(priced) > 20
    assert {price["class"] for price in priced} == {"assumed"}


def test_cables_by_length():
    """Copper, then multimode, then single mode, as the length grows."""

    def media(metres):
        return [cable.medium for cable in cables_for(400 * 10**9, metres * 1000)]

    assert media(2)[0] == media(5)[0] == media(7)[0] == "copper"
    assert media(8)[0] == media(50)[0] == "multimode"
    assert set(media(51)) == set(media(10_000)) == {"single-mode"}
    assert media(10_001) == []
    twin = cable_model("2xsr4-800g")
    assert (twin.link_bps, twin.pieces, cable_model("dac-800g").pieces) == (400 * 10**9, 2, 1)
    for name in catalogue_names("cables"):
        cable = cable_model(name)
        typical, most = cable.footprint.power_mw, cable.footprint.max_power_mw
        assert typical is None or most is None or typical <= most


@pytest.mark.parametrize(
    ("name", "ports", "rate"),
    [
        ("connectx-6", 1, 200),
        ("connectx-6-2x200g", 2, 200),
        ("CX7", 1, 400),
        ("connectx-7-2x200g", 2, 200),
        ("connectx-8", 1, 800),
        ("connectx-8-2x400g", 2, 400),
    ],
)
def test_nics(name, ports, rate):
    nic = nic_model(name)
    assert (nic.ports, nic.rate_bps) == (ports, rate * 10**9)


@pytest.mark.parametrize("name", catalogue_names("switches"))
def test_ports_of_a_switch_do_not_exceed_its_capacity(name):
    switch = switch_model(name)
    assert max(rate * ports for rate, ports in switch.ports.items()) == switch.capacity_bps


def test_unknown_names_give_the_nearest():
    with pytest.raises(InputError, match=r"'H1000' is not a GPU .* did you mean 'h100'\?"):
        gpu_model("H1000")
    with pytest.raises(InputError, match=r"did you mean 'tomahawk-5'\?"):
        switch_model("tomahawk55")


def test_network_blocks_merge_later_over_earlier():
    topology = NetworkModel(mtu="1024B", ack=AckModel(every=1, size="90B"), phy_latency="50ns")
    scenario = NetworkModel(mtu="2048B", switching="cut-through", ack=AckModel(every=0))
    merged = network_settings(topology, scenario)
    assert (merged.mtu_bytes, merged.cut_through) == (2048, True)
    assert (merged.ack_every, merged.ack_bytes) == (0, 90)
    assert merged.host_latency_ps == 500_000
    assert phy_latency_ps(topology, scenario) == 50_000
    assert phy_latency_ps(scenario) == 100_000
    assert network_settings(None, scenario).overhead_bytes(Framing.ETHERNET) == 82
    assert network_settings(NetworkModel(switching="store-and-forward")).cut_through is False


def test_registry_finds_names_and_keeps_them_unique():
    table: Registry[int] = Registry("shape")
    assert table("square")(4) == 4
    with pytest.raises(RailweaveError, match="two things are called shape 'square'"):
        table.add("square", 5)
    with pytest.raises(InputError, match=r"'sqare' is not a shape.*did you mean 'square'\?"):
        table.get("sqare")
