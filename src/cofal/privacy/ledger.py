"""The egress ledger of a site: an append-only file with one line for every message, chained by hashes.

A line is a JSON object without spaces whose last key is `hash`: SHA-256 of the line as it would be without that key.
Since the line also holds `prev`, the hash of the line before, a hash covers all that was written up to it.

A second file holds number and hash of the last line, so that lines missing or replaced at the end are found. It is
written after the line is in the ledger: it may lag behind, by what a crash left unwritten, and is never ahead. It is
there before the ledger itself, so that a ledger without it is one of an earlier version, or one that lost it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from cofal.errors import EnvironmentFault, UserError
from cofal.files import overwrite, sync_folder
from cofal.privacy.answered import FILE as ANSWERED

FILE, HEAD = "ledger.jsonl", "ledger.head"
START = "0" * 64  # `prev` of the first line
_OWN = "ledger"  # phase of the ledger's own notes
_UNTOLD = "absent or damaged, so that nothing tells whether lines are missing after line"
Entry = dict[str, Any]

_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_HASHED = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}')
_KEPT = re.compile(rb"([0-9]{20}) ([0-9a-f]{64})\n")  # a fixed length: it is written over the one before
_TAIL = 1 << 16  # bytes read at a time when looking for the last line


class Ledger:
    """Writer of one ledger file; any number of processes may append to it at the same time."""

    def __init__(self, path: Path, *, sync: bool = True):
        """`sync`: return from `append` only when the line is on the disk, not merely with the operating system.

        Without it a power cut may take lines that the second file names; they are then told as what they are: missing.
        """
        self.path, self.sync = path, sync
        self._seen = -1  # size of the file after our last line; -1: look at the file
        self._number, self._head = 0, START

    def append(
        self,
        *,
        phase: str,
        kind: str,
        fields: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
        refused: str = "",
    ) -> None:
        """Add one line; raises EnvironmentFault, with the file as it was, if that is not possible."""
        try:
            if not self.path.exists() and _read_head(self.path) is None:
                overwrite(self.path.with_name(HEAD), _record(0, START))
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _fault(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the file is closed
            end = os.fstat(file).st_size
            if end != self._seen:
                end = self._find_head(file, end)
            self._write(
                file,
                end,
                phase=phase,
                kind=kind,
                fields=[dict(each) for each in fields],
                bytes=sum(each["bytes"] for each in fields),
                parameters=dict(parameters or {}),
                **({"refused": refused} if refused else {}),
            )
        except OSError as error:
            raise _fault(error) from error
        finally:
            os.close(file)

    def _find_head(self, file: int, size: int) -> int:
        """Learn number and hash of the last line; note what is missing. Returns where the next line begins."""
        self._number, self._head, self._seen = 0, START, -1
        blocks: list[bytes] = []
        begin, ends = size, 0
        # Read backwards until the last whole line is in `blocks`: two line ends, or the beginning of the file.
        while begin > 0 and ends < 2:
            step = min(_TAIL, begin)
            begin -= step
            blocks.append(os.pread(file, step, begin))
            ends += blocks[-1].count(b"\n")
        whole, newline, torn = b"".join(reversed(blocks)).rpartition(b"\n")
        if newline:
            last = whole.rpartition(b"\n")[2]
            entry = _parse(last)
            if entry is None:
                raise EnvironmentFault(
                    "the last line of its ledger is damaged; see `cofal client ledger`, "
                    f"then move {FILE} and {HEAD} away to begin a new one"
                )
            self._number, self._head = entry["number"], entry["hash"]
        noted: dict[str, Any] = {}
        reasons = []
        if torn:
            noted["torn"] = torn.decode("ascii", errors="backslashreplace")
            reasons.append(
                f"a line of {len(torn)} bytes was cut short: its message was never sent, or the line was cut later"
            )
        kept = _read_head(self.path)
        if kept is None:
            noted["unwatched"] = self._number
            reasons.append(f"{HEAD} was {_UNTOLD} {self._number}")
        elif not self._holds(*kept):
            number, head = kept
            noted["missing"] = {"number": number, "hash": head}
            instead = "another stands in its place" if number <= self._number else f"the lines end with {self._number}"
            reasons.append(f"line {number} had been written, and {instead}")
        end = size - len(torn)
        if noted:
            # The note is written over the cut line, and holds its text: it is longer, so one write replaces it all.
            told = "; ".join(reasons)
            end = self._write(file, end, phase=_OWN, kind="nothing", fields=[], bytes=0, parameters=noted, refused=told)
        return end

    def _holds(self, number: int, head: str) -> bool:
        """Whether line `number` bears the hash `head`. Only after a crash, or a forgery, is it not the last line."""
        if number == 0 or number >= self._number:
            return number == 0 or (number, head) == (self._number, self._head)
        with open(self.path, "rb") as lines:
            entry = _parse(next(islice(lines, number - 1, number), b"").removesuffix(b"\n"))
        return entry is not None and entry["hash"] == head

    def _write(self, file: int, end: int, **content: Any) -> int:
        """Write the next line at offset `end`; returns the offset behind it."""
        number, now = self._number + 1, datetime.now(UTC).isoformat(timespec="milliseconds")
        line, digest = _compose({"number": number, "time": now, **content, "prev": self._head})
        self._seen = -1
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(file, line[written:], end + written)
            if self.sync:
                os.fsync(file)
                if end == 0:  # a new file: its name must survive as well
                    sync_folder(self.path.parent)
            overwrite(self.path.with_name(HEAD), _record(number, digest))
        except OSError:
            os.ftruncate(file, end)
            raise
        self._number, self._head, self._seen = number, digest, end + len(line)
        return self._seen


@dataclass(frozen=True)
class Reading:
    """A ledger as read back: the entries up to the first line that does not fit."""

    entries: list[Entry] = field(default_factory=list)
    broken: str = ""  # which line is the first that does not fit, or is missing, and why; empty if all is well
    doubt: str = ""  # after which line others may be missing without being found, and why; empty if they would be found

    @property
    def head(self) -> str:
        """Hash of the last good line: noted elsewhere, it shows later whether lines at the end were taken away."""
        return str(self.entries[-1]["hash"]) if self.entries else START


def read_ledger(path: Path, head: str = "", answered: int = 0) -> Reading:
    """Read and verify a ledger. `head`: a hash noted earlier, which some line must bear.

    If that line is the last, it takes the place of the second file; a line that notes the file's absence is believed
    if `head` is of the line before it. `answered`: questions that the site counted in another file; there must be lines
    then, how many is not known: what was counted may not have been sent.
    """
    try:
        watch = _read_head(path)  # before the lines: a site that is at work writes it after them
    except OSError as error:
        raise UserError(f"cannot read {path.with_name(HEAD)}: {error.strerror}; {_remedy(error)}") from error
    entries: list[Entry] = []
    kept, kept_hash = watch or (0, START)
    previous, gap, doubt = START, "", ""
    for number, (line, whole) in enumerate(_lines(path) if not (kept or answered) or path.exists() else (), start=1):
        reason = "it was cut short, by a crash while it was written or by a change since" if not whole else ""
        entry = _parse(line)
        if entry is None:
            return Reading(entries, gap or f"line {number}: {reason or 'its content was changed'}")
        if not reason and (entry["number"] != number or entry["prev"] != previous):
            reason = (
                f"it does not follow the line before it (it is number {entry['number']}): lines are missing or moved"
            )
        if reason:
            return Reading(entries, gap or f"line {number}: {reason}")
        if not gap and entry["phase"] == _OWN and "missing" in entry["parameters"]:  # the writer found it: for good
            gap = f"line {number}: it notes that lines before it are missing: {entry['refused']}"
        if entry["phase"] == _OWN and "unwatched" in entry["parameters"] and head != previous:
            doubt = doubt or f"line {number} notes that {entry['refused']}"
        entries.append(entry)
        previous = entry["hash"]
    if not gap and kept > len(entries):
        gap = f"line {len(entries) + 1}: missing at the end, since {HEAD} says that line {kept} was written"
    if not gap and kept and entries[kept - 1]["hash"] != kept_hash:
        gap = f"line {kept}: not the one that {HEAD} names: lines were taken away, or the chain was made anew"
    if not gap and answered and not entries:
        told = f"{answered:,} in {ANSWERED}"
        gap = f"line 1: the ledger is missing or empty, though the site has answered questions ({told})"
    if not gap and head and head != START and all(entry["hash"] != head for entry in entries):
        gap = f"line {len(entries) + 1}: missing, since no line has the noted head {head}"
    if watch is None and head != previous and _read_head(path) is None:  # still not there: the site did not just begin
        doubt = f"{HEAD} is {_UNTOLD} {len(entries)}"
    return Reading(entries, gap, doubt)


def _record(number: int, digest: str) -> bytes:
    """What the second file holds when line `number` of this hash is the last."""
    return b"%020d %s\n" % (number, digest.encode())


def _read_head(path: Path) -> tuple[int, str] | None:
    """Number and hash of the last line, as kept beside the ledger `path`; None if nothing legible is kept."""
    try:
        kept = _KEPT.fullmatch(path.with_name(HEAD).read_bytes())
    except FileNotFoundError:
        kept = None
    return (int(kept[1]), kept[2].decode()) if kept else None


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Every line without its end, and whether it had one."""
    try:
        with open(path, "rb") as file:
            for line in file:
                yield line.removesuffix(b"\n"), line.endswith(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "give yourself the right to read it"
    return "give the folder of a site that has sent something"


def _compose(content: Entry) -> tuple[bytes, str]:
    """The line (with its end) of `content`, and its hash."""
    body = _ENCODE(content).encode("ascii")
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + b',"hash":"' + digest.encode() + b'"}\n', digest


def _parse(line: bytes) -> Entry | None:
    """The entry of a line, or None if no ledger wrote that line as it is."""
    split = _HASHED.fullmatch(line)
    if split is None or hashlib.sha256(split[1] + b"}").hexdigest().encode() != split[2]:
        return None
    entry: Entry = json.loads(line)
    return entry


def _fault(error: OSError) -> EnvironmentFault:
    """Without the file's path: this text goes to the server, and the site's owner knows where the ledger is."""
    return EnvironmentFault(
        f"its ledger cannot be written ({error.strerror}); free space or rights there and try again"
    )
