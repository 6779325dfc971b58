# SPDX-License-Identifier: Apache-2.0
"""A small fleet as flows and packet by packet: where both agree, and what losses cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving_base import fleet, ms, rail, section, table

if TYPE_CHECKING:
    from serving_base import Asked

    from railweave.result import Result

NO_CC = {"cc": {"kind": "none"}}
SHALLOW = {**NO_CC, "buffer": {"total": "1MB"}}


def moved(
    engine: str, network: dict[str, Any], *, first: int, second: int = 1, model: str = "roce-lossy"
) -> Result:
    """Return a run of a prompt of 512 tokens on each of ``first`` hosts, decoded on ``second``."""
    topology = rail(6)
    for link in topology["links"].values():
        link["model"] = model
    gpus = [f"h{host}/gpu0" for host in range(6)]
    return fleet(
        {
            "model": "llama-3.1-8b",
            "prefill": {"replicas": first, "placement": {"policy": "list", "gpus": gpus[:first]}},
            "decode": {
                "replicas": second, "placement": {"policy": "list", "gpus": gpus[4 : 4 + second]}
            },
            "requests": [{"prompt": 512, "output": 2}] * first,
        },
        topology=topology,
        engine=engine,
        seed=4,
        **({"network": network} if network else {}),
    ).raise_for_status()  # fmt: skip


def times(result: Result) -> list[int]:
    """Return the times of transfers, the shortest first."""
    return sorted(row["kv_ps"] for row in result.requests)


SMALL = {
    "one transfer": (1, 1),
    "two into one decode GPU": (2, 1),
    "two between two pairs": (2, 2),
}
KINDS = {
    "no cc": ("roce-lossless", NO_CC),
    "DCQCN, lossless": ("roce-lossless", {}),
    "DCQCN, go-back-N": ("roce-lossy", {"recovery": "go-back-n"}),
    "selective repeat": ("roce-lossy", {**NO_CC, "recovery": "selective-repeat"}),
    "trimming": ("trimming", {"recovery": "trim"}),
}


@section("packets")
def packets(asked: Asked) -> list[str]:
    """Return a small fleet as flows and packet by packet, with nothing lost."""
    del asked
    rows = []
    for name, (first, second) in SMALL.items():
        fluid = times(moved("fluid", {}, first=first, second=second))
        cells = []
        for model, network in KINDS.values():
            result = moved("packet", network, first=first, second=second, model=model)
            cells.append(f"{times(result)[-1] / fluid[-1] - 1:+.2%}")
        rows.append((name, ms(fluid[-1]), *cells))
    return table(("transfers of 67 MB", "fluid ms", *KINDS), rows)


LOSSES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "selective repeat, 0.1 % of each link": (
        1, "roce-lossy", {**NO_CC, "recovery": "selective-repeat", "loss": {"rate": 1e-3}},
    ),
    "go-back-N, 0.1 % of each link": (
        1, "roce-lossy", {**NO_CC, "recovery": "go-back-n", "loss": {"rate": 1e-3}},
    ),
    "selective repeat, 0.1 % of each link, three": (
        3, "roce-lossy", {**NO_CC, "recovery": "selective-repeat", "loss": {"rate": 1e-3}},
    ),
    "selective repeat, 1 MB of buffer, three": (
        3, "roce-lossy", {**SHALLOW, "recovery": "selective-repeat"},
    ),
    "go-back-N, 1 MB of buffer, three": (
        3, "roce-lossy", {**SHALLOW, "recovery": "go-back-n"},
    ),
    "trimming, three": (3, "trimming", {"recovery": "trim"}),
    "trimming beyond 33 kB, three": (
        3, "trimming", {"recovery": "trim", "trim": {"queue": "33kB"}},
    ),
}  # fmt: skip


@section("losses")
def losses(asked: Asked) -> list[str]:
    """Return the same where packets are lost, beside what all that was sent takes."""
    del asked
    rows = []
    for name, (first, model, network) in LOSSES.items():
        fluid = times(moved("fluid", {}, first=first))
        result = moved("packet", network, first=first, model=model)
        found, lost = times(result), result.to_dict()["network"]
        rows.append(
            (
                name,
                sum(lost["drops"].values()),
                lost["trims"],
                f"{lost['retransmitted_bytes'] / 1e6:.1f}",
                lost["timeouts"],
                f"{ms(fluid[0])} - {ms(fluid[-1])}",
                f"{ms(found[0])} - {ms(found[-1])}",
                f"{found[-1] / fluid[-1] - 1:+.2%}",
            )
        )
    header = ("what is lost", "drops", "trims", "sent again MB", "timeouts", "fluid ms",
              "packets ms", "last, off")  # fmt: skip
    return table(header, rows)
