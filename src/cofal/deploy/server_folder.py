"""The coordinator's folder: what is in it, its network settings, and how it is made.

It is a run directory as well (`rundir.py`), so that the report finds the phases' files where it expects them.
"""

from __future__ import annotations

import secrets
import sqlite3
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cofal.commented import commented_toml
from cofal.config import Config, load
from cofal.deploy import certificates
from cofal.errors import UserError
from cofal.files import new_folder, write_text
from cofal.rundir import RunDir
from cofal.validation import explain

CONNECTION = "cofal"  # what Flower's own configuration calls the SuperLink


class ServerSettings(BaseModel):
    """Network settings of the coordinator; a change holds from the next `cofal server up`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: list[str] = Field(description="names and addresses in the certificate: sites connect to one of them")
    listen: str = Field(default="0.0.0.0", description="address of the public port; 127.0.0.1 for this machine only")
    port: int = Field(default=9443, ge=1, le=65535, description="the only port that sites need to reach")
    control_port: int = Field(default=9444, ge=1, le=65535, description="loopback only: Flower's own port")
    max_body_mb: int = Field(
        default=64, ge=25, description="a larger request is refused; models travel in pieces of 24"
    )
    max_connections: int = Field(default=256, ge=1, description="open connections at once, over all sites")
    patience: float = Field(default=20.0, gt=0, description="seconds a connection may be silent within a request")
    min_rate_kb: int = Field(default=32, ge=1, description="a request slower than this many kB a second is cut off")


class ServerFolder(RunDir):
    """Names of the coordinator's files, beside those of a run."""

    @property
    def settings_file(self) -> Path:
        return self.path / "server.toml"

    @property
    def authority(self) -> Path:
        return self.path / "tls" / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.path / "tls" / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.path / "tls" / "server.crt"

    @property
    def key(self) -> Path:
        return self.path / "tls" / "server.key"

    @property
    def enrolled(self) -> Path:
        """The public keys of the sites, NAME.pub: who is not here gets no answer from the public port."""
        return self.path / "enrolled"

    @property
    def secret(self) -> Path:
        return self.path / "flower" / "superexec.secret"

    @property
    def home(self) -> Path:
        return self.path / "flower"

    @property
    def database(self) -> Path:
        return self.path / "flower" / "state.db"

    @property
    def app(self) -> Path:
        return self.path / "flower" / "app"

    def settings(self) -> ServerSettings:
        try:
            return ServerSettings.model_validate(tomllib.loads(self.settings_file.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(
                f"no server at {self.path}: {error.strerror}; make one with cofal server init {self.path} --host NAME"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{self.settings_file} is not valid TOML: {error}; correct it") from None
        except ValidationError as error:
            raise UserError(f"{self.settings_file}: {explain(error, ServerSettings)}") from None


# Tables of a run's configuration that say how an experiment simulates its sites; a real site has its own data.
SIMULATION = ("data", "clients")


def create_server(
    folder: Path, settings: ServerSettings, config: Config, test_set: Callable[[Path], object] | None = None
) -> ServerFolder:
    """Everything `cofal server up` needs, in a new folder. `test_set` fills the folder of the server's test images."""
    server = ServerFolder(folder)
    with new_folder(folder, "a server", mode=0o700):
        certificates.create_authority(server.authority, server.authority_key)
        certificates.create_server_certificate(
            server.certificate, server.key, server.authority, server.authority_key, settings.hosts
        )
        server.enrolled.mkdir()
        certificates.write_secret(server.secret, secrets.token_bytes(32))
        _create_database(server.database)
        if test_set:
            test_set(server.server / "test")
        write_text(server.config, _HEADER + commented_toml(config, skip=SIMULATION))
        names = {"host": settings.hosts[0], "port": settings.port, "folder": folder.resolve().name}
        write_text(folder / "README.md", _README.format(**names))
        write_text(server.settings_file, commented_toml(settings))  # last: a folder that holds it is whole
    return server


def _create_database(path: Path) -> None:
    """An empty database, in which Flower creates its tables. It keeps models in it: large pages hold them faster."""
    certificates.write_secret(path, b"")  # the mode is ours
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 65536")
        database.execute("PRAGMA journal_mode = WAL")  # writes the first page, which fixes the size


def renew_certificate(server: ServerFolder, hosts: Sequence[str]) -> None:
    """A new server certificate from the same authority: sites notice nothing. Holds from the next `up`."""
    settings = server.settings()
    fresh = server.key.with_suffix(".new.key")
    fresh.unlink(missing_ok=True)
    chosen = list(hosts) or settings.hosts
    part = server.certificate.with_suffix(".new.crt")
    certificates.create_server_certificate(part, fresh, server.authority, server.authority_key, chosen)
    fresh.replace(server.key)
    part.replace(server.certificate)
    if chosen != settings.hosts:
        write_text(server.settings_file, commented_toml(settings.model_copy(update={"hosts": chosen})))


def deployment_config(source: str, overrides: Sequence[str]) -> Config:
    """The configuration of the phases: from a preset or file, without what only a simulation needs."""
    config = load(source, overrides)
    return config.model_copy(update={table: Config.model_fields[table].default for table in SIMULATION})


_HEADER = """\
# What the phases of this federation do: network, rounds, selection, classifier. Edit it before `cofal server pretrain`;
# what a finished phase used must not change under it.
"""

_README = """\
# Coordinator of a cofal federation

| file | what it is |
| --- | --- |
| `server.toml` | ports and limits |
| `config.toml` | what the phases do |
| `tls/ca.crt` | give this file to every site |
| `tls/ca.key` | signs the server's certificate; keep a copy offline, show it to no one |
| `tls/server.crt`, `tls/server.key` | the server's certificate (renew: `cofal server renew {folder}`) |
| `enrolled/` | public keys of the sites that may connect |
| `flower/` | Flower's home, database and secret; nothing to edit |
| `encoder.safetensors`, `picks/`, `cells/`, `checkpoints/`, `report.html` | what the phases leave |

1. `cofal server up {folder}` runs the server; sites reach it at `{host}:{port}` and nowhere else.
2. For each site: send it `tls/ca.crt`, get its `site.pub`, then `cofal server enrol {folder} site.pub --name NAME`.
   Compare the fingerprint that both sides print over another channel.
3. `cofal server pretrain {folder}`, `embed`, `select --budget N`; sites label; `train`; `report`; `status` at any time.

Back up the whole folder: with it the server can be started again anywhere, and unfinished phases go on.
"""
