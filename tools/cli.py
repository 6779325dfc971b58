# SPDX-License-Identifier: Apache-2.0
"""The command line: its commands, and the one place where errors become exit codes.

Command modules import only light things at their top, so that ``--help`` is instant; what a command
needs (numba, networkx, pydantic) it imports when it runs.
"""

import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.main import get_command

from railweave.fabric.errors import PhysicsError, RailweaveError, one_line
from railweave.tools.commands.bom import bom
from railweave.tools.commands.calibrate import calibrate
from railweave.tools.commands.compare import compare
from railweave.tools.commands.design import design
from railweave.tools.commands.emulate import emulate
from railweave.tools.commands.goodput import goodput
from railweave.tools.commands.models import models
from railweave.tools.commands.normal import normal
from railweave.tools.commands.perf import perf
from railweave.tools.commands.plan import plan
from railweave.tools.commands.plot import plot
from railweave.tools.commands.report import report
from railweave.tools.commands.review import review
from railweave.tools.commands.run import run
from railweave.tools.commands.schema import schema
from railweave.tools.commands.size import size
from railweave.tools.commands.topo import topo
from railweave.tools.commands.traffic import traffic
from railweave.tools.commands.validate import validate
from railweave.tools.commands.warmup import warmup
from railweave.tools.output import note, readers_may_leave

__all__ = ["app", "run_command_line"]

EXIT_USAGE: Final = 2
EXIT_DEFECT: Final = 70  # EX_SOFTWARE of BSD's sysexits.h
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT

# typer exports only this leaf of its error tree; every error of the command line derives from
# its grandparent.
_CommandError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="railweave",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"railweave {version('railweave')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Emulate the fabric and the collective traffic of an AI cluster.

    Results go to stdout, all else to stderr. Exit codes: 0 ok, 1 a check failed, 2 invalid input,
    3 an optional tool is missing, 130 interrupted.
    """


app.command()(run)
app.add_typer(topo, name="topo")
app.command()(bom)
app.command()(compare)
app.command()(review)
app.command()(design)
app.command()(emulate)
app.command()(goodput)
app.command()(report)
app.command()(plot)
app.command()(perf)
app.command()(validate)
app.command()(normal)
app.command()(calibrate)
app.command()(traffic)
app.command()(size)
app.command()(plan)
app.command()(models)
app.command()(schema)
app.command()(warmup)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error ends here, in one clear line.

    Parameters
    ----------
    arguments
        What was typed after ``railweave``.
    """
    with readers_may_leave():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        result = get_command(app).main(
            args=list(arguments), prog_name="railweave", standalone_mode=False
        )
    except RailweaveError as error:
        note(f"error: {error}")
        if isinstance(error, PhysicsError):
            note("this is a defect in railweave; please report it with the command that led to it")
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except _CommandError as error:
        return _usage(error)
    except OSError as error:
        note(one_line(f"error: {error.filename or 'system'}: {error.strerror or error}"))
        return EXIT_USAGE
    except Exception:
        traceback.print_exc()
        note("error: this is a defect in railweave; please report it with the lines above")
        return EXIT_DEFECT
    return result if isinstance(result, int) else 0


def _usage(error: Exception) -> int:
    """Say what is wrong with what was typed; ``error`` is one of typer's usage errors."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        note(str(error))
        return EXIT_USAGE
    message = " ".join(str(getattr(error, "message", error)).split())
    if isinstance(error, typer.BadParameter):
        message = " ".join(error.format_message().split())
    near = getattr(error, "possibilities", None)
    if near:
        message += f". Did you mean '{near[0]}'?"
    note(f"error: {message}")
    if context is not None:
        note(f"see: {context.command_path} --help")
    return EXIT_USAGE
