"""`cofal server`: what the coordinator of a federation does; each command group's module adds its commands here."""

from __future__ import annotations

import typer

from cofal.cli import app

server = typer.Typer(help="The coordinator of a federation: set it up, run it, drive its phases.", no_args_is_help=True)
app.add_typer(server, name="server")
