"""Flower's Fleet API, spoken by a process that stays alive: a site's requests to the server.

No code is ever fetched: `get-fab` is not called, and content is inflated from flwr's own seven record types alone.
"""

from __future__ import annotations

import datetime
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from google.protobuf.message import DecodeError

from cofal.deploy import flwr_private as fl
from cofal.deploy.parcel import Parcel
from cofal.deploy.transport import PlainTransport
from cofal.errors import CofalError, UserError

PUBLIC_KEY, SIGNATURE, TIMESTAMP = fl.FLEET_HTTP_PUBLIC_KEY_HEADER, fl.FLEET_HTTP_SIGNATURE_HEADER, fl.TIMESTAMP_HEADER
CLOCK_AHEAD, CLOCK_BEHIND = fl.SYSTEM_TIME_TOLERANCE, fl.TIMESTAMP_TOLERANCE + fl.SYSTEM_TIME_TOLERANCE  # seconds
HEARTBEAT = fl.HEARTBEAT_MIN_INTERVAL  # seconds; the server takes a site for lost after two of them
key_bytes = fl.public_key_to_bytes

_OBJECTS = 200_000  # objects of one message
_ARRIVAL = 120.0  # seconds that a part of an announced message may be on its way


class Unreachable(CofalError):
    """No answer from the server, or one that says: later."""


class NotAdmitted(CofalError):
    """The server does not know this site, or not yet again."""


class RunOver(CofalError):
    """The run that a message belongs to has ended: nobody waits for the answer."""


