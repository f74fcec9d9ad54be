"""`cofal client`: what the owner of a site does there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cofal.cli import app

if TYPE_CHECKING:
    from cofal.privacy.ledger import Reading

client = typer.Typer(help="At a site: what left it.", no_args_is_help=True)
app.add_typer(client, name="client")

_REFUSALS_SHOWN = 10


@client.command("ledger")
def ledger_command(
    site: Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Only check the chain: one line, no table.")] = False,
    head: Annotated[
        str, typer.Option(help="A head noted earlier: the chain is broken if no line bears it any more.")
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what left a site: every message it sent or refused, by phase and kind, from its egress ledger.

    The chain of the ledger's hashes is checked each time; a changed, missing or moved line gives exit status 1.
    Note the head that is printed: with --head it shows later whether lines at the end were taken away.

    Example: cofal client ledger demo/sites/site-0
    """
    import json

    from cofal.errors import CofalError, UserError
    from cofal.privacy.ledger import FILE, read_ledger

    if (site / "sites").is_dir():
        names = ", ".join(sorted(folder.parent.name for folder in site.glob("sites/*/site.toml")))
        raise UserError(f"{site} is a run, not a site; give one of its sites, {site / 'sites'}/NAME (NAME: {names})")
    reading = read_ledger(site / FILE, head.strip().lower())
    if json_:
        print(json.dumps({"site": site.name, "verified": not reading.broken, **_account(reading)}))
    elif not verify:
        _print_table(site.name, reading)
    if reading.broken:
        raise CofalError(f"the ledger of {site} is broken at {reading.broken}")
    if not json_:
        print(f"Chain verified: {len(reading.entries):,} lines, head {reading.head}")


def _account(reading: Reading) -> dict[str, Any]:
    """Totals, rows by phase and kind, and the refusals, of the lines that fit the chain."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    refused = []
    for entry in reading.entries:
        if "refused" in entry:
            refused.append({key: entry[key] for key in ("number", "time", "phase", "kind", "refused")})
            continue
        place = (entry["phase"], entry["kind"])
        row = rows.setdefault(place, {"phase": place[0], "kind": place[1], "messages": 0, "bytes": 0, "last": ""})
        row["messages"] += 1
        row["bytes"] += entry["bytes"]
        row["last"] = entry["time"]
    return {
        "messages": sum(row["messages"] for row in rows.values()),
        "bytes": sum(row["bytes"] for row in rows.values()),
        "rows": list(rows.values()),
        "refused": refused,
        "lines": len(reading.entries),
        "head": reading.head,
        "broken": reading.broken,
    }


def _print_table(name: str, reading: Reading) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from cofal.report.account import size

    account, console = _account(reading), Console()
    table = Table(title=f"What left {escape(name)}", title_justify="left", show_footer=True)
    table.add_column("phase", "in all")
    table.add_column("kind")
    table.add_column("messages", f"{account['messages']:,}", justify="right")
    table.add_column("bytes", size(account["bytes"]), justify="right")
    table.add_column("last (UTC)")
    for row in account["rows"]:
        last = row["last"][:19].replace("T", " ")
        table.add_row(escape(row["phase"]), row["kind"], f"{row['messages']:,}", size(row["bytes"]), last)
    console.print(table)
    refused = account["refused"]
    if refused:
        earlier = f", the last {_REFUSALS_SHOWN}" if len(refused) > _REFUSALS_SHOWN else ""
        console.print(f"Not sent: {len(refused):,}{earlier}")
        for entry in refused[-_REFUSALS_SHOWN:]:
            asked = f"{entry['time'][:19].replace('T', ' ')}  {entry['phase']}, {entry['kind']}: {entry['refused']}"
            console.print(asked, markup=False, highlight=False, soft_wrap=True)
