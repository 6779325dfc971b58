# SPDX-License-Identifier: Apache-2.0
"""Tables of traffic: operations of a step, bytes of ranks, bytes of links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from railweave.fabric.errors import InputError
from railweave.tools.output import aligned, emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.fabric.graph import Fabric
    from railweave.workloads.ops import TrafficOp
    from railweave.workloads.parallelism import ParallelismPlan

__all__ = ["by_link", "placed", "show_links", "show_step", "step_result"]

_TOP = 20


def step_result(
    ops: Sequence[TrafficOp], plan: ParallelismPlan, hosts: Sequence[int]
) -> dict[str, Any]:
    """Return the operations of a step and their totals, as in the JSON of ``traffic``.

    Parameters
    ----------
    ops, plan
        The operations and how the model is divided.
    hosts
        Host of every rank.
    """
    from railweave.workloads.op_schedules import link_bytes
    from railweave.workloads.ops import total_wire_bytes

    rows = []
    for op in ops:
        moved = link_bytes([op], plan, hosts)
        rows.append(
            {
                "op": op.op,
                "axis": op.axis,
                "phase": op.phase,
                "count": op.count,
                "bytes": op.size_bytes,
                "wire_bytes_per_rank": op.wire_bytes_per_rank,
                "messages_per_rank": op.messages,
                "wire_bytes": total_wire_bytes(op, plan),
                "by_link_class": {
                    "nvlink": sum(moved.nvlink.tolist()),
                    "network": sum(moved.network.tolist()),
                },
                "stage": op.stage,
                "to_stage": op.to_stage,
                "member": op.member,
                "what": op.what,
            }
        )
    moved = link_bytes(ops, plan, hosts)
    total = moved.total
    stages = [int(total[list(plan.stage_ranks(stage))].max()) for stage in range(plan.pp)]
    busiest = int(np.argmax(total))
    return {
        "ranks": plan.n_ranks,
        "ops": rows,
        "per_rank": [
            {"rank": rank, "nvlink": int(moved.nvlink[rank]), "network": int(moved.network[rank])}
            for rank in range(plan.n_ranks)
        ],
        "totals": {
            "per_rank_wire_bytes": int(total[busiest]),
            "by_link_class": {
                "nvlink": int(moved.nvlink[busiest]),
                "network": int(moved.network[busiest]),
            },
            "rank": busiest,
            "stage": plan.stage_of(busiest),
            "per_stage_wire_bytes": stages,
            "wire_bytes": sum(total.tolist()),
            "wire_bytes_by_link_class": {
                "nvlink": sum(moved.nvlink.tolist()),
                "network": sum(moved.network.tolist()),
            },
        },
    }


def by_link(
    ops: Sequence[TrafficOp],
    plan: ParallelismPlan,
    fabric: Fabric,
    devices: Sequence[int],
    *,
    policy: str,
    seed: int,
) -> list[dict[str, Any]]:
    """Return what a step puts on each link that it uses, in payload bytes, most first.

    Parameters
    ----------
    ops, plan
        The operations and how the model is divided.
    fabric, devices
        The fabric, and the device index of the GPU of every rank.
    policy, seed
        Of routing.

    Raises
    ------
    InputError
        The policy chooses among paths packet by packet.
    """
    from railweave.fabric.routing import Routing
    from railweave.workloads.op_schedules import bytes_between

    at = np.array(devices, np.int32)
    hosts = [int(fabric.host[device]) for device in devices]
    n = len(devices)
    sums: dict[int, int] = {}
    for op in ops:
        src, dst, size = bytes_between(op, plan, hosts)
        for code, moved in zip((src * n + dst).tolist(), size.tolist(), strict=True):
            sums[code] = sums.get(code, 0) + moved
    codes = np.array(sorted(sums), np.int64)
    if not len(codes):
        return []
    found = Routing(fabric, policy=policy, seed=seed).routes(at[codes // n], at[codes % n])
    moved = np.repeat(np.array([sums[code] for code in codes.tolist()]), np.diff(found.ptr))
    carried = np.zeros(fabric.n_links)
    np.add.at(carried, found.links, moved * found.share)  # exact up to 2**53 where not sprayed
    order = np.lexsort((np.arange(fabric.n_links), -carried))
    return [
        {
            "link": fabric.link_name(int(link)),
            "tier": fabric.link_tier[link],
            "payload_bytes": round(float(carried[link])),
            "rate_bps": int(fabric.link_rate_bps[link]),
            "least_ps": -(-round(float(carried[link])) * 8 * 10**12 // int(
                fabric.link_rate_bps[link])),
        }
        for link in order
        if carried[link] > 0
    ]  # fmt: skip


def placed(fabric: Fabric, plan: ParallelismPlan) -> list[int]:
    """Return the GPUs of a plan's ranks, hosts in order.

    Raises
    ------
    InputError
        The fabric has too few.
    """
    if plan.n_ranks > len(fabric.gpus):
        raise InputError(
            f"the plan has {plan.n_ranks} ranks and {fabric.name} {len(fabric.gpus)} GPUs",
            field="topology",
            expected="as many GPUs as ranks",
        )
    return [int(gpu) for gpu in fabric.gpus[: plan.n_ranks]]


def _class_of(row: dict[str, Any]) -> str:
    links = row["by_link_class"]
    return "+".join(name for name in ("nvlink", "network") if links[name]) or "-"


def show_step(result: dict[str, Any]) -> None:
    """Print the operations of a step and what its busiest rank sends."""
    totals = result["totals"]
    if not result["ops"]:
        why = "One rank" if result["ranks"] == 1 else "An empty step"
        emit(f"{why}: nothing goes on the wire.")
        return
    phased = any(op["phase"] != "forward" for op in result["ops"])
    rows = [
        (
            op["op"],
            op["axis"],
            *((op["phase"],) if phased else ()),
            op["stage"] if op["to_stage"] is None else f"{op['stage']} > {op['to_stage']}",
            f"{op['count']:,}",
            f"{op['bytes']:,}",
            f"{op['wire_bytes_per_rank']:,}",
            f"{op['messages_per_rank']:,}",
            _class_of(op),
            op["what"] + ("" if op["member"] is None else f", replica {op['member']}"),
        )
        for op in result["ops"]
    ]
    header = (
        "op", "axis", *(("phase",) if phased else ()), "stage", "count", "buffer B",
        "wire B/rank", "messages", "links", "what",
    )  # fmt: skip
    right = tuple(i for i, name in enumerate(header) if name in (
        "count", "buffer B", "wire B/rank", "messages"))  # fmt: skip
    emit(aligned(rows, header=header, right=right))
    links = totals["by_link_class"]
    emit(
        f"\nA rank of stage {totals['stage']}, the busiest, sends "
        f"{totals['per_rank_wire_bytes']:,} B: {links['nvlink']:,} B on NVLink, "
        f"{links['network']:,} B on the network ({result['where']})."
    )
    if result["ranks"] > 1:
        both = totals["wire_bytes_by_link_class"]
        emit(
            f"All {result['ranks']:,} ranks send {totals['wire_bytes']:,} B: "
            f"{both['nvlink']:,} B on NVLink, {both['network']:,} B on the network."
        )


def show_links(links: Sequence[dict[str, Any]]) -> None:
    """Print the links that carry most."""
    rows = [
        (row["link"], row["tier"], f"{row['payload_bytes']:,}", f"{row['least_ps'] / 1e6:,.3f}")
        for row in links[:_TOP]
    ]
    emit("")
    emit(aligned(rows, header=("link", "tier", "payload B", "at least us"), right=(2, 3)))
    if len(links) > _TOP:
        emit(f"and {len(links) - _TOP:,} more links")
