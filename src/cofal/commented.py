"""Settings as TOML for people: every value spelled out, with what it means beside it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection
from enum import Enum
from typing import Any

from pydantic import BaseModel

_WIDTH = 100
TABLE: dict[str, Any] = {"table": True}  # json_schema_extra of a field


def commented_toml(settings: BaseModel, skip: Collection[str] = ()) -> str:
    """`settings` as TOML, each key below its description; tables last, an unset key as a comment; `skip`: top keys.

    A mapping is written in one line, or, if its field says TABLE, as a table that people may add lines to.
    """
    return "\n".join(_table(settings, (), skip)).strip() + "\n"


def _table(settings: BaseModel, path: tuple[str, ...], skip: Collection[str] = ()) -> list[str]:
    lines, tables = [], []
    for name, field in type(settings).model_fields.items():
        if name in skip:
            continue
        value = getattr(settings, name)
        told = textwrap.wrap(field.description or "", _WIDTH)
        if isinstance(value, BaseModel):
            told = told or textwrap.wrap((type(value).__doc__ or "").partition("\n")[0], _WIDTH)
            inner = (*path, name)
            tables += ["", *(f"# {line}" for line in told), f"[{'.'.join(inner)}]", *_table(value, inner)]
            continue
        if field.json_schema_extra == TABLE:
            inside = [f"{toml_key(key)} = {toml_value(inner)}" for key, inner in value.items()]
            tables += ["", *(f"# {line}" for line in told), f"[{'.'.join((*path, name))}]", *inside]
            continue
        lines += [f"# {line}" for line in told]
        lines.append(f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}")
    return lines + tables


def toml_key(name: str) -> str:
    """`name` as it stands to the left of `=`."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    """A scalar, a list or a table as it stands to the right of `key =`."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        short = "[" + ", ".join(map(toml_value, value)) + "]"
        return short if len(short) <= _WIDTH else "[\n" + "".join(f"  {toml_value(item)},\n" for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    raise TypeError(f"no TOML for {type(value).__name__}")
