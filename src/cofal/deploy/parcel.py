"""An answer as a site hands it in: what the server is told of it, and its parts. It is kept on disk until the next one.

A process that is killed while it hands in an answer hands in the rest of the same answer when it is started again: work
is done once, and its ledger has the answer once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from flwr.app import Message

from cofal.deploy import flwr_private as fl
from cofal.files import atomic

_LENGTHS = struct.Struct("<QQ")  # of a name and of the content that follows it
_HEAD = "announcement"


@dataclass(frozen=True)
class Parcel:
    """One answer; its parts are read one at a time, since they may be large."""

    policy: str  # digest of the site's settings under which it was answered
    announcement: bytes  # a serialised PushMessagesRequest
    parts: dict[str, Callable[[], bytes]]  # by object id, children first

    @classmethod
    def of(cls, reply: Message, policy: str, seconds: float) -> Parcel:
        """Pack a reply; `seconds` is the work behind it, for the server's statistics."""
        with fl.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree = fl.get_object_tree(reply)
            objects = fl.get_all_nested_objects(reply)
        plain = fl.remove_content_from_message(reply) if reply.has_content() else reply
        request = fl.PushMessagesRequest(
            node=fl.Node(node_id=reply.metadata.src_node_id),
            messages_list=[fl.message_to_proto(plain)],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        return cls(policy, request.SerializeToString(), {name: each.deflate for name, each in objects.items()})

    @property
    def envelope(self) -> Message:
        return fl.message_from_proto(fl.PushMessagesRequest.FromString(self.announcement).messages_list[0])

    def answers(self, question: Message) -> bool:
        """Is it the answer to this very message?"""
        return bool(self.envelope.metadata.reply_to_message_id == question.metadata.message_id)

    def keep(self, path: Path) -> None:
        """Not forced onto the disk, for speed: it serves a process that was killed, not a machine that lost power."""
        with atomic(path, durable=False) as temporary, open(temporary, "wb") as file:
            for name, content in ((self.policy, b""), (_HEAD, self.announcement)):
                _write(file, name, content)
            for name, read in self.parts.items():
                _write(file, name, read())

    @classmethod
    def kept(cls, path: Path) -> Parcel | None:
        """The answer that `keep` wrote there, if there is one and it is whole."""
        if not path.exists():
            return None
        found: list[tuple[str, int, int]] = []
        with open(path, "rb") as file:
            while len(head := file.read(_LENGTHS.size)) == _LENGTHS.size:
                name_length, length = _LENGTHS.unpack(head)
                found.append((file.read(name_length).decode(errors="replace"), file.tell(), length))
                file.seek(length, 1)
            if len(found) < 2 or file.tell() != path.stat().st_size:
                return None
        (policy, *_), (_, start, length), *parts = found
        return cls(
            policy,
            _read(path, start, length),
            {name: partial(_read, path, start, length) for name, start, length in parts},
        )


def _write(file: BinaryIO, name: str, content: bytes) -> None:
    file.write(_LENGTHS.pack(len(name.encode()), len(content)))
    file.write(name.encode())
    file.write(content)


def _read(path: Path, start: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(length)
