"""The `cofal` command: one file a command group; every failure ends as one line on stderr."""

from __future__ import annotations

import importlib
import sys

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
COMMANDS = ["run", "select", "model", "report", "bench"]

for _name in COMMANDS:
    importlib.import_module(f"cofal.cli.{_name}")


def main() -> None:
    """Run the command line; exit 2 for a user's mistake, 1 for the machine's fault, 130 for Ctrl-C."""
    try:
        app()
    except CofalError as error:
        print(f"cofal: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("cofal: stopped", file=sys.stderr)
        sys.exit(130)
