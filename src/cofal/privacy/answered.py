"""How many different questions of aggregate selections a site has answered: enough of them add up to its rows."""

from __future__ import annotations

import re
from pathlib import Path

from cofal.errors import UserError
from cofal.files import append_line, read_lines
from cofal.privacy.private_files import locked

FILE = Path("privacy") / "answered.log"  # in a site's folder: a digest a line
_DIGEST = re.compile("[0-9a-f]{64}")
ALL = 2**62  # questions: the sites of an experiment answer as many as it asks


def answered(folder: Path) -> int:
    """Different questions so far."""
    return len(_known(folder))


def admit(folder: Path, site: str, question: bytes, most: int, *, durable: bool = True) -> None:
    """Note a question by its digest before it is answered; raises the refusal of `site` beyond `most` different ones.

    One that was asked before gets the same answer again and is not counted twice.
    """
    with locked((folder / FILE).parent):
        known = _known(folder)
        if question.hex() in known:
            return
        if len(known) >= most:
            raise UserError(
                f"site {site} has answered {len(known)} different questions of aggregate selections, as many as its "
                "policy.max_questions allows: more of them would add up to its samples; the site's owner may raise it"
            )
        append_line(folder / FILE, question.hex(), durable, mode=0o600)


def _known(folder: Path) -> set[str]:
    file = folder / FILE
    lines = read_lines(file).decode("ascii", errors="replace").splitlines() if file.exists() else []
    return {line for line in lines if _DIGEST.fullmatch(line)}  # a power cut may leave other things
