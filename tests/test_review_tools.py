# SPDX-License-Identifier: Apache-2.0
"""Bills of materials, comparisons and reviews from the command line."""

import json
from functools import cache

import pytest

from railweave.fabric.errors import InputError
from railweave.fabric.faults import apply_faults
from railweave.tools import cli
from railweave.tools.blast import blast_radius
from railweave.tools.bom import make_bill
from railweave.tools.failure_classes import failure_classes
from railweave.tools.job_groups import group_losses
from railweave.tools.prices import load_prices
from railweave.topologies import build_topology, load_topology
from railweave.topologies.racks import Hall, place
from railweave.topologies.summary import summarise


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        code = cli.run_command_line(words)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return invoke


@cache
def design(name):
    spec = load_topology(name)
    return spec, build_topology(spec)


def bill(name, **options):
    spec, fabric = design(name)
    return make_bill(fabric, spec, **options)


def counts(found, group):
    return {(line.item, line.used_for): line.count for line in found.lines if line.group == group}


def test_the_bill_of_the_h100_superpod():
    """RA-11333-001: 2,040 cables, 508 modules in hosts, 1,536 in the cages of 48 switches."""
    found = bill("superpod-h100-4su")
    assert sum(found.cables.values()) == 2040
    assert counts(found, "switch") == {("quantum-2", "leaf"): 32, ("quantum-2", "spine"): 16}
    assert counts(found, "optic") == {
        ("2xsr4-800g", "hosts"): 508,
        ("2xsr4-800g", "switches"): 1536,
    }
    assert set(found.missing("cents")) == {"quantum-2", "fibre"}
    assert found.racks[0] == 32  # four hosts a rack


@pytest.mark.parametrize("name", ["h100-rail-8", "meta-24k", "hpn7-segment", "nvl72-8"])
def test_cables_of_a_bill_are_those_of_the_summary(name):
    found = bill(name)
    summary = summarise(design(name)[1])["cables"]
    assert found.cables == {tier: number for tier, number in summary.items() if number}


def test_costs_and_powers_are_sums():
    found = bill("h100-rail-512")
    # 12 switches, 512 NICs, 1,024 optics; power without NICs
    assert found.cost_cents == 100 * (12 * 67213 + 512 * 2241 + 1024 * 879)
    assert found.power_mw == 1000 * (12 * 940 + 1024 * 14)


def test_rail_only_saves_as_much_as_its_parts_say():
    rail, only = bill("h100-rail-512"), bill("h100-rail-only-512")
    assert rail.cost_cents - only.cost_cents == 100 * (4 * 67213 + 512 * 879)
    without_nics = [b.cost_cents - 100 * 512 * 2241 for b in (rail, only)]
    # arXiv 2307.12169 gives -38 to -77 % of cost and -37 to -75 % of power, for orientation
    assert 1 - without_nics[1] / without_nics[0] == pytest.approx(0.421, abs=0.001)
    assert 1 - only.power_mw / rail.power_mw == pytest.approx(0.427, abs=0.001)


def test_a_price_file_replaces_the_catalogue(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "schema: 1\ncurrency: EUR\nexchange: {USD: 0.5}\n"
        "prices: {spectrum-4: 1000 EUR, fibre: 10 USD}\npower: {spectrum-4: 1kW}\n"
    )
    found = bill("h100-rail-512", prices=load_prices(path))
    assert found.currency == "EUR"
    nics, optics = 512 * 224100 // 2, 1024 * 87900 // 2
    assert found.cost_cents == 12 * 100_000 + 1024 * 500 + nics + optics
    assert found.power_mw == 12 * 1_000_000 + 1024 * 14_000
    assert not found.missing("cents")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: 1\nprices: {spectrum-5: 10 USD}\n", "did you mean 'spectrum-"),
        ("schema: 1\nprices: {spectrum-4: 10}\n", "expected an amount and its currency"),
        ("schema: 1\nprice: {spectrum-4: 10 USD}\n", "did you mean 'prices'?"),
        ("schema: 2\n", "schema: 1"),
        ("schema: 1\nexchange: {EUR: -1}\n", "this is no rate"),
        ("schema: 1\npower: {spectrum-4: 10}\n", "power.spectrum-4"),
    ],
)
def test_bad_price_files_are_refused(tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_prices(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))


