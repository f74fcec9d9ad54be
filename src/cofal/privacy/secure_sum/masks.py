"""Keys and key streams of a secure sum: the agreement of two clients, and everything that derives from a key."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from cofal.errors import UserError

KEY = 32  # bytes of every key, seed, share and pad


def encode(*parts: object) -> bytes:
    """Parts (bytes, text, numbers) as bytes from which they could be told apart again: each after its length."""
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in raw)


def derive(key: bytes, purpose: str, *context: object) -> bytes:
    """A key for one purpose in one context; who learns it learns nothing of `key` or of any other purpose."""
    return HKDFExpand(SHA256(), KEY, encode("cofal secure sum 1", purpose, *context)).derive(key)


def stream(key: bytes, size: int) -> np.ndarray:
    """(size,) uint8: the ChaCha20 key stream of `key`. A key is used for one stream only, hence the constant nonce."""
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(size)), dtype=np.uint8)


def byte_source(key: bytes) -> Callable[[int], bytes]:
    """Random bytes by portions, the same for a key in whatever process: noise that repetition cannot average away."""
    calls = itertools.count()
    return lambda size: stream(derive(key, "part", next(calls)), size).tobytes()


def mask(seed: bytes, session: str, round: int, layout: bytes, words: int) -> np.ndarray:
    """(words,) uint64: the mask that `seed` gives for arrays of this layout in this round of this session."""
    return stream(derive(seed, "mask", session, round, layout, words), 8 * words).view("<u8")


def public_key(private: bytes) -> bytes:
    """The X25519 public key (32 bytes) of any 32 bytes taken as a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, keys: Mapping[str, bytes], name: str, digest: bytes) -> dict[str, bytes]:
    """The pair key of client `name` with every other one, from X25519 and bound to the roster's `digest`.

    A public key that is no proper point, or that comes twice, is refused.
    """
    own = X25519PrivateKey.from_private_bytes(private)
    pairs: dict[str, bytes] = {}
    seen: dict[bytes, str] = {}
    for other in sorted(keys):
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(keys[other]))
        except ValueError:  # a point of low order, all zeros among them: the secret would be known to all
            raise UserError(
                f"the key of client {other!r} is not a valid X25519 point; it must make a new one"
            ) from None
        # Equal secrets show a repeated key even where its bytes differ: a point has several encodings.
        if secret in seen:
            raise UserError(f"clients {seen[secret]!r} and {other!r} have the same key; every client needs its own")
        seen[secret] = other
        info = encode("cofal pair 1", *sorted((name, other)))
        pairs[other] = HKDF(SHA256(), KEY, salt=digest, info=info).derive(secret)
    del pairs[name]
    return pairs
