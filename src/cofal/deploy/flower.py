"""Flower's command line programs: where they are, the environment they get, what they are told about this server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cofal.commented import toml_value
from cofal.deploy.server_folder import CONNECTION, ServerFolder
from cofal.errors import EnvironmentFault
from cofal.files import write_text

# Every key that a run may be given, with its default: Flower refuses one that is not named here. Scalars only.
RUN_OPTIONS: dict[str, str | int | float | bool] = {
    "run-dir": "",  # the coordinator's folder, absolute
    "phase": "pipeline",  # or pretrain, embed, select, train
    "sites": 0,  # how many sites to wait for
    "budget": 0,  # select: labels in total that this selection asks for
    "method": "",  # select: another selector than config.toml's
    "coordination": "",  # select: another coordination than config.toml's
}

_APP = """\
# A thin app: the code is the installed package cofal, on the server as at every site.
[project]
name = "cofal-federation"
version = "1.0.0"
description = "The phases of a cofal federation"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "cofal"

[tool.flwr.app.components]
serverapp = "cofal.federation.server_app:app"
clientapp = "cofal.federation.client_app:app"

[tool.flwr.app.config]
{options}
"""


def program(name: str) -> str:
    """The path of one of Flower's programs, beside the Python that runs us."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise EnvironmentFault(f"{path} is missing; install flwr into the same environment as cofal")
    return str(path)


def environment(server: ServerFolder) -> dict[str, str]:
    """What Flower's programs run with: their home in the coordinator's folder, no telemetry, no update checks."""
    programs = str(Path(sys.executable).parent)  # SuperExec looks for flwr-serverapp on the path
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(server.home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": loopback_unproxied(),
        "no_proxy": loopback_unproxied(),
    }


def loopback_unproxied() -> str:
    """The hosts that are reached without a proxy of this machine's network: those of the environment, and itself."""
    listed = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    return ",".join(dict.fromkeys([*filter(None, listed.split(",")), "127.0.0.1", "localhost"]))


def prepare(server: ServerFolder) -> None:
    """Write what Flower reads of us: the connection to the SuperLink and the thin app. The folder may have moved."""
    port, authority = server.settings().control_port, server.authority.resolve()
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    connection += f'address = "127.0.0.1:{port}"\nroot-certificates = {toml_value(str(authority))}\n'
    _write(server.home / "config.toml", connection)
    options = "\n".join(f"{key} = {toml_value(value)}" for key, value in RUN_OPTIONS.items())
    _write(server.app / "pyproject.toml", _APP.format(options=options))


def superlink(server: ServerFolder) -> list[str]:
    return [
        sys.executable, "-m", "cofal.deploy.superlink",
        "--host", "127.0.0.1",
        "--port", str(server.settings().control_port),
        "--ssl-ca-certfile", str(server.authority.resolve()),
        "--ssl-certfile", str(server.certificate.resolve()),
        "--ssl-keyfile", str(server.key.resolve()),
        "--enable-supernode-auth",
        "--database", str(server.database.resolve()),
        "--isolation", "process",
        "--superexec-auth-secret-file", str(server.secret.resolve()),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def superexec(server: ServerFolder) -> list[str]:
    return [
        program("flower-superexec"),
        "--runtime-api-address", f"127.0.0.1:{server.settings().control_port}",
        "--root-certificates", str(server.authority.resolve()),
        "--superexec-auth-secret-file", str(server.secret.resolve()),
    ]  # fmt: skip


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
