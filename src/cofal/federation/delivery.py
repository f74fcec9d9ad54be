"""Questions out, answers in: one answer in memory at a time; a question lost with its client is asked again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from cofal.errors import EnvironmentFault
from cofal.federation import messages as m
from cofal.federation.bundle import bundle, unbundle
from cofal.federation.grid import InProcessGrid

T = TypeVar("T")

_LONGEST = 0.5  # seconds between two looks for answers; the first come sooner
_LARGE = 8 * 2**20  # bytes of an answer whose memory is wanted back at once
_AWAY = 120.0  # seconds that Flower's server may be away
_ROLL_CALL = 2.0  # seconds between two looks at who is connected


def deliver(grid: Grid, questions: Mapping[str, Message], timeout: float) -> Iterator[tuple[str, Message | str]]:
    """Send every site its question; yields its name and its answer as answers arrive, or why there is none to read.

    A site that has not answered within `timeout` seconds is not among them. Where the client was lost (killed, cut
    off) before it answered, the question is sent again once the client is back: handlers answer twice alike. Keep no
    reference to an answer that is done with, or two are in memory at once.
    """
    post = _Post(grid, questions)
    deadline, pause = time.monotonic() + timeout, post.shortest
    called = time.monotonic()
    while post.open:
        came = False
        post.look()
        for number, name in list(post.waiting.items()):
            large = False
            for answer in post.pull(number):
                large = isinstance(answer, Message) and m.content_bytes(answer) > _LARGE
                if post.settle(number, name, answer):
                    came = True
                    yield name, answer
                del answer
            if large:  # Flower's records hold each other: without this several models wait for the collector
                gc.collect()
        if not post.open or time.monotonic() > deadline:
            return
        if time.monotonic() - called > _ROLL_CALL:
            post.send_again()
            called = time.monotonic()
        pause = post.shortest if came else min(1.5 * pause, _LONGEST)
        time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))


def present(grid: Grid) -> dict[int, str]:
    """The connected nodes, each with the time it connected (empty where the grid does not say)."""
    return {node.node_id: node.last_activated_at for node in _reach(lambda: list(grid.get_nodes()))}


class _Post:
    """What was sent and is not answered yet."""

    def __init__(self, grid: Grid, questions: Mapping[str, Message]):
        self.grid, self.questions = grid, dict(questions)
        self.waiting: dict[str, str] = {}  # message id -> site
        self.lost: dict[str, str] = {}  # site -> why its question must be sent again
        self.connected: dict[str, str] = {}  # site -> when the client that was asked had connected
        self._carrier = _carrier(grid)
        self.shortest: float = self._carrier.shortest
        self._send(self.questions)

    @property
    def open(self) -> bool:
        return bool(self.waiting or self.lost)

    def _send(self, questions: Mapping[str, Message]) -> None:
        here = present(self.grid)
        packed = self._packed(questions.values())
        numbers = _reach(lambda: self._carrier.push(packed)) if packed else []
        numbers += [""] * (len(questions) - len(numbers))  # Flower gives back less where a message was not taken
        for (name, message), number in zip(questions.items(), numbers):
            self.connected[name] = here.get(message.metadata.dst_node_id, "")
            if number:
                self.waiting[number] = name
                self.lost.pop(name, None)
            else:
                self.lost[name] = "its client is not known to the server"

    def _packed(self, messages: Iterable[Message]) -> list[Message]:
        """The messages as they travel: to other processes with their arrays bundled."""
        if isinstance(self.grid, InProcessGrid):
            return list(messages)
        made: dict[int, RecordDict] = {}
        return [
            Message(
                bundle(each.content, made),
                dst_node_id=each.metadata.dst_node_id,
                message_type=each.metadata.message_type,
            )
            for each in messages
        ]

    def look(self) -> None:
        _reach(lambda: self._carrier.look(list(self.waiting)))

    def pull(self, number: str) -> list[Message | str]:
        """The answer to one question, if it is there."""
        try:
            answers = _reach(lambda: self._carrier.pull(number))
            for answer in answers:
                if answer.has_content():
                    answer.content = unbundle(answer.content)
            return [*answers]
        except EnvironmentFault:
            raise
        except Exception as error:  # what a client sent is put together here: anything may be wrong with it
            return [f"its answer cannot be read ({type(error).__name__})"]

    def settle(self, number: str, name: str, answer: Message | str) -> bool:
        """Take note of an answer; False if it was a loss, to be asked again, or a second answer of the site."""
        if self.waiting.pop(number, None) is None:
            return False
        if isinstance(answer, Message) and answer.has_error() and answer.error.code in m.LOST:
            if name not in self.waiting.values():
                self.lost[name] = str(answer.error.reason)
            return False
        self.lost.pop(name, None)
        for other in [other for other, site in self.waiting.items() if site == name]:
            del self.waiting[other]
        return True

    def send_again(self) -> None:
        """Repeat the questions of clients that were lost, or that have connected anew since they were asked."""
        here = present(self.grid)
        again = {}
        for name, message in self.questions.items():
            if (connected := here.get(message.metadata.dst_node_id)) is None:
                continue
            restarted = name in self.waiting.values() and connected != self.connected[name]
            if name in self.lost or restarted:
                again[name] = Message(
                    message.content,
                    dst_node_id=message.metadata.dst_node_id,
                    message_type=message.metadata.message_type,
                )
        if again:
            self._send(again)


class _Direct:
    """How questions and answers travel in one process; `cofal.deploy.exchange` does the same between processes."""

    shortest = 0.01  # seconds between two looks

    def __init__(self, grid: InProcessGrid):
        self._grid = grid

    def push(self, questions: list[Message]) -> list[str]:
        return self._grid.push_messages(questions)

    def look(self, questions: list[str]) -> None:
        """Nothing is on its way: a client works when its answer is pulled."""

    def pull(self, question: str) -> list[Message]:
        return self._grid.pull_messages([question])


def _carrier(grid: Grid) -> Any:
    if isinstance(grid, InProcessGrid):
        return _Direct(grid)
    from cofal.deploy.exchange import Exchange  # needed between Flower's processes alone

    _freeze()
    return Exchange(grid)


@cache
def _freeze() -> None:
    """What is there before the first question stays: the collector shall not look at it after every large answer."""
    gc.collect()
    gc.freeze()


def _reach(call: Callable[[], T]) -> T:
    """What a call to Flower's server gives; one that died is started again, and the call repeated."""
    deadline = time.monotonic() + _AWAY
    while True:
        try:
            return call()
        except (httpx.HTTPError, ConnectionError) as error:
            if isinstance(error, httpx.HTTPStatusError) or time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"Flower's server does not answer ({error}); run the same command again"
                ) from error
        time.sleep(_LONGEST)
