"""A server's memory: large blocks go back to the system as soon as they are free."""

from __future__ import annotations

import ctypes
import logging

_M_MMAP_THRESHOLD = -3  # of glibc's mallopt
_LARGE = 2**20  # bytes


def give_back_large_blocks() -> None:
    """Have the C library map every large block by itself; where there is no glibc, nothing changes.

    By itself glibc learns from the first freed model to keep such blocks in its heap, where they lie between others
    and add up: the peak is then a few models higher, and differs from run to run.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
    except (OSError, AttributeError):
        logging.getLogger("cofal").debug("no glibc: memory is given back as the system likes")
