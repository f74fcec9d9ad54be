"""cofal: which few images should each site of a federation label?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cofal.selection import select

__all__ = ["__version__", "select"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`cofal.select` loads torch on first use, so that `import cofal` and `cofal --help` stay quick."""
    if name == "select":
        from cofal.selection import select

        return select
    raise AttributeError(f"module 'cofal' has no attribute {name!r}")
