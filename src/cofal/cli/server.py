"""`cofal server`: what the coordinator of a federation does: set up, run, enrol. The phases are in `phases.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app

server = typer.Typer(help="The coordinator of a federation: set it up, run it, drive its phases.", no_args_is_help=True)
app.add_typer(server, name="server")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the server.", show_default=False)]


@server.command("init")
def init_command(
    folder: Folder,
    host: Annotated[
        list[str],
        typer.Option(help="Name or address by which sites reach this machine; may be given again.", show_default=False),
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The one public port.")] = 9443,
    control_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Flower's own port, on loopback.  \\[default: the next port]"),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address of the public port; 127.0.0.1 for this machine only.")
    ] = "0.0.0.0",
    preset: Annotated[
        str, typer.Option(help="Where config.toml starts from: a preset (cofal run --list) or a TOML file.")
    ] = "deployment",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One value of config.toml.")
    ] = None,
    test_images: Annotated[
        Path | None, typer.Option(help="Test images held by the server, CLASS/image.  \\[default: sites evaluate]")
    ] = None,
    classes: Annotated[
        str, typer.Option(help="Class names of the test images: a file with one a line, or a,b,c.")
    ] = "",
    image_size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Scale test images to this size, as the sites do.")
    ] = None,
) -> None:
    """Make everything a coordinator needs: certificates, settings, Flower's home and database, a README.

    Example: cofal server init federation --host cofal.example.org
    """
    from cofal.deploy.server_folder import ServerSettings, create_server, deployment_config
    from cofal.errors import UserError

    inner = port + 1 if control_port is None else control_port
    if inner == port or inner > 65535:
        raise UserError(f"--port {port} leaves no --control-port {inner}; give another of the two")
    if test_images and not classes:
        raise UserError(f"--test-images {test_images} needs --classes: the names in the order that the sites use")
    config = deployment_config(preset, [*(set_ or []), f"train.evaluate={'server' if test_images else 'clients'}"])
    settings = ServerSettings(hosts=host, listen=listen, port=port, control_port=inner)

    def test_set(target: Path) -> None:
        from cofal.data.settings import DataSettings
        from cofal.deploy.site_folder import labelled_folder, read_classes

        assert test_images
        data = DataSettings(source="folder", image_size=image_size)
        print(f"Test set: {labelled_folder(test_images, read_classes(classes), target, data):,} images")

    made = create_server(folder, settings, config, test_set if test_images else None)
    print(f"Server made in {folder}. Its settings: {made.settings_file.name}, {made.config.name}; see README.md there.")
    print(f"Give every site {made.authority}. Next: cofal server up {folder}")


@server.command("up")
def up_command(folder: Folder) -> None:
    """Run the server in the foreground, until Ctrl-C or SIGTERM; docs/deploy has a systemd unit and a container file.

    Example: cofal server up federation
    """
    from cofal.cli.logs import log_to_stderr
    from cofal.deploy.serving import run_server

    log_to_stderr()
    run_server(folder)


@server.command("enrol")
def enrol_command(
    folder: Folder,
    public_key: Annotated[Path, typer.Argument(metavar="SITE.PUB", help="The public key that the site sent.")],
    name: Annotated[str, typer.Option(help="What the federation calls the site.", show_default=False)],
) -> None:
    """Let a site take part. The server may run meanwhile; a removed file in DIR/enrolled shuts the site out again.

    Example: cofal server enrol federation north.pub --name north
    """
    from cofal.deploy.enrolment import enrol

    print(f"Site {name} is enrolled. Fingerprint: {enrol(folder, public_key, name)}")
    print("Compare it with what the site's cofal client init printed, by telephone for example.")


@server.command("renew")
def renew_command(
    folder: Folder,
    host: Annotated[
        list[str] | None, typer.Option(help="Names and addresses in the new certificate.  \\[default: as before]")
    ] = None,
) -> None:
    """Make a new server certificate from the same authority; sites need nothing new. Restart the server afterwards.

    Example: cofal server renew federation
    """
    from cofal.deploy.certificates import expiry
    from cofal.deploy.server_folder import ServerFolder, renew_certificate

    made = ServerFolder(folder)
    renew_certificate(made, host or [])
    print(f"New certificate, valid until {expiry(made.certificate):%Y-%m-%d}; restart cofal server up {folder}")
