"""The embedded engine: a Flower Grid that calls the ClientApp in this process, client after client."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity  # private: Message() reads its run, node and task ids from here

from cofal.federation.messages import CLIENT_RAISED

_SERVER_NODE, _RUN = 1, 1


class InProcessGrid(Grid):
    """Delivers by a direct call. One such grid a process at a time, since Flower keeps the ids class-wide."""

    def __init__(
        self,
        client_app: ClientApp,
        nodes: Mapping[int, Mapping[str, bool | float | int | str]],
        run_config: UserConfig | None = None,
    ):
        self._app = client_app
        self._contexts = {
            node: Context(
                run_id=_RUN,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node, config in nodes.items()
        }
        self._run = Run.create_empty(_RUN)
        self._pushed: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        self._become_server()

    def _become_server(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, _SERVER_NODE, 1

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str = "", ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = number
            self._pushed[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The client works when its answer is pulled: answers pulled one by one are never all in memory."""
        return [self._deliver(self._pushed.pop(number)) for number in message_ids if number in self._pushed]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver and collect; `timeout` has no meaning for a direct call."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        TaskIdentity.node_id = context.node_id
        # Strategies send one RecordDict to all nodes; the copy keeps a client from changing what the next one gets.
        try:
            return self._app(copy.deepcopy(message), context)
        except Exception as error:  # as the deployed engine does: any client failure becomes an error reply
            return Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)
        finally:
            self._become_server()
