"""`cofal client`: what the owner of a site does there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofal.cli import app

if TYPE_CHECKING:
    from cofal.privacy.ledger import Reading

client = typer.Typer(help="At a site: set it up, run it, label, see what left it.", no_args_is_help=True)
app.add_typer(client, name="client")

_REFUSALS_SHOWN = 10


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the site.", show_default=False)]


@client.command("init")
def init_command(
    folder: Folder,
    images: Annotated[Path, typer.Option(help="Folder of the images, labelled or not.", show_default=False)],
    classes: Annotated[
        str,
        typer.Option(help="Class names, the same at every site: a file with one a line, or a,b,c.", show_default=False),
    ],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.", show_default=False)],
    ca: Annotated[Path, typer.Option(help="ca.crt, got from the coordinator.", show_default=False)],
    name: Annotated[
        str, typer.Option(help="What the federation calls this site.  \\[default: the folder's name]")
    ] = "",
    test_images: Annotated[
        Path | None, typer.Option(help="Test images of this site, CLASS/image; they never leave it.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV with the columns id,label: labels known already; id: path below --images.")
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Scale the shorter side to this and crop; the same at every site."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave broken images out instead of stopping.")] = False,
    frozen: Annotated[str, typer.Option(help="Public encoder: model.pt, model.onnx or package.module:callable.")] = "",
    device: Annotated[str, typer.Option(help="Where networks run: cpu, cuda, mps.")] = "cpu",
) -> None:
    """Make a site from a folder of images: its key pair, its policy (what may leave), its label store, its settings.

    The images are decoded once, into DIR/images; nothing leaves this machine. Read DIR/site.toml before the first run.

    Example: cofal client init north --images scans --classes classes.txt --server cofal.example.org:9443 --ca ca.crt
    """
    from cofal.data.settings import DataSettings
    from cofal.deploy.certificates import read_public_key
    from cofal.deploy.enrolment import fingerprint
    from cofal.deploy.site_folder import PUBLIC, create_deployed_site, read_classes, read_labels

    chosen = name or folder.resolve().name
    count = create_deployed_site(
        folder,
        name=chosen,
        images=images,
        classes=read_classes(classes),
        server=server,
        authority=ca,
        test_images=test_images,
        known=read_labels(labels) if labels else None,
        data=DataSettings(source="folder", image_size=image_size, skip_bad=skip_bad),
        frozen=frozen,
        device=device,
    )
    print(f"Site {chosen}: {count:,} images. What may leave is in {folder / 'site.toml'}, table [policy].")
    print(f"Send {folder / PUBLIC} to the coordinator. Fingerprint: {fingerprint(read_public_key(folder / PUBLIC))}")
    print(f"When it is enrolled: cofal client up {folder}")


@client.command("example")
def example_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    sites: Annotated[int, typer.Option(min=1, max=32, help="Number of sites.")] = 3,
    per_site: Annotated[int | None, typer.Option(min=8, help="Images of each site.  \\[default: all]")] = None,
    seed: Annotated[int, typer.Option(help="Who gets which image.")] = 0,
) -> None:
    """Write folders of images to try a deployment with: handwritten digits, divided among sites, without labels.

    Example: cofal client example images --sites 3
    """
    from cofal.deploy.example import write_example

    for name, count in write_example(folder, sites, per_site, seed).items():
        print(f"{folder / name}: {count} images, test images by class, truth.csv")
    print(f"Class names: {folder / 'classes.txt'}")


@client.command("up")
def up_command(folder: Folder) -> None:
    """Run the site in the foreground, until Ctrl-C or SIGTERM: it answers the server, within its policy.

    It keeps trying to reach the server, and runs only the installed cofal: no code of a server is ever executed.

    Example: cofal client up north
    """
    from cofal.cli.logs import log_to_stderr
    from cofal.deploy.resident import run_site

    log_to_stderr()
    run_site(folder)


@client.command("identity")
def identity_command(folder: Folder) -> None:
    """Print the site's public identity, as a line for the table \\[peers] of the other sites' site.toml.

    It signs the site's keys in secure sums; a site that names its peers sums with nobody else. Send the line by a way
    that does not lead through the server: whoever can change it on its way can take the site's place.

    Example: cofal client identity north
    """
    from cofal.commented import toml_key
    from cofal.federation.site_settings import read_settings
    from cofal.privacy.secure_sum import public_identity, site_identity

    name = read_settings(folder).name
    print(f'{toml_key(name)} = "{public_identity(site_identity(folder)).hex()}"')


@client.command("ledger")
def ledger_command(
    site: Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Only check the chain: one line, no table.")] = False,
    head: Annotated[
        str | None, typer.Option(help="A head noted earlier: some line must bear it, and it stands in for ledger.head.")
    ] = None,
    asked: Annotated[
        bool, typer.Option("--asked", help="Also list every question of selections from aggregates, with its numbers.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what left a site: every message it sent or refused, by phase and kind, from its egress ledger.

    The chain of the ledger's hashes is checked each time; a changed, missing or moved line gives exit status 1, and so
    does a ledger without ledger.head, since lines at its end may be missing.
    Note the head that is printed: with --head it shows later whether ledger and ledger.head were both cut or made anew.

    Example: cofal client ledger demo/sites/site-0
    """
    import json
    import re

    from cofal.errors import CofalError, UserError
    from cofal.federation.site_settings import read_settings, refuse_run
    from cofal.privacy.answered import ALL, answered
    from cofal.privacy.ledger import FILE, read_ledger
    from cofal.report.egress import ledger_account, ledger_questions

    refuse_run(site)
    noted = None if head is None else head.strip().lower()
    if noted is not None and not re.fullmatch("[0-9a-f]{64}", noted):
        raise UserError(f"--head {head!r} is no head of a ledger (64 hexadecimal digits); give one as it was printed")
    reading = read_ledger(site / FILE, noted or "", answered(site))
    if json_:
        more = {"asked": ledger_questions(reading)} if asked else {}
        account = {**ledger_account(reading), "different_questions": answered(site)}
        print(json.dumps({"site": site.name, "verified": not (reading.broken or reading.doubt), **account, **more}))
    elif not verify:
        _print_table(site.name, reading)
        if questions := answered(site):
            most = read_settings(site).policy.max_questions
            limit = f" of the {most:,} that policy.max_questions allows" if most < ALL else ""
            print(f"Selections from aggregates: {questions:,} different questions answered{limit}")
        if asked:
            _print_questions(reading)
    if reading.broken:
        raise CofalError(
            f"the ledger of {site} is broken at {reading.broken}; compare it with a backup, and until then rely on "
            "nothing that it says from there on"
        )
    if reading.doubt:
        raise CofalError(
            f"the lines of the ledger of {site} follow from each other, but they may not be all: {reading.doubt}; a "
            "head of that line noted elsewhere would tell (--head HASH), or compare it with a backup"
        )
    if not json_:
        print(f"Chain verified: {len(reading.entries):,} lines, head {reading.head}")


