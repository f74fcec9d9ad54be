"""Replies that open only together: each is readable once enough clients have answered the very same request.

Every reply is sealed under a key of its own, and that key is shared out among the other survivors under pads that each
of them gives away only when it answers the same request. So a server that asks different clients about different
survivors holds replies that it cannot open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cofal.privacy.secure_sum import shamir
from cofal.privacy.secure_sum.masks import KEY, derive, encode, stream

_NONCE = bytes(12)  # a key seals one message only


def seal(key: bytes, content: bytes, *context: object) -> bytes:
    """`content` encrypted and bound to its context under a key that seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, encode(*context))


def unseal(key: bytes, sealed: bytes, *context: object) -> bytes | None:
    """What `seal` was given, or None where key, content or context are not the same."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, encode(*context))
    except InvalidTag:
        return None


def pad(pair: bytes, request: bytes, sender: str) -> bytes:
    """What hides `sender`'s share for the other of the pair, who gives it away when it answers the same request."""
    return derive(pair, "pad", request, sender)


def close(content: bytes, *, key: bytes, request: bytes, name: str, pairs: Mapping[str, bytes], needed: int) -> bytes:
    """One reply: `needed` of the others (`pairs`: pair key by name) must answer `request` before it opens.

    `key` must be fresh for this request. Bytes: 64 for each of the others, the content, 16.
    """
    others = sorted(pairs)
    coefficients = stream(derive(key, "shares"), KEY * (needed - 1)).reshape(needed - 1, KEY)
    shares = shamir.split(np.frombuffer(derive(key, "seal"), dtype=np.uint8), coefficients, len(others))
    hidden: np.ndarray = shares ^ _rows([pad(pairs[other], request, name) for other in others])
    given = _rows([pad(pairs[other], request, other) for other in others])
    return hidden.tobytes() + given.tobytes() + seal(derive(key, "seal"), content, request, name)


def open_together(
    replies: Mapping[str, bytes], *, request: bytes, survivors: Sequence[str], needed: int, size: int
) -> dict[str, bytes | None]:
    """The content (`size` bytes) of each reply, None where it does not open; `survivors` are all who were asked."""
    length = 2 * KEY * (len(survivors) - 1)
    whole = {name: reply for name, reply in replies.items() if len(reply) == length + size + 16}
    hidden, given = {}, {}
    for name, reply in whole.items():
        others = sorted(other for other in survivors if other != name)
        tables = np.frombuffer(reply[:length], dtype=np.uint8).reshape(2, len(others), KEY)
        hidden[name], given[name] = (dict(zip(others, table)) for table in tables)
    contents: dict[str, bytes | None] = dict.fromkeys(replies)
    for name, reply in whole.items():
        others = sorted(hidden[name])
        helpers = [other for other in others if other in whole][:needed]
        if len(helpers) < needed:
            continue
        shares = np.stack([hidden[name][other] ^ given[other][name] for other in helpers])
        key = shamir.join([others.index(other) for other in helpers], shares).tobytes()
        contents[name] = unseal(key, reply[length:], request, name)
    return contents


def _rows(parts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(parts), -1)
