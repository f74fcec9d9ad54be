"""Which sites may take part: public keys in the coordinator's folder, made known to Flower by the running server."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cofal.deploy.certificates import read_public_key
from cofal.deploy.control_api import Control
from cofal.deploy.server_folder import ServerFolder
from cofal.errors import CofalError, UserError
from cofal.files import read_json, write_bytes, write_json

log = logging.getLogger("cofal")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LOOK = 0.5  # seconds between two looks at the folder
_AGAIN = 5.0  # seconds before a failed registration is tried again


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """What both sides compare over another channel: the SHA-256 of the key, in groups of four."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
    text = digest.finalize().hex()[:32]
    return " ".join(text[at : at + 4] for at in range(0, 32, 4))


def enrol(folder: Path, public_key: Path, name: str) -> str:
    """Let the owner of `public_key` take part as `name`; returns the key's fingerprint. The server may run or not."""
    server = ServerFolder(folder)
    server.settings()  # tells a folder that is no server
    if not _NAME.fullmatch(name):
        raise UserError(f"site name {name!r} is not allowed; use up to 63 letters, digits, '-' and '_'")
    key = read_public_key(public_key)
    own = fingerprint(key)
    for file in sorted(server.enrolled.glob("*.pub")):
        same_key, same_name = fingerprint(read_public_key(file)) == own, file.stem == name
        if same_key and same_name:
            return own
        if same_name:
            raise UserError(f"another key is enrolled as {name}; choose another name, or remove {file} to replace it")
        if same_key:
            raise UserError(f"this key is enrolled as {file.stem}; a site has one name")
    write_bytes(server.enrolled / f"{name}.pub", public_key.read_bytes())
    return own


async def keep_registering(server: ServerFolder) -> None:
    """Tell Flower of every enrolled key, now and as they come; a key that was removed is refused at the public port."""
    noted = server.home / "registered.json"
    while True:
        known: dict[str, str] = read_json(noted) if noted.exists() else {}
        pause = _LOOK
        for file in sorted(server.enrolled.glob("*.pub")):
            try:
                own = fingerprint(read_public_key(file))
            except UserError:
                continue  # the public port says so when it meets the file
            if own in known:
                continue
            if await asyncio.to_thread(_register, server, file):
                known[own] = file.stem
                write_json(noted, known)
                log.info("site %s is enrolled", file.stem)
            else:
                pause = _AGAIN
        await asyncio.sleep(pause)


def _register(server: ServerFolder, file: Path) -> bool:
    try:
        with Control(server) as control:
            control.register(read_public_key(file), file.stem)
    except CofalError as error:
        log.error("cannot register site %s: %s", file.stem, error)
        return False
    return True
