"""A site's settings, `site.toml`: what its owner reads and edits, the policy above all, and its one reader."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cofal.commented import TABLE, commented_toml
from cofal.errors import UserError
from cofal.files import write_text
from cofal.privacy.policy import Policy
from cofal.validation import explain

SETTINGS = "site.toml"


PublicIdentity = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


class ServerLink(BaseModel):
    """How a deployed site reaches its server, and how much it takes from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(description="HOST:PORT of the server; the host must be named in the server's certificate")
    ca: str = Field(default="ca.crt", description="certificate of the federation's authority, got from the coordinator")
    key: str = Field(default="site.key", description="this site's private key; readable by its owner only")
    max_message_mb: int = Field(default=2048, ge=1, description="a larger message from the server is refused unread")


class SiteSettings(BaseModel):
    """Settings of a site. Paths are absolute or relative to the site's folder; a change holds from the next message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="what the other side calls this site", pattern=r"^[^\s/\\.][^\s/\\]{0,63}$")
    images: str = Field(description="folder of the decoded images")
    rows: str = Field(default="", description=".npy of this site's rows, in a set shared by simulated sites")
    test_images: str = Field(default="", description="folder of the test images this site holds, if any")
    test_rows: str = Field(default="", description=".npy of this site's rows of the test set")
    known_labels: list[str] = Field(default=[], description="ids whose labels are known before anyone is asked")
    oracle: bool = Field(default=False, description="simulated annotator: the data set's own label answers")
    frozen: str = Field(default="", description="the public encoder installed at this site, if one is used")
    device: str = Field(default="cpu", description="where the networks run: cpu, cuda, cuda:1, mps")
    # A simulated site, whose server is this process, need not wait: a power cut that takes the line takes the reply.
    ledger_sync: bool = Field(default=True, description="does a reply wait until its ledger line is on the disk?")
    policy: Policy = Field(default=Policy(), description="what may leave; see docs/privacy-ledger.md")
    server: ServerLink | None = Field(default=None, description="of a deployed site: its server")
    peers: dict[str, PublicIdentity] = Field(  # last: lines may be added at the end of the file
        default={},
        json_schema_extra=TABLE,
        description='the other sites, name = "what cofal client identity prints there"; if any is named, '
        "secure sums are refused with all that are not",
    )


def create_site(folder: Path, settings: SiteSettings) -> None:
    write_text(Path(folder) / SETTINGS, commented_toml(settings))


def refuse_run(folder: Path) -> None:
    """Raise if `folder` is a run, whose sites are in it, and not one site."""
    if (folder / "sites").is_dir():
        names = ", ".join(sorted(file.parent.name for file in folder.glob(f"sites/*/{SETTINGS}")))
        raise UserError(
            f"{folder} is a run, not a site; give one of its sites, {folder / 'sites'}/NAME (NAME: {names})"
        )


def read_settings(folder: Path) -> SiteSettings:
    """The settings of the site in `folder`; a mistake in the file is told with its key."""
    file = Path(folder) / SETTINGS
    try:
        written = json.dumps(tomllib.loads(file.read_text(encoding="utf-8")), default=str)
        return SiteSettings.model_validate_json(written, strict=True)  # a policy says true or false, not "no"
    except OSError as error:
        refuse_run(Path(folder))
        raise UserError(f"no site at {folder}: {SETTINGS}: {error.strerror}; make one with cofal client init") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid TOML: {error}; correct it") from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][0] == "peers" and first["type"].startswith("string"):
            raise UserError(
                f"{file}: {'.'.join(map(str, first['loc']))} is no public identity (64 hexadecimal digits); "
                "copy what cofal client identity prints at that site"
            ) from None
        raise UserError(f"{file}: {explain(error, SiteSettings)}") from None
