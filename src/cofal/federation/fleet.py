"""The server's view of its clients: sites by name, questions, checked answers in a fixed order, who was missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from cofal.errors import CofalError, EnvironmentFault, UserError
from cofal.federation import messages as m
from cofal.federation.delivery import deliver, present
from cofal.federation.standing import Standing
from cofal.federation.traffic import Traffic

log = logging.getLogger("cofal")
T = TypeVar("T")

_LONGEST_NAME = 64


class Unusable(CofalError):
    """A site's answer that cannot be used, with the reason; the site counts as missing."""


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
class Fleet:
    """The connected sites, keyed and ordered by name: node ids are random and answers come in any order."""

    grid: Grid
    timeout: float
    min_clients: int | None = None
    members: dict[str, Member] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    phase: str = "describe"
    standing: Standing = field(default_factory=Standing)
    missed: dict[str, str] = field(default_factory=dict)  # sites that some question went without, and why
    _refused: set[int] = field(default_factory=set)  # nodes that may not take part

    @classmethod
    def gather(
        cls,
        grid: Grid,
        *,
        expected: int | None,
        timeout: float,
        min_clients: int | None = None,
        known: Mapping[str, int] | None = None,
        standing: Standing | None = None,
    ) -> Fleet:
        """Ask every connected node who it is; wait up to `timeout` seconds until `expected` nodes are there.

        `known`: the node of each site in earlier phases. It keeps its name against another node that claims it.
        """
        known = known or {}
        fleet = cls(grid, timeout, min_clients, standing=standing or Standing())
        enough = min_clients or expected or 1
        deadline = time.monotonic() + timeout
        while len(nodes := sorted(present(grid))) < (expected or 1):
            fleet.standing.note(waiting=f"{len(nodes)} of {expected} sites are connected")
            if time.monotonic() > deadline:
                if len(nodes) >= enough:
                    break
                raise EnvironmentFault(
                    f"{len(nodes)} of {expected} sites connected within {timeout:.0f} s"
                    f"{_absent(known, nodes)}; start the others and try again"
                )
            time.sleep(min(1.0, timeout))
        failed: dict[str, str] = {}
        names = {node: name for name, node in known.items()}
        for node, said in fleet._describe(nodes).items():
            if isinstance(said, str):
                failed[names.get(node, f"node {node}")] = said
            elif (claim := fleet._claim(said, known)) == said.node:
                fleet.members[said.name] = said
            elif claim is None:
                other = fleet.members[said.name].node
                raise UserError(
                    f"two sites call themselves {said.name!r}: node {other} and node {node}; give each its own name"
                )
        fleet.members = dict(sorted(fleet.members.items()))
        if failed and len(fleet.members) < (min_clients or len(nodes)):
            raise UserError(f"a site failed to start: {'; '.join(f'{name}: {why}' for name, why in failed.items())}")
        first = next(iter(fleet.members.values()), None)
        for member in fleet.members.values():
            assert first is not None
            if (difference := _difference(member, first)) is not None:
                raise UserError(f"{difference}; all sites must agree")
        fleet.missed = {name: "not connected" for name in known if name not in fleet.members}
        fleet.missed |= failed
        for name, why in fleet.missed.items():
            log.warning("going on without %s: %s", name, why)
        fleet.standing.sites({name: member.samples for name, member in fleet.members.items()})
        return fleet

    def muster(self) -> None:
        """Take in the sites that came, or came back, since the last look; a stranger under a taken name is refused."""
        here = present(self.grid)
        strangers = sorted(set(here) - {member.node for member in self.members.values()} - self._refused)
        if not strangers:
            return
        phase, self.phase = self.phase, "describe"
        for node, said in self._describe(strangers).items():
            first = next(iter(self.members.values()))
            if isinstance(said, str):
                log.warning("node %s does not take part yet: %s", node, said)
            elif said.name in self.members and self.members[said.name].node in here:
                self._refuse(node, said.name, self.members[said.name].node)
            elif (difference := _difference(said, first)) is not None:
                self._refused.add(node)
                log.warning("node %s does not take part: %s", node, difference)
            else:
                log.info("site %s joins", said.name)
                self.members = dict(sorted({**self.members, said.name: said}.items()))
                self.missed.pop(said.name, None)
        self.phase = phase

    def _claim(self, member: Member, known: Mapping[str, int]) -> int | None:
        """The node that bears the member's name: this one or, if it had the name before, another; None if unclear."""
        owner = known.get(member.name)
        rival = self.members.get(member.name)
        if rival is None or owner == member.node:
            if rival is not None:
                self._refuse(rival.node, member.name, member.node)
            return member.node
        if owner == rival.node:
            self._refuse(member.node, member.name, rival.node)
            return rival.node
        return None

    def _refuse(self, node: int, name: str, owner: int) -> None:
        self._refused.add(node)
        log.warning(
            "two clients call themselves %r: node %s, which has the name, and node %s, which is left out; "
            "give it its own name", name, owner, node,
        )  # fmt: skip

    def _describe(self, nodes: Iterable[int]) -> dict[int, Member | str]:
        """What each node says of itself, by node in order; a text says why it cannot take part."""
        questions = {str(node): Message(m.pack(config={}), dst_node_id=node, message_type=m.DESCRIBE) for node in nodes}
        said: dict[int, Member | str] = dict.fromkeys(nodes, "it did not answer")
        for node, reply in self._exchange(questions):
            if isinstance(reply, str) or reply.has_error():
                said[int(node)] = reply if isinstance(reply, str) else str(reply.error.reason)
                continue
            try:
                said[int(node)] = _member(int(node), reply.content)
            except Exception as error:  # a stranger's words: anything may be wrong with them
                said[int(node)] = f"it describes itself unreadably ({type(error).__name__}: {str(error)[:80]})"
        return said

    def counted(self) -> dict[str, dict[str, Any]]:
        """The traffic of each phase so far, as plain numbers."""
        return {phase: asdict(each) for phase, each in self.traffic.items()}

    def count_on(self, earlier: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what an earlier process of the same run had counted."""
        for phase, numbers in earlier.items():
            self.traffic.setdefault(phase, Traffic()).count_on(numbers)

    @property
    def names(self) -> list[str]:
        return list(self.members)

    def ask(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        read: Callable[[str, RecordDict], T],
        at_least: int | None = None,
    ) -> dict[str, T]:
        """Send each named site its content; what `read(name, answer)` makes of each answer, by name, sorted.

        Answers are read as they arrive. One that `read` cannot use (it raises, best `Unusable`) counts as missing, as
        does one that never comes; the phase ends, naming them, when fewer than `at_least` are left (None: what the
        configuration says, and if that is nothing, all).
        """
        at_least = self.min_clients if at_least is None else at_least
        questions = {
            name: Message(content, dst_node_id=self.members[name].node, message_type=kind)
            for name, content in contents.items()
        }
        self.standing.asked(self.phase, list(questions))
        good: dict[str, T] = {}
        failed: dict[str, str] = {}
        refused: set[str] = set()
        for name, reply in self._exchange(questions):
            if isinstance(reply, str):
                failed[name] = reply
            elif reply.has_error():
                failed[name] = reply.error.reason
                if reply.error.code == m.REFUSED:
                    refused.add(name)
            else:
                try:
                    good[name] = read(name, reply.content)
                except Unusable as error:
                    failed[name] = f"its answer is rejected: {error}"
                except CofalError:
                    raise
                except Exception as error:  # whatever a site sent must not stop the server
                    log.debug("site %s", name, exc_info=True)
                    failed[name] = f"its answer is rejected: {type(error).__name__}: {str(error)[:200]}"
            self.standing.answered(name, failed.get(name, ""))
            del reply
        missing = {name: failed.get(name, "no answer") for name in questions if name not in good}
        if missing:
            told = _reasons(missing)
            self.missed |= missing
            if at_least is None or len(good) < min(at_least, len(questions)):
                what = f"{len(missing)} of {len(questions)} sites failed: {told}"
                if refused.issuperset(missing):
                    raise UserError(what)
                raise CofalError(f"{what}; see to that, then run this again: it goes on where it stopped")
            log.warning("going on without %s", told)
        return dict(sorted(good.items()))

    def _exchange(self, questions: Mapping[str, Message]) -> Any:
        """Deliver and count; yields what `deliver` does."""
        counted = self.traffic.setdefault(self.phase, Traffic())
        down = {name: m.content_bytes(message) for name, message in questions.items()}
        counted.down += sum(down.values())
        counted.round_trips += 1
        for name, reply in deliver(self.grid, questions, self.timeout):
            if isinstance(reply, Message):
                up = m.content_bytes(reply)
                counted.up += up
                # At the roll call the answer itself says whose it is.
                site = name if name in self.members else m.name_of(reply)
                if site:
                    counted.add(site, m.kind_of(reply), messages=1, up=up, down=down[name])
            yield name, reply
            del reply


def _member(node: int, content: RecordDict) -> Member:
    said, numbers = m.config_of(content), m.metrics_of(content)
    name, classes, shape = str(said["name"]), [str(each) for each in said["classes"]], said["image-shape"]
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise ValueError("a name has 1 to 64 printable letters")
    samples, known, tests = (numbers[key] for key in (m.EXAMPLES, "known-labels", "test-examples"))
    if len(shape) != 3 or not all(isinstance(each, int) and each >= 0 for each in [*shape, samples, known, tests]):
        raise ValueError("image-shape is three whole numbers, and so are the counts")
    return Member(name, node, samples, known, tests, classes, (shape[0], shape[1], shape[2]))


def _difference(member: Member, first: Member) -> str | None:
    if (member.classes, member.image_shape) == (first.classes, first.image_shape):
        return None
    return (
        f"site {member.name} has classes {member.classes} and images {member.image_shape}, "
        f"but site {first.name} has {first.classes} and {first.image_shape}"
    )


def _reasons(missing: Mapping[str, str]) -> str:
    """Why each site is missing; of several for one reason, but for their names in it, it is said once."""
    sites: dict[str, list[str]] = {}
    for name, why in missing.items():
        sites.setdefault(why.replace(f"site {name}", "the site"), []).append(name)
    told = (f"{', '.join(names)}: {why if len(names) > 1 else missing[names[0]]}" for why, names in sites.items())
    return "; ".join(told)


def _absent(known: Mapping[str, int], nodes: Iterable[int]) -> str:
    names = [name for name, node in known.items() if node not in set(nodes)]
    return f" ({', '.join(names)} missing)" if names else ""
