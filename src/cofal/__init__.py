"""cofal: which few images should each site of a federation label?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cofal.selection import select

__all__ = ["__version__", "select"]
__version__ = "0.1.0"

# When numba starts its threads their number becomes torch's too, in the middle of a run, and with it the last digits of
# all that is trained after. So where someone sets how many there are to be, it is one number for both.
if (_threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
    os.environ.setdefault("NUMBA_NUM_THREADS", _threads)


def __getattr__(name: str) -> Any:
    """`cofal.select` loads torch on first use, so that `import cofal` and `cofal --help` stay quick."""
    if name == "select":
        from cofal.selection import select

        return select
    raise AttributeError(f"module 'cofal' has no attribute {name!r}")