def _print_table(name: str, reading: Reading) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from cofal.privacy.releases import SEEDED
    from cofal.report.account import size
    from cofal.report.egress import ledger_account

    account, console = ledger_account(reading), Console()
    title = f"What left {escape(name)}"
    if reading.broken:
        title += f" by the {len(reading.entries):,} lines that fit: the chain is broken, this is not all"
    elif reading.doubt:
        title += f" by the {len(reading.entries):,} lines that are there: others may be missing"
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("phase", "in all")
    table.add_column("kind")
    table.add_column("messages", f"{account['messages']:,}", justify="right")
    table.add_column("bytes", size(account["bytes"]), justify="right")
    table.add_column("last (UTC)")
    for row in account["rows"]:
        last = row["last"][:19].replace("T", " ")
        table.add_row(escape(row["phase"]), row["kind"], f"{row['messages']:,}", size(row["bytes"]), last)
    console.print(table)
    for noise in account["noise"]:
        seeded = noise["noise"] == SEEDED
        known = ": whoever knows the seed can take the noise off" if seeded else ""
        line = f"Noise: {noise['mechanism']}, epsilon {noise['epsilon']:g}, from the {noise['noise']}{known}"
        console.print(_printable(line), markup=False, highlight=False, soft_wrap=True)
    refused = account["refused"]
    if not refused:
        console.print("Not sent: nothing was refused")
    else:
        earlier = f", the last {_REFUSALS_SHOWN}" if len(refused) > _REFUSALS_SHOWN else ""
        console.print(f"Not sent: {len(refused):,}{earlier}")
        for entry in refused[-_REFUSALS_SHOWN:]:
            asked = f"{entry['time'][:19].replace('T', ' ')}  {entry['phase']}, {entry['kind']}: {entry['refused']}"
            console.print(_printable(asked), markup=False, highlight=False, soft_wrap=True)


def _print_questions(reading: Reading) -> None:
    from rich.console import Console

    from cofal.report.egress import ledger_questions

    console, questions = Console(), ledger_questions(reading)
    console.print(f"Asked: {len(questions):,} questions" if questions else "Asked: no question of a selection")
    for each in questions:
        numbers = ", ".join(f"{name} {value!r}" for name, value in each["numbers"].items())
        arrays = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in each.get("arrays", {}).items())
        digest = f"{arrays} ({each['sha256'][:8]})" if arrays else ""
        parts = [numbers, digest, "masked" if "session" in each else "", "" if each["sent"] else "not answered"]
        told = "; ".join(part for part in parts if part)
        when = each["time"][:19].replace("T", " ")
        line = f"{when}  {each.get('method', '')} {each['kind']}: {told}"
        console.print(_printable(line), markup=False, highlight=False, soft_wrap=True)


def _printable(text: str) -> str:
    """Without what would steer the terminal: a server chose parts of the text."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
