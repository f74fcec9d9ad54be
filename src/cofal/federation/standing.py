"""Where a phase stands, for people who wait: `status.json` in the run's folder, written by the server's process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cofal.files import read_json, write_json

_PAUSE = 1.0  # seconds between two writes while nothing ends


class Standing:
    """The phase under way (or the last one), its round and time left, and what each site last said.

    Without a file nothing is written: an embedded run has its progress bar. A file that cannot be written does not
    stop the work it tells of.
    """

    def __init__(self, file: Path | None = None, phase: str = ""):
        self._file = file
        self._written = 0.0
        before = read_json(file) if file is not None and file.exists() else {}
        self._facts: dict[str, Any] = {
            "phase": phase, "state": "running", "pid": os.getpid(), "started": now(), "updated": now(),
            "sites": before.get("sites", {}),
        }  # fmt: skip
        self._write(at_once=True)

    def note(self, **facts: Any) -> None:
        """Facts about the phase; the last told counts."""
        self._facts |= facts
        self._write()

    def sites(self, samples: Mapping[str, int]) -> None:
        """These sites are connected."""
        for name, count in samples.items():
            self._site(name).update(samples=count, seen=now(), missing="")
        self._facts.pop("waiting", None)
        self._write()

    def asked(self, what: str, names: list[str]) -> None:
        """These sites are asked; written at once, since they may keep silent for long."""
        self._facts |= {"asking": what, "waiting_for": list(names)}
        self._write(at_once=True)

    def answered(self, name: str, fault: str = "") -> None:
        """A site answered; `fault` says why its answer could not be used."""
        self._site(name).update(seen=now(), missing=fault)
        self._facts["waiting_for"] = [each for each in self._facts.get("waiting_for", []) if each != name]
        self._write()

    def labels(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """asked, labelled, skipped of each site."""
        for name, each in counts.items():
            self._site(name).update(each)
        self.note(labels_told=now())

    def round(self, number: int, rounds: int, seconds: float) -> None:
        """Round `number` of `rounds` took `seconds`."""
        self.note(round=number, rounds=rounds, seconds_left=round((rounds - number) * seconds, 1))

    def end(self, state: str, missed: Mapping[str, str], reason: str = "") -> None:
        """The phase is `done` or `failed`."""
        for name, why in missed.items():
            if name in self._facts["sites"]:
                self._site(name)["missing"] = why
        for gone in ("waiting", "waiting_for", "asking", "seconds_left"):
            self._facts.pop(gone, None)
        self._facts |= {"state": state, "missed": dict(missed), "reason": reason}
        self._write(at_once=True)

    def _site(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._facts["sites"].setdefault(name, {})
        return found

    def _write(self, at_once: bool = False) -> None:
        if self._file is None or not (at_once or time.monotonic() - self._written > _PAUSE):
            return
        self._facts["updated"] = now()
        try:
            write_json(self._file, self._facts)
        except Exception:
            if not self._written:
                raise  # nothing has been done yet: the folder cannot be written at all
        self._written = time.monotonic()


def read_standing(file: Path, enrolled: Sequence[str], online: Mapping[str, bool]) -> dict[str, Any]:
    """What `status.json` says, with every enrolled site, and whether it is connected now (None where nobody knows)."""
    found: dict[str, Any] = read_json(file) if file.exists() else {"phase": "", "state": "nothing was run yet"}
    if found["state"] == "running" and not Path(f"/proc/{found['pid']}").exists():
        found["state"] = "cut short"
    sites = found.get("sites", {})
    found["sites"] = {name: {"up": online.get(name), **sites.get(name, {})} for name in sorted({*enrolled, *sites})}
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
