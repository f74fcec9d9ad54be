"""`cofal client up`: a site's process. It waits for messages, answers with the installed ClientApp, and stays alive.

A message in work is noted on disk until its answer has left, and the answer is kept there. A process that is killed and
started again takes up the same message, or hands in the rest of the same answer, so that the server only sees a slow
one; handlers are built so that answering twice changes nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, RecordDict

from cofal.deploy.certificates import read_site_key
from cofal.deploy.fleet_api import HEARTBEAT, Delivery, FleetConnection, NotAdmitted, RunOver, Unreachable
from cofal.deploy.heartbeats import Heartbeats
from cofal.deploy.parcel import Parcel
from cofal.errors import CofalError, UserError
from cofal.federation.messages import CLIENT_RAISED, REFUSED
from cofal.federation.site_settings import SETTINGS, SiteSettings, read_settings
from cofal.files import atomic, read_json, write_fault

log = logging.getLogger("cofal")

_IN_WORK, _ANSWER, _NODE = "in_work.bin", "answer.bin", "node.json"
_MOST_ATTEMPTS = 2  # a message that ends the process twice is answered with an error
# Seconds between two polls: after an answer, in a phase, when idle; and how long a phase may pause.
_FAST, _STEADY, _SLOW, _ACTIVE = 0.1, 0.5, 2.0, 15.0
_LONGEST_PAUSE = 10.0  # seconds between two attempts to connect

Answer = Callable[[Message, Context], Message]


class _Stop(BaseException):
    """SIGTERM or Ctrl-C: ends whatever is under way."""


def run_site(folder: Path) -> None:
    """Serve the site in `folder` until SIGTERM; only the installed package answers, never code from the server."""
    folder = folder.resolve()
    connection = _connection(folder, read_settings(folder))
    with _alone(folder):
        from cofal.federation.client_app import app  # imports torch: after the settings' mistakes were told
        from cofal.federation.site import open_site

        site = open_site(folder)
        log.info("site %s: %d images, %d classes", site.name, len(site.train.ids), len(site.train.classes))

        def stop(_number: int, _frame: Any) -> NoReturn:
            raise _Stop

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            _keep_serving(connection, folder, app)
        except _Stop:
            log.info("stopping")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            with suppress(CofalError):
                if connection.node:
                    connection.deactivate()  # now the server knows, and asks again what it still wants
                    for note in (_NODE, _IN_WORK, _ANSWER):
                        (folder / note).unlink(missing_ok=True)
            connection.close()


def _connection(folder: Path, settings: SiteSettings) -> FleetConnection:
    link = settings.server
    if link is None:
        raise UserError(f"{folder} is a simulated site; a deployed one is made with cofal client init --server")
    try:
        authority = (folder / link.ca).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read server.ca = {link.ca!r} of {folder}: {error}") from None
    return FleetConnection(link.address, authority, read_site_key(folder / link.key), most=link.max_message_mb << 20)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        lock = open(folder / ".up.lock", "w")  # noqa: SIM115  (held until the block ends)
    except OSError as error:
        raise write_fault(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process serves {folder}; stop it first") from None
        yield


def _keep_serving(connection: FleetConnection, folder: Path, answer: Answer) -> NoReturn:
    """Connect again and again: a server may be restarted, a network may fail, an enrolment may still be on its way."""
    pause, told = 1.0, ""
    while True:
        began = time.monotonic()
        try:
            _serve(connection, folder, answer)
        except CofalError as error:
            if time.monotonic() - began > HEARTBEAT:  # it had worked for a while: not a hopeless case
                pause, told = 1.0, ""
            if str(error) != told:
                told = str(error)
                log.warning("%s; trying again", told)
        time.sleep(pause * random.uniform(0.8, 1.2))  # many sites must not all come back at the same moment
        pause = min(2 * pause, _LONGEST_PAUSE)


def _serve(connection: FleetConnection, folder: Path, answer: Answer) -> NoReturn:
    """Answer messages as long as the connection holds."""
    # Without a message in work, one may have been lost between the server and our note of it: it shall ask again.
    connection.activate(earlier=_earlier_node(folder), anew=not (folder / _IN_WORK).exists())
    _note(folder / _NODE, json.dumps({"node": str(connection.node), "boot": _boot()}).encode())
    log.info("connected as node %d", connection.node)
    with Heartbeats(connection) as heartbeats:
        _take_up(connection, folder, answer)
        pause, last = _FAST, time.monotonic()
        while True:
            if heartbeats.failure:
                raise heartbeats.failure
            delivery = connection.pull()
            if delivery is not None:
                _note(folder / _IN_WORK, b"1" + delivery.to_bytes())
                _work(connection, folder, answer, delivery)
                pause, last = _FAST, time.monotonic()
                continue
            time.sleep(pause)
            pause = min(1.3 * pause, _STEADY if time.monotonic() - last < _ACTIVE else _SLOW)


def _note(path: Path, content: bytes) -> None:
    """Keep what a restart would need; a full disk must not keep the site from answering (the ledger decides that)."""
    try:
        with atomic(path, durable=False) as temporary:
            temporary.write_bytes(content)
    except CofalError as error:
        log.warning("%s", error)


def _take_up(connection: FleetConnection, folder: Path, answer: Answer) -> None:
    """Go on with the message that was in work when the process, or the connection, ended."""
    note = folder / _IN_WORK
    if not note.exists():
        return
    content = note.read_bytes()
    try:
        attempts, delivery = int(content[:1]) + 1, Delivery.from_bytes(content[1:])
    except ValueError:  # a power cut may leave half a note
        delivery = None
    if delivery is None:
        note.unlink()
        return
    kind, kept = delivery.envelope.metadata.message_type, Parcel.kept(folder / _ANSWER)
    if kept is not None and kept.answers(delivery.envelope):
        log.info("handing in the answer to %s", kind)
    elif attempts > _MOST_ATTEMPTS:
        log.error("%s ended this process %d times; it is answered with an error", kind, attempts - 1)
        answer = _refuse
    else:
        log.info("taking up %s again", kind)
        _note(note, str(attempts).encode() + content[1:])
    _work(connection, folder, answer, delivery)


def _refuse(message: Message, context: Context) -> Message:
    return Message(Error(CLIENT_RAISED, "the site's process ended twice while it worked on this"), reply_to=message)


def _work(connection: FleetConnection, folder: Path, answer: Answer, delivery: Delivery) -> None:
    """Answer a message and hand in the answer."""
    kind, began = delivery.envelope.metadata.message_type, time.monotonic()
    try:
        parcel, seconds = _parcel(connection, folder, answer, delivery)
        _send(connection, parcel)
        connection.confirm(delivery)
        reply = parcel.envelope
        outcome = f"refused: {reply.error.reason}" if reply.has_error() else "answered"
        log.info("%s %s (%.1f s of work, %.1f s in all)", kind, outcome, seconds, time.monotonic() - began)
    except RunOver:
        log.info("%s: the run has ended, nobody waits for the answer", kind)
    except NotAdmitted as error:
        log.error("%s: %s", kind, error)
    (folder / _IN_WORK).unlink(missing_ok=True)


def _parcel(connection: FleetConnection, folder: Path, answer: Answer, delivery: Delivery) -> tuple[Parcel, float]:
    """The answer to hand in and the seconds of work behind it.

    What was worked out before for this very message is not worked out again, unless the policy was changed meanwhile.
    Another message with the same question is: all that leaves goes through the gate and its ledger.
    """
    kept, began = Parcel.kept(folder / _ANSWER), time.monotonic()
    settings = folder / SETTINGS
    policy = hashlib.sha256(settings.read_bytes() if settings.exists() else b"").hexdigest()
    if kept is not None and kept.policy == policy and kept.answers(delivery.envelope):
        return kept, 0.0
    reply = _reply(connection, folder, answer, delivery)
    seconds = time.monotonic() - began
    parcel = Parcel.of(reply, policy, seconds)
    try:
        parcel.keep(folder / _ANSWER)
    except CofalError as error:
        log.warning("%s", error)
        (folder / _ANSWER).unlink(missing_ok=True)
    return parcel, seconds


def _reply(connection: FleetConnection, folder: Path, answer: Answer, delivery: Delivery) -> Message:
    """Fetch a message's content and let the ClientApp answer it."""
    try:
        context = Context(
            run_id=delivery.run,
            node_id=connection.node,
            node_config={"site": str(folder)},
            state=RecordDict(),
            run_config={},
        )
        return answer(connection.content(delivery), context)
    except Unreachable:
        _forgive(folder / _IN_WORK)
        raise
    except (RunOver, NotAdmitted):
        raise
    except Exception as error:  # a message that cannot be read: told in one line, without its content
        log.exception("cannot read %s", delivery.envelope.metadata.message_type)
        told = str(error) if isinstance(error, CofalError) else type(error).__name__
        return Message(Error(REFUSED, f"the message cannot be read: {told}"), reply_to=delivery.envelope)


def _forgive(note: Path) -> None:
    """Take back an attempt at the message in work: the connection ended, and not this process."""
    content = note.read_bytes() if note.exists() else b""
    if content[:1].isdigit() and content[:1] != b"0":
        _note(note, str(int(content[:1]) - 1).encode() + content[1:])


def _send(connection: FleetConnection, parcel: Parcel) -> None:
    """Hand in an answer; while the server is away it waits here, since its work is done and must not be lost."""
    pause = 0.5
    while True:
        try:
            return connection.hand_in(parcel)
        except Unreachable as error:
            log.warning("%s; the answer waits", error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _earlier_node(folder: Path) -> int:
    """The node id of this site's killed process; 0 if it stopped cleanly or ran on another machine.

    A copy of the folder on a second machine must not push the first one aside: there the server's refusal stands.
    """
    if not (folder / _NODE).exists():
        return 0
    try:
        noted = read_json(folder / _NODE)
    except UserError:  # a power cut may leave half a note
        return 0
    return int(noted["node"]) if noted["boot"] == _boot() else 0


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
