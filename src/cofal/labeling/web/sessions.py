"""Who is at the browser: signed session cookies and the link a person on this machine starts with.

Nothing here is kept in memory that a restarted server would miss: a person who is logged in stays so.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cofal.labeling.web.annotators import Annotators
from cofal.labeling.web.brake import Brake
from cofal.privacy.private_files import settle

SECRET_FILE = "page-secret.json"
_TRIES_BY_NAME = 20  # wrong tokens a minute; more from one address are one person guessing
_TRIES_BY_ADDRESS = 5
LIFETIME = 12 * 3600  # seconds a login lasts: a working day


@dataclass(frozen=True)
class Session:
    """One logged-in browser."""

    annotator: str
    csrf: str  # what a request that changes something has to repeat in a header


class Sessions:
    """Issues and checks the cookies of one site's page."""

    def __init__(self, site_folder: Path, annotators: Annotators, local_annotator: str | None):
        """local_annotator: who comes by the start link; None where others can reach the page: tokens alone count."""
        self._secret = bytes.fromhex(
            settle(site_folder / SECRET_FILE, secrets.token_hex(32), "remove it: all log in anew")
        )
        self._annotators, self._local = annotators, local_annotator
        self._brake, self._one_at_a_time = Brake(), threading.Lock()

    @property
    def by_token(self) -> bool:
        """Do annotators log in with tokens (always, once some are registered), or is the start link enough?"""
        return self._local is None or bool(self._annotators.names())

    @property
    def link_key(self) -> str:
        """What the start link holds: other users of this machine reach its loopback too, but do not know this."""
        return self._sign("link", self._local or "")[:32]

    def image_key(self, sample: str) -> str:
        """A name for a sample's picture in the page: says nothing of the sample's id, and is no path."""
        return self._sign("image", sample)[:24]

    def by_link(self, key: str) -> str | None:
        """The cookie for whoever opens the start link, or None if the key is wrong or tokens are in use."""
        if self._local is None or self.by_token or not hmac.compare_digest(key.encode(), self.link_key.encode()):
            return None
        return self._cookie(self._local)

    def by_login(self, name: str, token: str, address: str) -> str | None:
        """The cookie for `name`, or None if the token is wrong. Raises TooMany after too many wrong ones."""
        keys = {f"name {name}": _TRIES_BY_NAME, f"address {address}": _TRIES_BY_ADDRESS}
        self._brake.check(keys)
        with self._one_at_a_time:  # parallel guesses count like successive ones, and do not multiply scrypt's memory
            self._brake.check(keys)
            if self._annotators.login(name, token):
                return self._cookie(name)
            self._brake.failed(keys)
            return None

    def read(self, cookie: str) -> Session | None:
        """The session a cookie stands for; None if it was altered, is too old, or its annotator may no longer."""
        content, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", content).encode()):
            return None
        name, stamp, until = json.loads(base64.urlsafe_b64decode(content))
        if until < time.time() or stamp != self._stamp(name) or (self.by_token and not stamp):
            return None
        return Session(name, self._sign("csrf", content))

    def _cookie(self, name: str) -> str:
        text = json.dumps([name, self._stamp(name), int(time.time()) + LIFETIME])
        content = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{content}.{self._sign('session', content)}"

    def _stamp(self, name: str) -> str:
        """A short form of the annotator's stamp; empty for the local person, who has no token."""
        stamp = self._annotators.stamp(name)
        return hashlib.sha256(stamp.encode()).hexdigest()[:16] if stamp else ""

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()
