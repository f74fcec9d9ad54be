"""Who may label at a site: names and their login tokens, which are told once and kept only as scrypt hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.files import read_json
from cofal.labeling.records import check_annotator
from cofal.privacy.private_files import locked, write_private

FILE = "annotators.json"
_COST = {"n": 2**14, "r": 8, "p": 1}  # about 16 MB and 40 ms a try
_NOBODY = {"salt": "00" * 16, "hash": "00" * 32, **_COST}


class Annotators:
    """The annotators of one site. Every look reads the file if it changed: a removed annotator is out at once."""

    def __init__(self, site_folder: Path):
        self._file = site_folder / FILE
        self._read: tuple[tuple[int, int], dict[str, dict[str, Any]]] = ((0, 0), {})

    def names(self) -> list[str]:
        return sorted(self._entries())

    def add(self, name: str) -> str:
        """Register `name` (or give it a new token, ending the old one) and return the token, which is kept nowhere."""
        name = unicodedata.normalize("NFC", check_annotator(name))  # the same name, whatever the keyboard
        token, salt = secrets.token_urlsafe(24), secrets.token_bytes(16)
        entry = {
            "salt": salt.hex(),
            "hash": _scrypt(token, salt, _COST).hex(),
            **_COST,
            "added": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with locked(self._file.parent):
            write_private(self._file, {**self._entries(), name: entry})
        return token

    def remove(self, name: str) -> None:
        with locked(self._file.parent):
            entries = self._entries()
            if name not in entries:
                known = ", ".join(sorted(entries)) or "nobody"
                raise UserError(f"no annotator {name!r} at {self._file.parent}; registered: {known}")
            write_private(self._file, {other: entry for other, entry in entries.items() if other != name})

    def login(self, name: str, token: str) -> bool:
        """Is `token` the one of `name`? An unknown name takes as long to refuse as a wrong token."""
        entry = self._entries().get(name, _NOBODY)
        found = _scrypt(token, bytes.fromhex(entry["salt"]), entry)
        return hmac.compare_digest(found, bytes.fromhex(entry["hash"])) and entry is not _NOBODY

    def stamp(self, name: str) -> str:
        """Changes with every new token of `name`, so that sessions of the old one end; empty for an unknown name."""
        return str(self._entries().get(name, {}).get("salt", ""))

    def _entries(self) -> dict[str, dict[str, Any]]:
        try:
            stat = self._file.stat()
        except OSError:
            return {}
        version = (stat.st_mtime_ns, stat.st_ino)
        if self._read[0] != version:
            self._read = (version, read_json(self._file))
        return self._read[1]


def _scrypt(token: str, salt: bytes, cost: dict[str, Any]) -> bytes:
    return hashlib.scrypt(token.encode(), salt=salt, n=cost["n"], r=cost["r"], p=cost["p"], maxmem=64 << 20, dklen=32)