# -- racks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h100-rail-512", "h100-tor-1su", "nvl72-8", "meta-24k"])
def test_everything_stands_somewhere_and_racks_are_not_overfull(name):
    spec, fabric = design(name)
    racks = place(fabric, spec)
    switches = [fabric.device_names[d] for d in fabric.switches.tolist()]
    assert set(racks.at) == {*fabric.host_names, *switches}
    assert all(1 <= one.unit <= racks.hall.units for one in racks.at.values())
    taken = [(one.rack, one.unit) for one in racks.at.values()]
    if name != "nvl72-8":
        assert len(taken) == len(set(taken))


def test_a_leaf_of_one_rack_stands_in_it():
    spec, fabric = design("h100-tor-1su")  # four hosts to a leaf, four to a rack
    racks = place(fabric, spec)
    assert racks.at["leaf0"].rack == racks.at["h0"].rack == racks.at["h3"].rack
    assert racks.length_mm("h0", "leaf0") <= 3000
    spread = place(fabric, spec, hall=Hall(power_mw=21_000_000))
    assert spread.hosts_per_rack == {"dgx-h100": 2}
    assert spread.at["leaf0"].rack not in {spread.at[f"h{i}"].rack for i in range(4)}


# -- failures ---------------------------------------------------------------------------------


def damages(name):
    found = blast_radius(design(name)[1])[1]
    return {one.failure.part: one for one in reversed(found)}


def test_what_a_lost_leaf_plane_and_spine_leave_of_the_twins():
    rail, tor = damages("h100-rail-512"), damages("h100-tor-512")
    leaf = rail["leaf"]
    assert (leaf.failure.count, leaf.least_share) == (8, 7 / 8)
    assert (leaf.hosts_hit, leaf.hosts_lost) == (64, 0)
    assert (tor["leaf"].hosts_hit, tor["leaf"].hosts_lost) == (8, 8)
    assert tor["spine"].bisection_share == 3 / 4
    planes = damages("h100-dual-plane-512")
    assert (planes["plane"].failure.count, planes["plane"].least_share) == (2, 1 / 2)
    assert planes["plane"].hosts_lost == planes["plane"].lost_pairs == 0
    assert planes["leaf"].least_share == 15 / 16


@pytest.mark.parametrize("name", ["h100-rail-512", "h100-dual-plane-512", "superpod-b200-512"])
def test_classes_hold_every_part_once(name):
    fabric = design(name)[1]
    found = failure_classes(fabric)
    totals = {}
    for one in found:
        totals[one.part] = totals.get(one.part, 0) + one.count
        apply_faults(fabric, one.faults)  # every name is known
    summary = summarise(fabric)
    for tier in ("leaf", "spine", "core"):
        assert totals.get(tier, 0) == summary["switches"][tier]
        assert sum(one.part == tier for one in found) <= 1  # symmetric designs: one class
    assert totals["host"] == summary["hosts"]
    assert totals["nic"] == summary["nics"]
    cables = sum(number for part, number in totals.items() if part.endswith("cable"))
    assert cables == sum(summary["cables"].values())


SCENARIO = """
schema: 1
topology: h100-rail-8
routing: {policy: spray}
workload: {kind: collective, op: %s, sizes: [64MiB]}
"""


