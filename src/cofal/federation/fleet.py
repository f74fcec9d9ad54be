"""The server's view of its clients: sites by name, questions, answers in a fixed order, bytes counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from cofal.errors import CofalError, EnvironmentFault, UserError
from cofal.federation import messages as m

log = logging.getLogger("cofal")


@dataclass(frozen=True)
class Member:
    """What a site said of itself."""

    name: str
    node: int
    samples: int
    known_labels: int  # of the samples, those labelled before anyone is asked
    test_samples: int
    classes: list[str]
    image_shape: tuple[int, int, int]  # height, width, channels


@dataclass
class Traffic:
    """What a phase exchanged, seen from the server: payload bytes and round trips.

    `left`: site -> kind of what it sent, by its own declaration -> messages, bytes up, bytes down.
    """

    up: int = 0
    down: int = 0
    round_trips: int = 0
    left: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    def add(self, site: str, kind: str, **numbers: int) -> None:
        """Count what one site sent of one kind."""
        counted = self.left.setdefault(site, {}).setdefault(kind, {"messages": 0, "up": 0, "down": 0})
        for name, value in numbers.items():
            counted[name] += value


@dataclass
class Fleet:
    """The connected sites, keyed and ordered by name: node ids are random and answers come in any order."""

    grid: Grid
    timeout: float
    min_clients: int | None = None
    members: dict[str, Member] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    phase: str = "describe"

    @classmethod
    def gather(cls, grid: Grid, *, expected: int | None, timeout: float, min_clients: int | None = None) -> Fleet:
        """Ask every connected node who it is; wait up to `timeout` seconds until `expected` nodes are there."""
        fleet = cls(grid, timeout, min_clients)
        enough = min_clients or expected or 1
        deadline = time.monotonic() + timeout
        while len(nodes := sorted(grid.get_node_ids())) < (expected or 1):
            if time.monotonic() > deadline:
                if len(nodes) >= enough:
                    break
                raise EnvironmentFault(
                    f"{len(nodes)} of {expected} sites connected within {timeout:.0f} s; start the others and try again"
                )
            time.sleep(1)
        for reply in fleet._exchange(
            [Message(m.pack(config={}), dst_node_id=node, message_type=m.DESCRIBE) for node in nodes]
        ):
            if reply.has_error():
                raise UserError(f"a site failed to start: {reply.error.reason}")
            said, numbers = m.config_of(reply.content), m.metrics_of(reply.content)
            member = Member(
                name=str(said["name"]),
                node=reply.metadata.src_node_id,
                samples=int(numbers[m.EXAMPLES]),
                known_labels=int(numbers["known-labels"]),
                test_samples=int(numbers["test-examples"]),
                classes=list(said["classes"]),
                image_shape=tuple(said["image-shape"]),
            )
            if member.name in fleet.members:
                raise UserError(f"two sites call themselves {member.name!r}; give each its own name")
            fleet.members[member.name] = member
        fleet.members = dict(sorted(fleet.members.items()))
        first = next(iter(fleet.members.values()))
        for member in fleet.members.values():
            if member.classes != first.classes or member.image_shape != first.image_shape:
                raise UserError(
                    f"site {member.name} has classes {member.classes} and images {member.image_shape}, "
                    f"but site {first.name} has {first.classes} and {first.image_shape}; all sites must agree"
                )
        return fleet

    def counted(self) -> dict[str, dict[str, Any]]:
        """The traffic of each phase so far, as plain numbers."""
        return {phase: asdict(each) for phase, each in self.traffic.items()}

    def count_on(self, earlier: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what an earlier process of the same run had counted."""
        for phase, numbers in earlier.items():
            now = self.traffic.setdefault(phase, Traffic())
            for name in ("up", "down", "round_trips"):
                setattr(now, name, getattr(now, name) + numbers[name])
            for site, kinds in numbers.get("left", {}).items():
                for kind, counted in kinds.items():
                    now.add(site, kind, **counted)

    @property
    def names(self) -> list[str]:
        return list(self.members)

    def ask(self, kind: str, contents: Mapping[str, RecordDict], at_least: int | None = None) -> dict[str, RecordDict]:
        """Send each named site its content; the answers by name, sorted. A site that fails ends the phase by name.

        `at_least`: how many answers will do for this question; None for what the configuration says.
        """
        outgoing = [
            Message(content, dst_node_id=self.members[name].node, message_type=kind)
            for name, content in contents.items()
        ]
        answers = self.accept(self._exchange(outgoing), list(contents), at_least or self.min_clients)
        return {name: reply.content for name, reply in answers.items()}

    def ask_all(self, kind: str, config: Mapping[str, Any]) -> dict[str, RecordDict]:
        return self.ask(kind, {name: m.pack(config=config) for name in self.names})

    def accept(self, replies: list[Message], asked: list[str], at_least: int | None = None) -> dict[str, Message]:
        """Good replies by site name, sorted; raises when a site failed or too few answered."""
        names = {member.node: name for name, member in self.members.items()}
        good: dict[str, Message] = {}
        failed: dict[str, Error] = {}
        for reply in replies:
            name = names.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}")
            if reply.has_error():
                failed[name] = reply.error
            else:
                good[name] = reply
        missing = [name for name in asked if name not in good]
        if missing:
            told = "; ".join(f"{name}: {failed[name].reason if name in failed else 'no answer'}" for name in missing)
            if at_least is None or len(good) < min(at_least, len(asked)):
                refused = all(name in failed and failed[name].code == m.REFUSED for name in missing)
                kind = UserError if refused else CofalError
                raise kind(f"{len(missing)} of {len(asked)} sites failed: {told}")
            log.warning("going on without %s", told)
        return dict(sorted(good.items()))

    def exchange_round(self, outgoing: list[Message]) -> list[Message]:
        """One training round: the good replies as Flower messages, in name order."""
        names = {member.node: name for name, member in self.members.items()}
        asked = sorted(names[message.metadata.dst_node_id] for message in outgoing)
        return list(self.accept(self._exchange(outgoing), asked, self.min_clients).values())

    def _exchange(self, outgoing: list[Message]) -> list[Message]:
        counted = self.traffic.setdefault(self.phase, Traffic())
        down = {message.metadata.dst_node_id: m.content_bytes(message) for message in outgoing}
        replies = list(self.grid.send_and_receive(outgoing, timeout=self.timeout))
        counted.down += sum(down.values())
        counted.round_trips += 1
        names = {member.node: name for name, member in self.members.items()}
        for reply in replies:
            node, up = reply.metadata.src_node_id, m.content_bytes(reply)
            counted.up += up
            if node not in names and reply.has_content():  # the roll call: the answer itself says whose it is
                names[node] = str(m.config_of(reply.content).get("name", node))
            if node in names:
                counted.add(names[node], m.kind_of(reply), messages=1, up=up, down=down.get(node, 0))
        return replies
