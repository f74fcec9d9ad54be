"""Who may speak to the server: the signed headers of a request are held against the keys of the enrolled sites.

Flower checks them once more behind the public port; here it happens before a byte of the body is read.
"""

from __future__ import annotations

import binascii
import datetime
import logging
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from cofal.deploy import fleet_api
from cofal.deploy.certificates import read_public_key
from cofal.errors import UserError

log = logging.getLogger("cofal")


class Refused(Exception):
    """A request that is not let in; the text is told to the sender."""


class Admission:
    """The enrolled keys in a folder, NAME.pub; a site enrolled while the server runs is let in at once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[str, int] = {}
        self._sites: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}

    def check(self, headers: Mapping[str, str]) -> str:
        """The name of the site that signed the request; raises Refused."""
        try:
            claimed = b64decode(headers[fleet_api.PUBLIC_KEY], validate=True)
            signature = b64decode(headers[fleet_api.SIGNATURE], validate=True)
            timestamp = headers[fleet_api.TIMESTAMP]
            signed_at = datetime.datetime.fromisoformat(timestamp)
            age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
            raise Refused("the request is not signed by a site") from None
        self._refresh()
        if claimed not in self._sites:
            raise Refused("this key is not enrolled; ask the coordinator to enrol the site's site.pub")
        name, key = self._sites[claimed]
        try:
            key.verify(signature, timestamp.encode("ascii", "replace"), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Refused("the signature does not fit the key") from None
        if not -fleet_api.CLOCK_AHEAD < age < fleet_api.CLOCK_BEHIND:
            raise Refused(f"the site's clock is {abs(age):.0f} s {'ahead' if age < 0 else 'behind'}; set it right")
        return name

    def _refresh(self) -> None:
        files = {file.name: file.stat().st_mtime_ns for file in self._folder.glob("*.pub")}
        if files == self._seen:
            return
        self._seen, self._sites = files, {}
        for name in files:
            try:
                key = read_public_key(self._folder / name)
            except UserError as error:
                log.error("%s", error)
                continue
            self._sites[fleet_api.key_bytes(key)] = (name.removesuffix(".pub"), key)