def test_job_times_under_failures_are_near_their_bounds(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(SCENARIO % "all_to_all")
    fabric = design("h100-rail-8")[1]
    (healthy,), found, _ = blast_radius(fabric, topology="h100-rail-8", scenarios={"job": path})
    assert healthy.time_ps is not None
    ran = again = 0
    for one in found:
        (job,) = one.jobs
        left = job.after_all
        if left.time_ps is None:
            assert one.failure.part == "host"
            continue
        ran += job.time_ps is not None
        again += job.time_ps is None
        assert 1 <= left.time_ps / left.bound_ps < 1.05
        assert (job.time_ps is None) == (one.lost_pairs > 0)
    assert ran == 4  # a cable, either optic and a spine of the upper tier
    assert again == 4  # a leaf, an optic, a NIC and a cable of hosts: on the NICs left
    by_part = {one.failure.part: one for one in found}
    # 7 of 8 parts of the bytes climb, on half the ways
    assert 1.5 < by_part["spine"].slowdown((healthy,))[1] < 2
    # two GPUs on one NIC: the 56 parts of 64 MiB that leave each of them take twice as long
    assert by_part["leaf"].slowdown((healthy,)) == (True, pytest.approx(2, abs=0.02))
    # what is lost with a NIC is what is lost with its cable: one run tells both
    assert by_part["nic"].jobs == by_part["host-leaf cable"].jobs


KV_CACHES = """
schema: 1
topology: h100-rail-8
routing: {policy: spray}
workload:
  {kind: kv-transfer, model: llama-3.1-70b, prefill: {replicas: 4, tp: 8},
   decode: {replicas: 4, tp: 8}, prompt: 8192}
"""


@pytest.mark.parametrize(
    ("scenario", "worst"),
    [((SCENARIO % "all_reduce").replace("64MiB", "1GiB"), 1.5), (KV_CACHES, 2.0)],
)
def test_all_reduce_and_caches_are_near_their_bounds_too(tmp_path, scenario, worst):
    """Two GPUs on a NIC: the rings of both, between NVLink's part before and after; both caches."""
    path = tmp_path / "job.yaml"
    path.write_text(scenario)
    fabric = design("h100-rail-8")[1]
    (healthy,), found, _ = blast_radius(fabric, topology="h100-rail-8", scenarios={"job": path})
    for one in found:
        left = one.jobs[0].after_all
        if left.time_ps is not None:
            assert 1 <= left.time_ps / left.bound_ps < 1.05
    leaf = next(one for one in found if one.failure.part == "leaf")
    assert leaf.slowdown((healthy,)) == (True, pytest.approx(worst, rel=0.06))


@pytest.mark.parametrize(
    ("name", "leaves", "spines", "cables", "optics"),
    [  # 64 hosts of 8 NICs
        ("h100-rail-512", 8, 4, (512, 512), 1024),
        ("h100-tor-512", 8, 4, (512, 512), 1024),
        ("h100-rail-only-512", 8, 0, (512, 0), 512),
        ("h100-tapered-512", 8, 2, (512, 256), 768),
        ("h100-dual-plane-512", 16, 4, (1024, 512), 512),
    ],
)
def test_the_twins_are_counted(name, leaves, spines, cables, optics):
    summary = summarise(design(name)[1])
    assert (summary["switches"]["leaf"], summary["switches"]["spine"]) == (leaves, spines)
    found = tuple(summary["cables"].get(tier, 0) for tier in ("host-leaf", "leaf-spine"))
    assert found == cables
    found = bill(name)
    assert found.number("optic") == optics
    assert (found.number("switch"), found.number("nic")) == (leaves + spines, 512)
    priced = [line for line in found.network if line.cents is not None]
    assert found.cost_cents == sum(line.count * line.cents for line in priced)
    drawn = [line for line in found.network if line.power_mw is not None and line.group != "nic"]
    assert found.power_mw == sum(line.count * line.power_mw for line in drawn)


def test_the_runs_of_a_review_repeat(call, tmp_path):
    (tmp_path / "job.yaml").write_text(SCENARIO % "all_reduce")
    assert call("review", "h100-rail-8", "--workload", "job.yaml", "-o", "out")[0] == 0
    data = json.loads((tmp_path / "out/review.json").read_text())
    spine = next(one for one in data["failures"] if one["part"] == "spine")["jobs"][0]
    assert call("run", f"out/runs/{spine['run']}.yaml", "-o", "again", "-q")[0] == 0
    again = json.loads((tmp_path / "again/result.json").read_text())
    assert again["sim_time_ps"] == spine["time_ps"]
    assert again["provenance"]["scenario_sha256"].startswith(spine["run"])
    named = {path.stem for path in (tmp_path / "out/runs").iterdir()}
    for one in data["verdict"]:
        for word in one["basis"].removeprefix("runs ").removeprefix("run ").split(", "):
            assert word in named or one["basis"].startswith(("check ", "failure ", "bill "))


def test_rail_only_names_the_pairs_and_the_groups_that_lose_each_other(call, tmp_path):
    (tmp_path / "a2a.yaml").write_text(SCENARIO % "all_to_all")
    code, out, _ = call("review", "h100-rail-only-512", "--workload", "a2a.yaml", "--json")
    assert code == 1  # the all-to-all cannot run
    data = json.loads(out)
    assert sum(one["pairs"] for one in data["apart"]) == 225_792 == 64 * 8 * 63 * 7
    assert data["apart"][0]["one"] == "h[0-63]/gpu0"
    assert data["apart"][0]["other"] == "h[0-63]/gpu[1-7]"
    (group,) = data["process_groups"]
    assert (group["count"], group["ranks"], group["apart"]) == (1, 512, 1)
    assert group["pairs"] == 225_792
    assert "a2a cannot run: no route from 'h0/gpu" in data["verdict"][0]["text"]


TRAINING = """
schema: 1
topology: h100-rail-8
workload:
  {kind: training, model: llama-3.1-8b, tp: %d, dp: %d, micro_batches: 2, recompute: full}
"""


@pytest.mark.parametrize(("tp", "dp", "apart"), [(8, 8, {}), (4, 16, {"dp": 4})])
def test_groups_that_stay_on_their_rail_lose_nobody(tmp_path, tp, dp, apart):
    """Replicas of 8 ranks fill a host: the ranks of dp share a rail. Of 4, they lie on two."""
    path = tmp_path / "train.yaml"
    path.write_text(TRAINING % (tp, dp))
    content = {"kind": "rail-only", "hosts": {"count": 8, "model": "dgx-h100"}}
    content |= {"leaf": {"switch": "spectrum-4"}}
    content |= {"links": {"host-leaf": {"rate": "400Gbps", "length": "10m"}}}
    file = tmp_path / "rails.yaml"
    file.write_text(json.dumps({"schema": 1, "name": "rails", **content}))
    found = {one.name: one for one in group_losses("train", path, str(file))}
    assert {name: one.apart for name, one in found.items() if one.apart} == apart
    assert (found["tp"].count, found["tp"].ranks) == (64 // tp, tp)
    if apart:  # 16 members on 2 rails of 8 hosts: 8 x 8 pairs both ways, less those in one host
        assert found["dp"].pairs == 4 * 2 * (8 * 8 - 8)


# -- commands ---------------------------------------------------------------------------------


def test_bom_command(call, tmp_path):
    code, out, _ = call("bom", "h100-rail-8", "--cabling", "plan.csv", "--ptm", "topology.dot")
    assert code == 0
    assert "cost of the fabric" in out
    assert len((tmp_path / "plan.csv").read_text().splitlines()) == 129
    assert (tmp_path / "topology.dot").read_text().startswith("graph G {")
    code, _, err = call("bom", "h100-rail-8", "--cabling", "plan.csv")
    assert code == 2
    assert "exists already" in err
    code, out, _ = call("bom", "h100-rail-8", "--json")
    assert json.loads(out)["cables"] == {"host-leaf": 64, "leaf-spine": 64}


def test_check_command_on_a_plan(call, tmp_path):
    call("bom", "h100-rail-8", "--cabling", "plan.csv")
    assert call("topo", "check", "h100-rail-8", "--cabling", "plan.csv", "--strict")[0] == 0
    lines = (tmp_path / "plan.csv").read_text().splitlines()
    lost = [line for line in lines if ",spine1," not in line]
    (tmp_path / "lost.csv").write_text("\n".join(lost) + "\n")
    assert call("topo", "check", "h100-rail-8", "--cabling", "lost.csv")[0] == 0
    code, out, _ = call("topo", "check", "h100-rail-8", "--cabling", "lost.csv", "--strict")
    assert code == 1
    assert out.startswith("warning  unused-switch: no link ends on spine1\n")
    code, out, _ = call("topo", "check", "h100-rail-8", "--facts", "--only", "bisection")
    assert code == 0
    assert "12.8Tbps between the halves" in out
    code, _, err = call("topo", "check", "h100-rail-8", "--only", "bisecton")
    assert code == 2
    assert "did you mean 'bisection'?" in err


def test_compare_designs_and_runs(call, tmp_path):
    (tmp_path / "job.yaml").write_text(SCENARIO % "all_reduce")
    words = ("compare", "h100-rail-8", "h100-rail-1su")
    code, out, _ = call(*words, "--workload", "job.yaml", "-o", "page.md")
    assert code == 0
    assert "leaf switches" in out
    assert (tmp_path / "page.md").read_text().startswith("|  | h100-rail-8 | h100-rail-1su |")
    for folder in ("a", "b"):
        assert call("run", "job.yaml", "-o", folder, "-q")[0] == 0
    code, out, _ = call("compare", "a", "b", "--json")
    assert code == 0
    runs = json.loads(out)["runs"]
    assert runs[0]["time_ps"] == runs[1]["time_ps"]
    code, _, err = call("compare", "a", "h100-rail-8")
    assert code == 2
    assert "designs and runs do not compare" in err
    (tmp_path / "empty").mkdir()
    code, _, err = call("compare", "a", "empty")
    assert (code, "no run in this folder" in err) == (2, True)


def test_review_command(call, tmp_path):
    (tmp_path / "job.yaml").write_text(SCENARIO % "all_reduce")
    code, out, _ = call("review", "h100-rail-8", "--workload", "job.yaml", "-o", "out")
    assert code == 0
    assert "Verdict" in out
    data = json.loads((tmp_path / "out/review.json").read_text())
    assert data["ok"] is True
    assert {one["part"] for one in data["failures"]} >= {"host", "leaf", "spine", "optic", "nic"}
    assert all(one["basis"] for one in data["verdict"])
    page = (tmp_path / "out/review.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    code, _, err = call("review", "h100-rail-8", "-o", "out")
    assert (code, "exists already" in err) == (2, True)


def test_names_from_files_are_escaped(call, tmp_path):
    from railweave.tools.review import review_topology
    from railweave.tools.review_page import review_html

    found = review_topology("h100-rail-8", scenarios={})
    rows = [("part", "example"), ("nic", "<script>alert(1)</script>")]
    page = review_html(found, [("Failures", rows)])
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_cables_of_the_bill_are_counted_by_length():
    """Ten metres to hosts and thirty to spines are two lines; legs of a breakout are as long."""
    fibres = {
        (line.used_for, line.length_mm): line.count
        for line in bill("h100-rail-512").lines
        if line.group == "fibre"
    }
    assert fibres == {("host-leaf", 10_000): 512, ("leaf-spine", 30_000): 512}
    copper = [line for line in bill("h100-rail-8").lines if line.group == "cable"]
    assert [(line.item, line.length_mm, line.count) for line in copper] == [
        ("dac-800g-2x400g", 3_000, 32)
    ]


def test_a_total_that_lacks_prices_says_so(call, tmp_path):
    _, out, _ = call("bom", "h100-dual-plane-512")
    assert "2,941,700 USD, without aoc-200g, fibre: unpriced" in out
    assert "25.97 kW, without aoc-200g: of unknown power" in out
    _, out, _ = call("review", "h100-dual-plane-512", "-o", "out")
    row = next(line for line in out.splitlines() if line.startswith("  fabric "))
    assert "without aoc-200g, fibre: unpriced and without aoc-200g: of unknown power" in row
    assert "2,941,700 USD" in row
    page = (tmp_path / "out/review.html").read_text()
    assert "<dt>cost of the fabric</dt><dd>2,941,700 USD<small>without aoc-200g" in page