@dataclass(frozen=True)
class Delivery:
    """A message as the server announces it: its envelope and the ids of the objects that make its content."""

    envelope: Message
    tree: bytes  # a serialised ObjectTree, so that it can be kept on disk

    @property
    def run(self) -> int:
        return int(self.envelope.metadata.run_id)

    def to_bytes(self) -> bytes:
        return bytes(
            fl.PullMessagesResponse(
                messages_list=[fl.message_to_proto(self.envelope)],
                message_object_trees=[fl.ObjectTree.FromString(self.tree)],
            ).SerializeToString()
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Delivery | None:
        try:
            response = fl.PullMessagesResponse.FromString(content)
        except DecodeError as error:
            raise ValueError("no delivery") from error
        if not response.messages_list:
            return None
        tree = response.message_object_trees[0].SerializeToString()
        return cls(fl.message_from_proto(response.messages_list[0]), tree)


class FleetConnection:
    """A site's requests to the server, signed with its key; safe to use from several threads."""

    def __init__(self, address: str, authority: str, key: ec.EllipticCurvePrivateKey, *, most: int):
        """`address` HOST:PORT, `authority` the CA's certificate as PEM text, `most` bytes of one message's content."""
        context = ssl.create_default_context(cadata=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._address, self._key, self._most = address, key, most
        self._public = key_bytes(key.public_key())
        self._versions = dict(fl.RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self._http = httpx.Client(
            base_url=f"https://{address}",
            transport=PlainTransport(address, context),
            timeout=30.0,
            trust_env=False,
            follow_redirects=False,
        )
        self._late = datetime.timedelta()  # how far this machine's clock is behind the server's, if that matters
        self.node = 0

    def close(self) -> None:
        self._http.close()

    def activate(self, earlier: int = 0, *, anew: bool = False) -> int:
        """Report for duty; the site's node id. `earlier`: the id this site had when it was killed or cut off.

        The server refuses a second activation until the heartbeats of the killed process have lapsed; but a heartbeat
        under the earlier id, signed with the same key, takes its place at once. `anew`: let the server know that this
        is a new beginning, so that it asks again what it had asked.
        """
        self.node = earlier
        try:
            if earlier:
                self.heartbeat()
                if anew:
                    self.deactivate()
                    self.node = 0
        except NotAdmitted:
            self.node = 0
        if not self.node:
            request = fl.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
            self.node = int(self._call("activate-node", request, fl.ActivateNodeResponse).node_id)
        fl.TaskIdentity.node_id, fl.TaskIdentity.task_id = self.node, 1
        return self.node

    def deactivate(self) -> None:
        self._call("deactivate-node", fl.DeactivateNodeRequest(node_id=self.node), fl.DeactivateNodeResponse)

    def heartbeat(self) -> None:
        request = fl.SendNodeHeartbeatRequest(node=fl.Node(node_id=self.node), heartbeat_interval=HEARTBEAT)
        if not self._call("send-node-heartbeat", request, fl.SendNodeHeartbeatResponse, timeout=5.0).success:
            raise NotAdmitted(f"{self._address} does not know this site any more; ask the coordinator to enrol it")

    def pull(self) -> Delivery | None:
        """The next message's envelope, if one waits. The server gives each message once."""
        response = self._call(
            "pull-messages", fl.PullMessagesRequest(node=fl.Node(node_id=self.node)), fl.PullMessagesResponse
        )
        return Delivery.from_bytes(response.SerializeToString())

    def content(self, delivery: Delivery) -> Message:
        """The whole message; its size is counted while it arrives, and each object checked against its hash."""
        contents: dict[str, bytes] = {}
        total = 0
        for object_id in _ids(fl.ObjectTree.FromString(delivery.tree)):
            if object_id in contents:
                continue
            contents[object_id] = self._object(delivery.run, object_id)
            total += len(contents[object_id])
            if total > self._most:
                raise UserError(
                    f"the message is larger than {self._most >> 20} MB; raise server.max_message_mb in site.toml "
                    "if it is meant to be"
                )
        message = fl.inflate_object_from_contents(delivery.envelope.metadata.message_id, contents)
        if not isinstance(message, Message):
            raise CofalError("the server sent something that is no message")
        message.metadata.__dict__["_message_id"] = delivery.envelope.metadata.message_id
        fl.TaskIdentity.run_id = delivery.run
        return message

    def _object(self, run: int, object_id: str) -> bytes:
        request = fl.PullObjectRequest(node=fl.Node(node_id=self.node), run_id=run, object_id=object_id)
        deadline = time.monotonic() + _ARRIVAL
        while not (response := self._call("pull-object", request, fl.PullObjectResponse)).object_available:
            if not response.object_found or time.monotonic() > deadline:
                raise CofalError("a part of the message is not there")
            time.sleep(0.1)  # the server announces a message before all of its parts have arrived
        content = bytes(response.object_content)
        if fl.get_object_id(content) != object_id:
            raise CofalError("a part of the message was changed on its way")
        fl.validate_object_content(content)
        return content

    def hand_in(self, parcel: Parcel) -> None:
        """Send an answer part by part; one that was handed in halfway before is completed."""
        response = self._call(
            "push-messages", fl.PushMessagesRequest.FromString(parcel.announcement), fl.PushMessagesResponse
        )
        run, session, wanted = parcel.envelope.metadata.run_id, response.session_id, set(response.objects_to_push)
        if not wanted:  # announced before, and the server waits for the rest (it knows which session); or nobody waits
            session, wanted = "", {part for part in parcel.parts if self._lacks(run, part)}
        for part, read in parcel.parts.items():
            if part in wanted:
                request = fl.PushObjectRequest(
                    node=fl.Node(node_id=self.node),
                    run_id=run,
                    object_id=part,
                    object_content=read(),
                    session_id=session,
                )
                # A part may have come from another site meanwhile: equal parts have equal ids.
                if not self._call("push-object", request, fl.PushObjectResponse).stored and self._lacks(run, part):
                    raise Unreachable("the server did not keep a part of the answer")

    def _lacks(self, run: int, part: str) -> bool:
        """Does the server wait for this object?"""
        request = fl.PullObjectRequest(node=fl.Node(node_id=self.node), run_id=run, object_id=part)
        response = self._call("pull-object", request, fl.PullObjectResponse)
        return bool(response.object_found and not response.object_available)

    def confirm(self, delivery: Delivery) -> None:
        """The message is answered: the server may forget its content."""
        request = fl.ConfirmMessageReceivedRequest(
            node=fl.Node(node_id=self.node),
            run_id=delivery.run,
            message_object_id=delivery.envelope.metadata.message_id,
        )
        self._call("confirm-message-received", request, fl.ConfirmMessageReceivedResponse)

    def _call(self, path: str, request: Any, kind: type[Any], timeout: float = 30.0) -> Any:
        stamp = (fl.now() + self._late).isoformat()
        headers = self._versions | {
            "content-type": fl.PROTOBUF_MEDIA_TYPE,
            "accept": fl.PROTOBUF_MEDIA_TYPE,
            "accept-encoding": "identity",
            PUBLIC_KEY: b64encode(self._public).decode(),
            TIMESTAMP: stamp,
            SIGNATURE: b64encode(fl.sign_message(self._key, stamp.encode())).decode(),
        }
        body = request.SerializeToString(deterministic=True)
        try:
            with self._http.stream(
                "POST", f"/v1/fleet/{path}", content=body, headers=headers, timeout=timeout
            ) as response:
                content = _plain(response)
        except httpx.HTTPError as error:
            raise Unreachable(_explain(self._address, error)) from None
        status = response.status_code
        if status == httpx.codes.OK:
            try:
                return kind.FromString(content)
            except DecodeError:
                raise Unreachable(f"the answer of {self._address} to {path} cannot be read") from None
        if status == httpx.codes.UNAUTHORIZED:
            self._set_clock(response.headers.get("date", ""))
        told = content[:200].decode("utf-8", "replace")
        if status == httpx.codes.FORBIDDEN and path != "activate-node":
            raise RunOver("the run has ended")
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:  # also 500: the SuperLink's database was busy for too long
            raise Unreachable(f"{self._address} answers {status}: {told}")
        raise NotAdmitted(f"{self._address} refuses {path} ({status}): {told}")

    def _set_clock(self, date: str) -> None:
        """Take the time from the server, whose certificate was checked, if ours is what it refuses."""
        try:
            late = parsedate_to_datetime(date) - fl.now()
        except (ValueError, TypeError):
            return
        if abs(late - self._late).total_seconds() >= CLOCK_AHEAD:
            self._late, seconds = late, late.total_seconds()
            side = "behind" if seconds > 0 else "ahead of"
            raise Unreachable(
                f"this machine's clock is {abs(seconds):.0f} s {side} that of {self._address}, whose time is taken for "
                "signatures from now on; set the clock right"
            )


def speaks_for_itself(body: bytes) -> bool:
    """Do all messages of a `push-messages` request name the node that sends it? Flower does not look."""
    try:
        request = fl.PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    return all(message.metadata.src_node_id == request.node.node_id for message in request.messages_list)


def _plain(response: httpx.Response) -> bytes:
    """The body of a response; an encoded one is refused, since it can grow without bound."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise CofalError("the server sent a compressed answer, which was not asked for")
    return b"".join(response.iter_raw())


def _ids(tree: fl.ObjectTree) -> Iterator[str]:
    """Ids of all objects of a message, counted: protobuf bounds the depth of the tree, this its size."""
    waiting, count = [tree], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > _OBJECTS:
            raise UserError(f"the message has more than {_OBJECTS:,} parts; it cannot be one of cofal's")
        waiting.extend(node.children)
        yield node.object_id


def _explain(address: str, error: Exception) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.partition("certificate verify failed: ")[2].partition(" (")[0] or "it is not trusted"
        return f"the certificate of {address} is refused ({why}); check server.ca in site.toml, or tell the coordinator"
    return f"cannot reach {address} ({text or type(error).__name__})"
