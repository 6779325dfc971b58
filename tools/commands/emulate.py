# SPDX-License-Identifier: Apache-2.0
"""``railweave emulate``: a scenario as a real, slowed-down Linux network."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from railweave.tools.output import emit, emit_json, note

if TYPE_CHECKING:
    from railweave.scenario import Scenario
    from railweave.tools.emulate.choosing import Choice
    from railweave.tools.emulate.compare import Comparison
    from railweave.tools.emulate.layout import Options
    from railweave.tools.emulate.session import Emulation
    from railweave.tools.emulate.shaping import Mode

__all__ = ["emulate"]

_TERMINATED = 143  # 128 + SIGTERM


def emulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="The scenario file (YAML).", show_default=False)
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="Run this program once per rank, as torchrun would, instead of the workload.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        int, typer.Option(min=1, help="Rates are divided by it, and time runs that much slower.")
    ] = 2000,
    mode: Annotated[
        str, typer.Option(help="fair: flows share a cable alike; fifo: one queue per port.")
    ] = "fair",
    paths: Annotated[
        str,
        typer.Option(help="kernel: its own hash; fabric: the scenario's routing; spread; collide."),
    ] = "kernel",
    compare: Annotated[
        bool, typer.Option("--compare", help="Print predicted against measured.")
    ] = False,
    fail_above: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="PERCENT",
            help="Exit 1 if any flow, collective or the whole is further off than this.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="With a COMMAND: how many.  [default: every GPU]", show_default=False
        ),
    ] = None,
    reroute: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="After a fault the routes change this much later, in time of the wall clock.",
        ),
    ] = "50ms",
    limit: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Traffic runs no longer than this.")
    ] = 300.0,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Say what this machine's kernel has, and do nothing.")
    ] = False,
    cleanup: Annotated[
        bool,
        typer.Option("--cleanup", help="End and remove what killed emulations left, and no more."),
    ] = False,
) -> int:
    """Replay a workload over a real, slowed-down Linux network, and compare (Linux only)."""
    if cleanup:
        return _clean_up()
    if kernel:
        return _show_kernel(as_json=as_json)
    if scenario is None:
        raise typer.BadParameter("it is missing; give a scenario file", param_hint="SCENARIO")
    from railweave.tools.emulate.layout import Options, load_for_emulation
    from railweave.tools.emulate.sandbox import check_tools

    check_tools()
    loaded = load_for_emulation(scenario, overrides=None if seed is None else {"seed": seed})
    options = Options(
        scale=scale,
        mode=_mode(mode),
        paths=_paths(paths),
        limit_s=limit,
        reroute_s=_seconds(reroute),
    )
    with _terminable():
        if command:
            return _run_command(loaded, options, command, ranks)
        return _run(
            loaded, options, output, force=force, compare=compare or fail_above is not None,
            fail_above=fail_above, as_json=as_json, quiet=quiet,
        )  # fmt: skip


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the program in order, as an exception."""

    def end(signum: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _mode(name: str) -> "Mode":
    from railweave.fabric.errors import InputError, nearest_name

    if name == "fair":
        return "fair"
    if name == "fifo":
        return "fifo"
    raise InputError(
        f"there is no mode '{name}'",
        field="mode",
        expected="fair | fifo",
        nearest=nearest_name(name, ("fair", "fifo")),
    )


def _paths(name: str) -> "Choice":
    from railweave.tools.emulate.choosing import choice_of

    return choice_of(name)


def _seconds(text: str) -> float:
    from railweave.fabric.errors import InputError
    from railweave.fabric.units import PS_PER_S, parse_time_ps

    try:
        return parse_time_ps(text) / PS_PER_S
    except InputError as error:
        raise error.located(field="reroute") from None


def _clean_up() -> int:
    from railweave.tools.emulate.records import clean_up

    cleaned = clean_up()
    emit(f"removed {len(cleaned)}: {', '.join(cleaned)}" if cleaned else "nothing to remove")
    return 0


def _show_kernel(*, as_json: bool) -> int:
    from railweave.tools.emulate.sandbox import Sandbox, check_features
    from railweave.tools.output import aligned

    with Sandbox(limit_s=60) as sandbox:
        found = sandbox.call("probe")
        unprivileged = sandbox.unprivileged
    if as_json:
        emit_json({"unprivileged": unprivileged, "missing": found})
    else:
        emit(aligned((name, why or "yes") for name, why in found.items()))
        emit(f"as {'a user, in a user namespace' if unprivileged else 'root'}")
    check_features(found)
    return 0


def _run(
    scenario: "Scenario",
    options: "Options",
    output: Path | None,
    *,
    force: bool,
    compare: bool,
    fail_above: float | None,
    as_json: bool,
    quiet: bool,
) -> int:
    from railweave.fabric.errors import CheckError
    from railweave.run_folder import RunFolder, Stopwatch
    from railweave.tools.commands.run import run_summary
    from railweave.tools.emulate.compare import compare as compare_emulation
    from railweave.tools.emulate.session import emulate as run_emulation
    from railweave.tools.emulate.telling import comparison_text, emulation_head

    stopwatch = Stopwatch()
    folder = RunFolder(output, name=scenario.name, force=force)
    emulation = run_emulation(scenario, options)
    result = emulation.measured
    why_not = None if emulation.headroom is None else emulation.headroom.why_not
    if result.error is None and why_not is not None:
        raise CheckError(
            f"this run is not valid and is not reported: {why_not}, so the CPUs were measured and "
            "not the network; quiet the machine or raise --scale"
        )
    comparison = compare_emulation(emulation)
    path = folder.write(result, stopwatch)
    (path / "comparison.json").write_text(
        json.dumps(_comparison(emulation, comparison), indent=2) + "\n", encoding="utf-8"
    )
    if as_json:
        emit_json({"result": result.to_dict(), "comparison": _comparison(emulation, comparison)})
    elif not quiet:
        emit(emulation_head(emulation) + "\n")
        emit(comparison_text(comparison) if compare else run_summary(result))
        emit(f"\nfolder  {path}")
    if result.error is not None:
        note(f"error: {result.error}")
        note(f"partial results are in {path}")
        return result.exit_code
    if not comparison.paths_confirmed():
        raise CheckError("the counters of the links do not confirm the paths that were foretold")
    if fail_above is not None and 100 * comparison.worst() > fail_above:
        raise CheckError(
            f"measured and predicted differ by {100 * comparison.worst():.2f} %, "
            f"above {fail_above:g} %"
        )
    return 0


def _comparison(emulation: "Emulation", comparison: "Comparison") -> dict[str, object]:
    options, headroom = emulation.options, emulation.headroom
    return {
        "schema": 1,
        "scale": options.scale,
        "mode": options.mode,
        "paths": options.paths,
        "wall_seconds": round(emulation.wall_s, 3),
        "cpu_busy": None if headroom is None else round(headroom.busy, 4),
        "cpu_moving": _rounded(None if headroom is None else headroom.moving),
        "cpu_packets": _rounded(None if headroom is None else headroom.packets),
        "drops": emulation.drops,
        "congestion_control": emulation.congestion,
        **comparison.to_dict(),
        "longest_silence_ns": {name: one.length_ns for name, one in emulation.stalls.items()},
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _run_command(
    scenario: "Scenario", options: "Options", command: list[str], ranks: int | None
) -> int:
    from railweave.tools.emulate.programs import run_command
    from railweave.tools.emulate.ranks import first_failure

    def said(rank: int, stream: str, line: str) -> None:
        (emit if stream == "out" else note)(f"[{rank}] {line}")

    ends, headroom = run_command(scenario, options, command, ranks=ranks, said=said)
    failed = first_failure(ends)
    if failed is not None:
        how = f"exit code {failed.code}" if failed.code > 0 else f"signal {-failed.code}"
        note(f"error: rank {failed.rank} ended with {how}")
        return 1
    if headroom is not None and headroom.why_not is not None:
        note(f"error: timings of this run are not valid: {headroom.why_not}")
        return 1
    return 0
