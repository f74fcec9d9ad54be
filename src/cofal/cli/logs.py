"""The log of a long-running command: one line an event on stderr, for a terminal as for a journal."""

from __future__ import annotations

import logging
import sys
import time


def log_to_stderr() -> None:
    """Send cofal's log lines, with UTC times, to stderr; other libraries' from warnings on."""
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cofal").setLevel(logging.INFO)
