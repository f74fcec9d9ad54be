"""A ServerApp's questions and answers over Flower's Runtime API; nothing here waits for a site.

Flower's own grid waits for all parts of an answer that a site has announced, up to three minutes if the site died on
the way, and reads nobody else's meanwhile. Here an answer is there or not yet there; who waits, and how long, decides
`cofal.federation.delivery`.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, cast

from flwr.app import Error, Message
from flwr.serverapp import Grid

from cofal.deploy import flwr_private as fl
from cofal.deploy.transport import PlainTransport
from cofal.federation.messages import UNAVAILABLE

_ATTEMPTS = 5


class Exchange:
    """Some questions and their answers; every call may be repeated after it failed."""

    shortest = 0.1  # seconds between two looks: each costs the SuperLink some 20 ms

    def __init__(self, grid: Grid):
        self._grid = cast(Any, grid)  # flwr's HttpGrid; tests/deploy/test_flwr_private.py looks at what is used of it
        self._announced: dict[str, tuple[Any, Any]] = {}  # question -> its answer's envelope and the tree of its parts
        _read_plainly(self._grid)

    def push(self, questions: list[Message]) -> list[str]:
        """Send questions; their message ids, '' for one that was not taken."""
        for _ in range(_ATTEMPTS - 1):
            # The SuperLink may die after it stored a part and before it said so, and does not take the part twice. The
            # same messages again: it says which parts it lacks.
            with suppress(fl.ObjectPushError):
                return list(self._grid.push_messages(questions))
        return list(self._grid.push_messages(questions))

    def look(self, questions: list[str]) -> None:
        """Ask once which of these questions, by their message ids, have an answer on its way."""
        unanswered = [question for question in questions if question not in self._announced]
        if unanswered:
            response = self._grid._runtime_client.PullMessages(fl.PullAppMessagesRequest(message_ids=unanswered))
            for envelope, tree in zip(response.messages_list, response.message_object_trees):
                self._announced[envelope.metadata.reply_to_message_id] = (envelope, tree)

    def pull(self, question: str) -> list[Message]:
        """The answer to a question that `look` has asked for, if all of it is there.

        An answer with a part that will never come (its sender was away for too long) is an error of code UNAVAILABLE.
        """
        if question not in self._announced:
            return []
        client = self._grid._runtime_client
        envelope, tree = self._announced[question]
        number, node, run = envelope.metadata.message_id, self._grid.node, self._grid.run.run_id
        contents: dict[str, bytes] = {}
        # Parts are sent children first: the root is looked for first, so that half an answer is not held in memory.
        for part in reversed([each.object_id for each in fl.iterate_object_tree(tree)]):
            found = client.PullObject(fl.PullObjectRequest(node=node, run_id=run, object_id=part))
            if not found.object_found:
                del self._announced[question]
                why = Error(UNAVAILABLE, "a part of the answer did not arrive in time")
                return [Message(why, reply_to=fl.message_from_proto(envelope))]
            if not found.object_available:
                return []
            contents[part] = found.object_content
        client.ConfirmMessageReceived(
            fl.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number)
        )  # now the server forgets it
        del self._announced[question]
        message = cast(Message, fl.inflate_object_from_contents(number, contents))
        message.metadata.__dict__["_message_id"] = number
        return [message]


def _read_plainly(grid: Any) -> None:
    """Let the grid's requests, still signed and repeated by Flower, travel over connections that read large bodies."""
    requests = grid._runtime_client._client
    if grid._cert is None or isinstance(requests._transport, PlainTransport):
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=grid._cert.decode("ascii"))
    requests._transport.close()
    requests._transport = PlainTransport(grid._addr, context)
