# SPDX-License-Identifier: Apache-2.0
"""validate, normal and calibrate: layouts, exit codes, what they find in made-up measurements."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from railweave.collectives.gloo import gloo_counts, predict_gloo
from railweave.collectives.predict import predict
from railweave.fabric.host_profiles import HostProfile, host_profile_text, load_host_profile
from railweave.fabric.profiles import find_network, find_profile, load_profile
from railweave.tools.cli import run_command_line
from railweave.tools.measured.fitting import fit
from railweave.tools.measured.hardware import network_of

HEAD = "dataset,hardware,nodes,gpus_per_node,link,collective,algorithm,protocol,size_bytes,time_us"
SIZES = [8 << (2 * k) for k in range(15)]


def table(folder, name, rows, *, hardware="8xH100-SXM5", nodes=1, gpus=8, link="NVLink4-NVSwitch"):
    """Write rows (operation, size, time in us) as a table."""
    lines = [
        f"{name},{hardware},{nodes},{gpus},{link},{op},NCCL-auto,,{size},{time:.6g}"
        for op, size, time in rows
    ]
    path = folder / f"{''.join(filter(str.isalnum, name))}.csv"
    path.write_text("\n".join((HEAD, *lines)) + "\n")
    return str(path)


def predicted(op, size, profile="h100", **more):
    given = {"gpus_per_node": 8, **more}
    base = find_profile(profile) if isinstance(profile, str) else profile
    return predict(base, op, size_bytes=size, **given).time_s * 1e6


def on_h100(times=lambda op, size: 1.0, ops=("all_reduce", "all_gather"), **more):
    return [
        (op, size, predicted(op, size, **more) * times(op, size)) for op in ops for size in SIZES
    ]


def told(capsys, *arguments, code=0):
    assert run_command_line(arguments) == code, capsys.readouterr()
    out, err = capsys.readouterr()
    return json.loads(out) if "--json" in arguments else out, err


def test_layout_of_the_json(tmp_path, capsys):
    path = table(tmp_path, "box", [*on_h100(lambda op, size: 1.1), ("kv_transfer", 8, 1.0)])
    data, _ = told(capsys, "validate", path, "--json")
    assert list(data) == ["schema", "datasets", "findings"]
    (one,) = data["datasets"]
    assert list(one) == [
        "name", "hardware", "nodes", "gpus_per_node", "profile", "rows", "bands", "skipped",
    ]  # fmt: skip
    assert (one["name"], one["nodes"], one["gpus_per_node"]) == ("box", 1, 8)
    assert (one["hardware"], one["profile"]) == ("8xH100-SXM5", "h100")
    assert {tuple(row) for row in one["rows"]} == {
        ("op", "size_bytes", "measured_us", "predicted_us", "ratio", "algorithm")
    }
    assert all(row["ratio"] == pytest.approx(1 / 1.1, rel=1e-4) for row in one["rows"])
    assert {name: band["rows"] for name, band in one["bands"].items()} == {
        "small": 14, "mid": 8, "large": 8,
    }  # fmt: skip
    for band in one["bands"].values():
        assert band["geomean_error"] == pytest.approx(0.1, rel=1e-3)
    assert one["skipped"] == [{"line": 32, "why": "kv_transfer is no collective of NCCL"}]


def test_a_band_without_rows_is_null(tmp_path, capsys):
    path = table(tmp_path, "box", [("all_reduce", 8, 12.0)])
    data, _ = told(capsys, "validate", path, "--json")
    bands = data["datasets"][0]["bands"]
    assert (bands["mid"], bands["large"], bands["small"]["rows"]) == (None, None, 1)


@pytest.mark.parametrize(("limit", "code"), [("12%", 0), ("9%", 1), ("0.12", 0), ("0.09", 1)])
def test_fail_above(tmp_path, capsys, limit, code):
    path = table(tmp_path, "box", on_h100(lambda op, size: 1.1))
    _, err = told(capsys, "validate", path, "--fail-above", limit, code=code)
    assert ("above 0.09: box" in err) == bool(code)


def test_nothing_predicted_fails_a_threshold(tmp_path, capsys):
    path = table(tmp_path, "box", on_h100(), hardware="8xH20")
    out, _ = told(capsys, "validate", path)
    assert "no profile is known for '8xH20'" in out
    told(capsys, "validate", path, "--fail-above", "50%", code=1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--fail-above", "x"), "--fail-above: 'x' is not a share"),
        (("--profile", "h1000"), "did you mean 'h100'"),
        (("--topology", "h100-rail-9"), "h100-rail-8"),
        (("--topology", "loopback-host"), "do not fit on the 4"),
        (("--profile", "missing.yaml"), "missing.yaml"),
    ],
)
def test_wrong_input_ends_with_2(tmp_path, capsys, arguments, part):
    path = table(tmp_path, "box", on_h100())
    _, err = told(capsys, "validate", path, *arguments, code=2)
    assert part in err
    told(capsys, "validate", str(tmp_path / "absent.csv"), code=2)


def test_a_topology_gives_hosts_profile_and_network(tmp_path, capsys):
    network = find_network("roce-400g")
    rows = [("all_reduce", size, predicted("all_reduce", size, nodes=4, network=network))
            for size in SIZES]  # fmt: skip
    path = table(tmp_path, "pod", rows, hardware="", nodes=4, link="")
    data, _ = told(capsys, "validate", path, "--topology", "h100-rail-8", "--json")
    (one,) = data["datasets"]
    assert one["profile"] == "h100"
    assert all(row["ratio"] == pytest.approx(1, rel=1e-4) for row in one["rows"])


def test_findings(tmp_path, capsys):
    bump = on_h100(lambda op, size: 3.0 if (op, size) == ("all_gather", SIZES[6]) else 1.0)
    slow = on_h100(lambda op, size: 15.0 if size > 2**23 else 1.0)
    files = [
        table(tmp_path, "bump", bump),
        table(tmp_path, "broken", slow),
        table(tmp_path, "ms", on_h100(lambda op, size: 1e-3)),
        table(tmp_path, "elements", [(op, s, t) for op, s, t in on_h100(
            lambda op, size: 2.0 if size > 2**23 else 1.0)]),
    ]  # fmt: skip
    data, _ = told(capsys, "validate", *files, "--json")
    found = {f["dataset"]: (f["kind"], f["what"]) for f in reversed(data["findings"])}
    assert found["bump"][0] == "outlier"
    assert f"all_gather of {SIZES[6]} B" in found["bump"][1]
    assert found["broken"][0] == "broken"
    assert "15 times" in found["broken"][1]
    assert found["ms"] == ("unit", "all times look like ms that are called us")
    assert "elements of 2 B" in found["elements"][1]


def test_the_plot_is_xml_whatever_the_names(tmp_path, capsys):
    name = '<b>&"box"</b>\x07'
    path = table(tmp_path, name.replace('"', "'"), on_h100())
    plot = tmp_path / "plot.svg"
    told(capsys, "validate", path, "--plot", str(plot))
    root = ElementTree.fromstring(plot.read_text())
    text = "".join(root.itertext())
    assert "<b>&'box'</b>\N{REPLACEMENT CHARACTER}" in text
    spots = [one for one in root.iter() if one.tag.endswith("circle") and len(one)]
    assert len(spots) == 30
    told(capsys, "validate", path, "--plot", str(plot), code=2)
    told(capsys, "validate", path, "--plot", str(plot), "--force")


# ---- normal


def sentences(capsys, path, *arguments):
    data, _ = told(capsys, "normal", path, "--json", *arguments)
    return data["datasets"][0]["bands"]


def test_what_is_as_predicted_is_normal(tmp_path, capsys):
    bands = sentences(capsys, table(tmp_path, "box", on_h100(lambda op, size: 1.05)))
    assert {band["verdict"] for band in bands.values()} == {"normal"}
    assert bands["large"]["sentence"] == (
        "above 8 MiB: normal, 1.05 times the predicted time over 8 rows."
    )


def test_ring_where_nvls_is_expected(tmp_path, capsys):
    ring = [("all_reduce", s, predicted("all_reduce", s, algorithm="Ring")) for s in SIZES]
    band = sentences(capsys, table(tmp_path, "box", ring))["large"]
    assert band["verdict"] == "slow"
    assert band["reasons"][0]["reason"] == "ring where NVLS is expected"
    assert band["reasons"][0]["error"] < 0.01


@pytest.mark.parametrize(
    ("nics", "rate", "reason"),
    [
        (4, 400e9, "half of the NICs missing"),
        (8, 27.37e9 * 8, "NICs or GPUs on PCIe Gen4"),
        (8, 13.685e9 * 8, "no GPUDirect RDMA: bytes go through host memory"),
    ],
)
def test_reasons_of_slow_networks(tmp_path, capsys, nics, rate, reason):
    where = {"nodes": 4, "network": find_network("infiniband-400g"), "nics_per_node": nics}
    rows = [("all_gather", s, predicted("all_gather", s, nic_rate_bps=int(rate), **where))
            for s in SIZES]  # fmt: skip
    path = table(tmp_path, "pod", rows, nodes=4, link="InfiniBand-8x400G")
    band = sentences(capsys, path)["large"]
    assert band["verdict"] == "slow"
    first = band["reasons"][0]
    assert (first["reason"], first["error"]) == (reason, pytest.approx(0, abs=0.01))


def probe_file(folder, *, time, hosts, variables=None, rows=()):
    data = {
        "schema": 1, "kind": "railweave-probe", "status": "complete", "backend": "nccl",
        "world_size": 16, "nodes": 2, "ranks_per_node": [8, 8], "device": "NVIDIA H100 80GB HBM3",
        "ranks": [{"rank": r, "node": str(r // 8)} for r in range(16)],
        "hosts": hosts, "software": {"variables": variables or {}}, "skipped": [],
        "rows": [
            {"part": "collectives", "op": "all_gather", "size_bytes": size, "in_place": None,
             "out_of_place": {"time_us": time(size), "wrong": 0}}
            for size in SIZES if size > 1024
        ] + list(rows),
    }  # fmt: skip
    path = folder / "probe.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_what_the_probe_saw_goes_before_what_fits(tmp_path, capsys):
    network = find_network("roce-400g")

    def time(size):
        return 1.6 * predicted("all_gather", size, nodes=2, network=network, launch="torch-eager")

    port = {"name": "mlx5_3", "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet"}
    ports = [{**port, "state": "4: ACTIVE"}] * 7 + [{**port, "state": "1: DOWN"}]
    gpu = {"pcie.link.gen.current": "4", "pcie.link.gen.max": "5", "pcie.link.width.current": "16"}
    hosts = [
        {
            "hostname": "n0",
            "nics": ports,
            "gpus": [gpu] * 8,
            "gpu_direct_modules": ["nvidia_peermem"],
        }
    ]
    rail = {"part": "rails", "shift": 0, "rail_GBps": [46.0] * 7 + [22.0]}
    path = probe_file(tmp_path, time=time, hosts=hosts, rows=[rail],
                      variables={"NCCL_ALGO": "Ring"})  # fmt: skip
    reasons = sentences(capsys, path)["large"]["reasons"]
    evidence = {one["reason"]: one["evidence"] for one in reasons}
    assert "mlx5_3 of n0 is 1: DOWN" in evidence["one NIC missing"]
    assert "GPU 0 of n0 has PCIe Gen4 of Gen5" in evidence["NICs or GPUs on PCIe Gen4"]
    assert "rail 7 has 22 GB/s, others 46" in evidence["ECMP collisions: two flows on one uplink"]
    assert evidence["variables that bind NCCL"] == "NCCL_ALGO=Ring"


def test_normal_says_that_it_cannot_know(tmp_path, capsys):
    out, _ = told(capsys, "normal", table(tmp_path, "box", on_h100(), hardware="abacus"))
    assert "nothing can be said: no profile is known for 'abacus'" in out


# ---- calibrate


def test_a_robust_fit_finds_constants_through_outliers():
    sizes = np.geomspace(1e3, 1e9, 40)
    times = 5e-6 + sizes / 2e11
    times[::7] *= 9
    found = fit(
        {"a": 1e-5, "b": 1e11}, lambda c: (c["a"] + sizes / c["b"]).tolist(), times.tolist()
    )
    assert found.values["a"] == pytest.approx(5e-6, rel=1e-3)
    assert found.values["b"] == pytest.approx(2e11, rel=1e-3)
    assert (found.weights[::7] < 0.1).all()


def test_a_fit_names_what_it_cannot_know():
    found = fit(
        {"a": 1.0, "b": 3.0, "c": 2.0, "d": 2.0},
        lambda c: [c["a"] * c["c"] * k for k in (1, 2, 3, 4, 5)],
        [10.0, 20.0, 30.0, 40.0, 50.0],
        loose={"d": 1.0},
    )
    known = {constant.name: constant for constant in found.constants}
    assert known["b"].error is None
    assert known["b"].value == 3.0
    assert not known["a"].known  # only the product with c is in the data
    assert known["a"].value * known["c"].value == pytest.approx(10, rel=1e-6)


def test_calibrate_finds_the_profile_that_made_the_rows(tmp_path, capsys):
    base = find_profile("h100")
    true = replace(
        base,
        launch_ps={**base.launch_ps, "nccl-tests": 8_000_000},
        efficiency={**base.efficiency, "p2p": 0.8},
    )
    ops = ("all_reduce", "all_gather", "alltoall", "sendrecv")
    rows = [(op, size, predicted(op, size, true, gpus_per_node=n))
            for n in (8,) for op in ops for size in SIZES]  # fmt: skip
    path = table(tmp_path, "mine", rows)
    file = tmp_path / "mine.yaml"
    data, err = told(capsys, "calibrate", path, "-o", str(file), "--json")
    assert f"wrote {file}" in err
    assert data["median_error"] < 0.01
    known = {one["name"]: one for one in data["constants"]}
    assert known["launch.nccl-tests"]["value"] == pytest.approx(8e6, rel=0.05)
    assert (
        not known["step.LL128"]["identified"] or known["step.LL128"]["relative_error"] is not None
    )
    assert load_profile(str(file)).name == "mine"
    told(capsys, "validate", path, "--profile", str(file), "--fail-above", "3%")
    told(capsys, "validate", path, "--fail-above", "3%", code=1)
    told(capsys, "calibrate", path, "-o", str(file), code=2)
    told(capsys, "calibrate", path, "-o", str(tmp_path / "x.txt"), code=2)


HOST = HostProfile(
    name="mine", step_ps=200_000_000, rate_bps=16 * 10**9, factor={"broadcast": 0.5, "send": 2.0}
)


def gloo_file(folder, wobble=0.0, halves=(0, 1)):
    random = np.random.default_rng(3)
    rows = []
    for op in ("all_reduce", "all_gather", "alltoall", "broadcast", "sendrecv", "gather"):
        for turn, size in enumerate(SIZES[2:12]):
            noise = math.exp(wobble * random.standard_normal())
            time = predict_gloo(HOST, op, size_bytes=size, ranks=4).time_s * 1e6 * noise
            if turn % 2 in halves:
                rows.append({"part": "collectives", "op": op, "size_bytes": size, "in_place": None,
                             "out_of_place": {"time_us": time, "wrong": 0}})  # fmt: skip
    data = {"schema": 1, "kind": "railweave-probe", "status": "complete", "backend": "gloo",
            "world_size": 4, "nodes": 1, "ranks_per_node": [4], "device": "cpu", "ranks": [],
            "hosts": [], "software": {}, "skipped": [], "rows": rows}  # fmt: skip
    path = folder / f"half{''.join(map(str, halves))}.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_half_of_the_rows_of_a_cpu_host_predict_the_other_half(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told(capsys, "calibrate", gloo_file(tmp_path, 0.2, (0,)), "-o", "host.yaml")
    other = gloo_file(tmp_path, 0.2, (1,))
    data, _ = told(
        capsys, "validate", other, "--topology", "loopback-host", "--profile", "host", "--json"
    )
    (one,) = data["datasets"]
    errors = [abs(row["ratio"] - 1) for row in one["rows"]]
    assert len(errors) == 30
    assert np.median(errors) < 0.25
    assert one["profile"] == "host"
    assert "loopback-host" not in one["hardware"]


def test_a_cpu_host_needs_its_own_profile(tmp_path, capsys):
    path = gloo_file(tmp_path)
    _, err = told(capsys, "validate", path, "--topology", "loopback-host", code=2)
    assert "railweave calibrate" in err
    _, err = told(capsys, "validate", path, "--topology", "h100-rail-8", code=2)
    assert "measured with gloo" in err


def test_hold_out(tmp_path, capsys):
    path = gloo_file(tmp_path)
    file = tmp_path / "h.yaml"
    data, _ = told(capsys, "calibrate", path, "-o", str(file), "--hold-out", "--json")
    assert (data["rows"], data["held_out"]["rows"]) == (30, 30)
    assert data["held_out"]["median_error"] < 0.05
    assert any("4 ranks" in note for note in data["notes"])


def test_host_profiles_are_read_as_written(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(host_profile_text(HOST))
    assert load_host_profile(str(path)) == replace(HOST, factor=load_host_profile(str(path)).factor)
    assert dict(load_host_profile(str(path)).factor) == dict(HOST.factor)


def test_gloo_counts_for_two_ranks():
    assert gloo_counts("all_reduce", size_bytes=100, ranks=2) == (2, 200.0)
    assert gloo_counts("alltoall", size_bytes=100, ranks=1) == (0, 0.0)


@pytest.mark.parametrize(
    ("link", "name", "nics", "gbps"),
    [
        ("RoCEv2-8x400G", "roce-400g", 8, 400),
        ("IB-NDR-8x400G", "infiniband-400g", 8, 400),
        ("EFAv2-32x100G", "efa-v2", 32, 100),
        ("TCPXO-8x200G", "tcpxo-200g", 8, 200),
        ("IB/RoCE-4x200G", "roce-200g", 4, 200),
        ("1xNIC-400G-class", "infiniband-400g", 1, 400),
    ],
)
def test_networks_by_their_words(link, name, nics, gbps):
    profile, count, rate = network_of(link)
    assert (profile.name, count, rate) == (name, nics, gbps * 10**9)
