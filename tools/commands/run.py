# SPDX-License-Identifier: Apache-2.0
"""``railweave run``: replay a scenario and keep what came of it."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from railweave.tools.output import aligned, emit, emit_json, note
from railweave.tools.words import shown_bytes, shown_time

if TYPE_CHECKING:
    from railweave.result import Result
    from railweave.runner import Progress

__all__ = ["run", "run_summary"]


def run(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The run's folder; it must not be there yet.  [default: runs/NAME-N]",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the files of the run in that folder.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Instead of the scenario's seed.", show_default=False)
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Instead of the scenario's: analytic, fluid or packet.", show_default=False
        ),
    ] = None,
    timeline: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Record the load of each network link over time, in N intervals at most "
            "(4 to 512), for `report` and `plot`.",
            show_default=False,
        ),
    ] = None,
    no_elide: Annotated[
        bool,
        typer.Option(
            "--no-elide",
            help="Let the packet engine follow every packet, also of messages that nothing "
            "disturbs: the same results, slower.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the object of result.json instead of a summary.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
) -> int:
    """Replay a workload over a topology: the main job."""
    from railweave.run_folder import RunFolder, Stopwatch
    from railweave.runner import run_scenario
    from railweave.scenario import load_scenario

    stopwatch = Stopwatch()
    elide = False if no_elide else None
    overrides = {"seed": seed, "engine": engine, "packet.elide": elide}
    loaded = load_scenario(
        scenario, overrides={key: value for key, value in overrides.items() if value is not None}
    )
    folder = RunFolder(output, name=loaded.name, force=force)
    on_terminal = sys.stderr.isatty() and not quiet
    result = run_scenario(
        loaded, progress=_show_progress if on_terminal else None, timeline=timeline
    )
    if on_terminal:
        _clear_progress()
    path = folder.write(result, stopwatch)
    if as_json:
        emit_json(result.to_dict())
    elif not quiet:
        emit(run_summary(result))
        emit(f"\nfolder  {path}")
    if result.error is not None:
        note(f"error: {result.error}")
        note(f"partial results are in {path}")
    return result.exit_code


def _show_progress(progress: "Progress") -> None:
    ended = f"{progress.ended}/{progress.workloads} workloads ended"
    sys.stderr.write(f"\r\x1b[Ksimulated {shown_time(progress.time_ps)}, {ended}")
    sys.stderr.flush()


def _clear_progress() -> None:
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def run_summary(result: "Result") -> str:
    """Return the summary of a run, each figure beside its bound."""
    parts = [_head(result), _faults(result.network), _flows(result), _collectives(result)]
    parts.append(_steps(result))
    parts += _serving(result.serving)
    parts += [_hottest(result), *(f"warning: {warning}" for warning in result.warnings)]
    return "\n\n".join(part for part in parts if part)


def _head(result: "Result") -> str:
    # What a server decided, and when, is in its run's bound: its requests' own bounds say more.
    telling = result.bound_ps and not result.serving
    ratio = f" ({result.sim_time_ps / result.bound_ps:.3f} times it)" if telling else ""
    rows = [
        ("run", f"{result.name}: {result.status}, engine {result.engine}"),
        (
            "simulated",
            f"{shown_time(result.sim_time_ps)}, bound {shown_time(result.bound_ps)}{ratio}",
        ),
        *_quantum(result.network.get("quantum")),
    ]
    return aligned(rows)


def _quantum(quantum: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Say which part of a run was an approximation, and how far off its beginning is."""
    if quantum is None:
        return []
    told = f"{quantum['packets']} packets as one on {100 * quantum['share']:.1f} % of all hops"
    if "error" in quantum:
        told += (
            f"; ends of the first {quantum['compared']} messages "
            f"({shown_time(quantum['until_ps'])}) are {100 * quantum['error']:.2g} % off on average"
        )
    return [("quantum", told)]


_FAULTS_SHOWN = 20


def _moved(reroute: Mapping[str, Any]) -> str:
    """Say what went over to other paths: messages of a fluid run, queue pairs of packets."""
    if "messages" in reroute:
        return f"{reroute['messages']} in flight"
    return f"{reroute['queue_pairs']} queue pairs"


def _faults(network: Mapping[str, Any]) -> str:
    """Write what broke and came back when, and what routing made of it."""
    rows = [
        (fault["at_ps"], fault["what"], fault["did"]) for fault in network.get("faults", ())
    ] + [
        (
            one["at_ps"],
            "routes",
            f"{one['paths']} changed, {_moved(one)} moved"
            + (f", {one['without_route']} missing" if one["without_route"] else ""),
        )
        for one in network.get("reroutes", ())
    ]
    if not rows:
        return ""
    rows.sort(key=lambda row: row[0])
    shown = [(shown_time(at), what, did) for at, what, did in rows[:_FAULTS_SHOWN]]
    if len(rows) > len(shown):
        shown.append(("", f"and {len(rows) - len(shown)} more", "see result.json"))
    return aligned(shown, header=("faults", "", ""), right=(0,))


def _flows(result: "Result") -> str:
    flows = result.flows
    if not flows.count:
        return ""
    ended = "" if flows.ended == flows.count else f", {flows.ended} of them ended"
    head = f"flows  {flows.count} with {shown_bytes(flows.bytes)}{ended}"
    if not flows.ended:
        return head
    rows = [
        ("mean", shown_time(flows.fct_mean_ps), shown_time(flows.bound_mean_ps)),
        ("p50", shown_time(flows.fct_p50_ps), shown_time(flows.bound_p50_ps)),
        ("p99", shown_time(flows.fct_p99_ps), shown_time(flows.bound_p99_ps)),
        ("max", shown_time(flows.fct_max_ps), shown_time(flows.bound_max_ps)),
    ]
    table = aligned(rows, header=("", "time", "bound"), right=(1, 2), indent="  ")
    return f"{head}\n{table}"


