"""The `cofal` command: one file a command group; every failure ends as one line on stderr."""

from __future__ import annotations

import importlib
import os
import sys

import click
import typer

from cofal.errors import CofalError

app = typer.Typer(
    name="cofal",
    help="Which few images should each site of a federation label? "
    "Learn a shared encoder, pick, label at the site, train together.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

# Each module registers its commands on `app` when imported; it imports torch and the like inside its functions,
# so that `cofal --help` answers at once.
COMMANDS = [
    "run",
    "select",
    "advise",
    "model",
    "report",
    "bench",
    "privacy",
    "client",
    "label",
    "labels",
    "server",
    "phases",
    "reproduce",
]

# How long threads spin before they sleep, when they have to wait for one another: as long as is of use. By default they
# spin thirty times as long; beside other work, when one has lost its core, training takes several times as long.
SPINS = "10000"
_STOPPED = 130  # the shell's status for Ctrl-C

for _name in COMMANDS:
    importlib.import_module(f"cofal.cli.{_name}")


def main() -> None:
    """Run the command line; exit 2 for a user's mistake, 1 for the machine's fault, 130 for Ctrl-C."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is loaded, which is later
    try:
        status = app(standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        status = 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "cofal"
        status = _tell(f"{error.format_message()} (see {command} --help)", 2)
    except CofalError as error:
        status = _tell(str(error), error.exit_status)
    except (click.Abort, KeyboardInterrupt):
        status = _STOPPED
    if status == _STOPPED:  # Typer turns Ctrl-C into this status itself
        _tell("stopped", status)
    sys.exit(status)


def _tell(message: str, status: int) -> int:
    print(f"cofal: {message}", file=sys.stderr)
    return status
