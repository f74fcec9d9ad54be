"""Long-term identities of sites (Ed25519): with them, the server cannot pass off a key of its own as a client's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cofal.errors import UserError
from cofal.privacy.private_files import settle
from cofal.privacy.secure_sum.masks import KEY, encode

SIGNATURE = 64  # bytes
_LOST = "restore it from a backup; without it the site gets a new identity, which sites that pinned the old one refuse"


def site_identity(folder: Path | str) -> bytes:
    """The site's private key (32 bytes), made on first use; it never leaves the site's folder."""
    file = Path(folder) / "identity.json"
    made = settle(file, {"ed25519": Ed25519PrivateKey.generate().private_bytes_raw().hex()}, _LOST)
    try:
        key = bytes.fromhex(made["ed25519"])
        if len(key) == KEY:
            return key
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(f"{file} holds no identity; {_LOST}")


def public_identity(identity: bytes) -> bytes:
    """The 32 bytes by which the other sites know the owner of `identity`."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def sign(identity: bytes, session: str, name: str, public: bytes) -> bytes:
    """The site's word that `public` is the key of client `name` in this session."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(_statement(session, name, public))


def check(peers: Mapping[str, bytes], session: str, keys: Mapping[str, bytes]) -> None:
    """Refuse any session key that is not signed by the pinned identity of the client whose name it bears."""
    for name, key in keys.items():
        told = repr(name[:64])  # the server's word
        if name not in peers:
            raise UserError(
                f"client {told} is not among the pinned peers; add its public identity to [peers], or leave it out"
            )
        if len(key) != KEY + SIGNATURE:
            raise UserError(
                f"the key of client {told} is not signed; use this version of cofal there, and relay keys unchanged"
            )
        try:
            Ed25519PublicKey.from_public_bytes(peers[name]).verify(key[KEY:], _statement(session, name, key[:KEY]))
        except (InvalidSignature, ValueError):
            raise UserError(
                f"the key of client {told} has a wrong signature: someone else made it, or the pinned identity is old; "
                "ask that site what its cofal client identity prints"
            ) from None


def _statement(session: str, name: str, public: bytes) -> bytes:
    return encode("cofal session key 1", session, name, public)