def _collectives(result: "Result") -> str:
    if not result.collectives:
        return ""
    rows = [
        (
            row["op"],
            shown_bytes(row["size_bytes"]),
            row["algorithm"],
            row["ranks"],
            shown_time(row["time_ps"]),
            shown_time(row["bound_ps"]),
            f"{row['algbw_GBps']:.2f}",
            f"{row['busbw_GBps']:.2f}",
        )
        for row in result.collectives
    ]
    header = (
        "collective",
        "size",
        "algorithm",
        "ranks",
        "time",
        "bound",
        "algbw GB/s",
        "busbw GB/s",
    )
    return aligned(rows, header=header, right=(1, 3, 4, 5, 6, 7))


def _steps(result: "Result") -> str:
    """Write the steps of training and inference workloads: what their times are made of."""
    if not result.steps:
        return ""
    rows = [
        (
            row["workload"], row["phase"], row["step"],
            *(shown_time(row[key]) for key in (
                "step_ps", "bound_ps", "compute_ps", "bubble_ps", "exposed_ps", "overlapped_ps")),
            row["limit"],
        )
        for row in result.steps
    ]  # fmt: skip
    header = (
        "steps", "phase", "", "time", "bound", "compute", "of it bubble", "exposed", "overlapped",
        "limit",
    )  # fmt: skip
    return aligned(rows, header=header, right=tuple(range(2, 9)))


def _serving(serving: Mapping[str, Any]) -> list[str]:
    """Write what a serving workload reports: its counts in a line, its times in a table."""
    if not serving:
        return []
    if "requests" not in serving:  # several workloads, by name
        return [f"{name}\n{part}" for name, one in serving.items() for part in _serving(one)]
    requests, pools = serving["requests"], serving["pools"]
    rejected = f", {requests['rejected']} rejected" if requests["rejected"] else ""
    head = (
        f"serving  {serving['model']}, router {serving['router']}: {requests['completed']} of "
        f"{requests['count']} requests completed{rejected}\n  KV caches moved "
        f"{shown_bytes(serving['kv_bytes'])}; busy: "
        + ", ".join(f"{name} {100 * serving[name]['utilisation']:.1f} %" for name in pools)
        + f"; {serving.get('output_tokens_per_s', 0):.0f} output tokens/s"
    )
    rows = []
    for key, name in _SERVING_TIMES.items():
        stats = serving[key]
        if stats["count"]:
            columns = ("mean", "bound_mean", "p50", "bound_p50", "p99", "bound_p99")
            rows.append((name, *(shown_time(stats.get(column)) for column in columns)))
    header = ("", "mean", "bound", "p50", "bound", "p99", "bound")
    table = aligned(rows, header=header, right=tuple(range(1, 7)), indent="  ") if rows else ""
    parts = [f"{head}\n{table}".rstrip()]
    if "slo" in serving:
        slo = serving["slo"]
        parts.append(f"goodput  {slo['met']} requests ({100 * slo['share']:.1f} %) met the SLO")
    return parts + list(_serving_troubles(serving))


def _serving_troubles(serving: Mapping[str, Any]) -> Iterator[str]:
    """Yield what else a service has to tell: what it found again, and what went wrong."""
    if serving["prefix"]["found_tokens"]:
        yield f"prefixes  {100 * serving['prefix']['share']:.1f} % of prompt tokens were cached"
    preempted = serving["preemptions"]
    if preempted["count"]:
        yield (
            f"preempted  {preempted['count']} times, {preempted['requests']} requests"
            + (
                f"; {preempted['without_progress']} times without a token since the time before"
                if preempted["without_progress"]
                else ""
            )
        )
    for row in serving.get("memory_bound", ()):
        yield (
            f"memory-bound  {row['replica']}: requests waited for its KV blocks "
            f"{100 * row['waited_for_blocks']:.1f} % of the time, while its arithmetic was used to "
            f"{100 * row['arithmetic_used']:.1f} %"
        )
    for row in serving.get("outages", ()):
        back = "to the end" if row["up_ps"] is None else f"until {shown_time(row['up_ps'])}"
        yield (
            f"outage  {row['replica']} from {shown_time(row['down_ps'])} {back}; "
            f"{row['requests']} requests were sent again"
        )
    backlog = serving.get("backlog", {})
    waiting = backlog.get("waiting_at_last_arrival", 0)
    if waiting > max(1, serving["requests"]["count"] // 10) and backlog["drained_ps"]:
        yield (
            f"overloaded  {waiting} requests were waiting when the last "
            f"had arrived; it took {shown_time(backlog['drained_ps'])} to serve them"
        )


_SERVING_TIMES = {
    "ttft_ps": "time to first token",
    "tpot_ps": "time per output token",
    "kv_transfer_ps": "KV transfer",
    "queue_ps": "queueing",
    "e2e_ps": "end to end",
}


def _hottest(result: "Result") -> str:
    rows = [
        (
            link["link"],
            f"{100 * link['utilisation']:.1f} %",
            shown_bytes(link["wire_bytes"] + link["ack_bytes"]),
            shown_time((link["wire_bytes"] + link["ack_bytes"]) * 8 * 10**12 // link["rate_bps"]),
        )
        for link in result.links.hottest()
    ]
    if not rows:
        return ""
    header = ("hottest network links", "utilisation", "carried", "bound at line rate")
    return aligned(rows, header=header, right=(1, 2, 3))
