"""What pydantic finds wrong with settings, told in one line: the key, its value, and the remedy."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake that `error` holds about `model`: key, value, and the nearest key or the allowed values."""
    # A mistyped key before what is missing for it; what is wrong in a list before that it is none of the known names.
    first = min(
        error.errors(),
        key=lambda each: (
            each["type"] != "extra_forbidden",
            each["type"] == "literal_error" and isinstance(each["input"], list),
        ),
    )
    where = ".".join(str(part) for part in first["loc"] if not _is_union_branch(part)) or "configuration"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = list(_model_of(model, first["loc"][:-1]).model_fields)
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.0)
        return f"unknown key {where} = {first['input']!r}; did you mean {near[0]}? (known: {', '.join(known)}){more}"
    if first["type"] == "missing":
        return f"{where} is missing; add it{more}"
    if first["type"] in ("literal_error", "enum"):
        allowed = [part.strip(" '") for part in first["ctx"]["expected"].replace(" or ", ", ").split(",")]
        near = difflib.get_close_matches(str(first["input"]), allowed, n=1, cutoff=0.0)
        return f"{where} = {first['input']!r} is not one of {', '.join(allowed)}; did you mean {near[0]!r}?{more}"
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}{more}"
    keys = tuple(part for part in first["loc"] if isinstance(part, str) and not _is_union_branch(part))
    remedy = _number(model, keys, first["type"].startswith("int_")) or f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return f"{where} = {first['input']!r}: {remedy}{more}"


def _is_union_branch(part: int | str) -> bool:
    """Pydantic names the branch of a union in the location; that name is no key of the file."""
    return isinstance(part, str) and ("[" in part or part in {"float", "int", "str"})


def _model_of(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The table at `location` below `model`; one that may be left out is a union with None."""
    for part in location:
        kind: Any = model.model_fields[str(part)].annotation
        for each in (kind, *get_args(kind)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                model = each
    return model


def _number(model: type[BaseModel], keys: tuple[str, ...], no_whole: bool) -> str:
    """The numbers that a key takes, in words, if it has two limits or what was given is `no_whole` one; else empty."""
    field: FieldInfo | None = _model_of(model, keys[:-1]).model_fields.get(keys[-1])
    limits = {
        name: getattr(each, name)
        for each in (field.metadata if field else ())
        for name in _LIMITS
        if hasattr(each, name)
    }
    if len(limits) < 2 and not no_whole:
        return ""
    told = [
        f"{_LIMITS[name]} {value if isinstance(value, int) else format(value, '.4g')}" for name, value in limits.items()
    ]
    whole = no_whole or (field is not None and int in (field.annotation, *get_args(field.annotation)))
    return f"use a {'whole number' if whole else 'number'} {' and '.join(told)}".strip()


_LIMITS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
