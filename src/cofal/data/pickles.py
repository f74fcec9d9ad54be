"""Reading a pickle of plain containers and numeric arrays without running any code from it, not even numpy's."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from cofal.errors import UserError

_ARRAY_MAKERS = {f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")}
_BUFFER_READERS = {f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")}


class _Forbidden(Exception):
    pass


class _RestrictedUnpickler(pickle._Unpickler):
    """Knows the few names an array's pickle needs, each replaced by a recorder of its arguments.

    The recorders are made anew for each pickle: a pickle can set attributes on what it is given, and such changes must
    not outlive it. The base is the unpickler written in Python; the one in C can be told to allocate any amount.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.recorders = _recorders()

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.recorders[f"{module}.{name}"]
        except KeyError:
            raise _Forbidden(f"asks for {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden("asks for an outside object")


class Recorded:
    """An array as its pickle describes it."""

    shape: Any = None
    dtype: Any = None
    content: Any = None
    fortran: Any = False


def _recorders() -> dict[str, Any]:
    class Array(Recorded):
        def __setstate__(self, state: Any) -> None:
            _, self.shape, self.dtype, self.fortran, self.content = state

    class Dtype:
        def __init__(self, code: Any, *_: Any) -> None:
            self.code = code

        def __setstate__(self, state: Any) -> None:
            pass  # byte order and flags; bytes have none

    class Marker:
        """Stands where the pickle names the type ndarray as an argument."""

    def make(*_: Any) -> Array:
        return Array()

    def from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
        array = Array()
        array.__setstate__((1, shape, dtype, order in ("F", b"F"), content))
        return array

    def encode(text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _Forbidden("asks for an encoding other than latin1")
        return text.encode("latin1")

    names = dict.fromkeys(_ARRAY_MAKERS, make) | dict.fromkeys(_BUFFER_READERS, from_buffer)
    return names | {"numpy.ndarray": Marker, "numpy.dtype": Dtype, "_codecs.encode": encode}


def load_plain(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary pickled in `content`, keys as text; an array in it is a `Recorded`, for `bytes_array` to check."""
    try:
        loaded = _RestrictedUnpickler(content).load()
    except _Forbidden as error:
        raise UserError(
            f"{where} is refused: the pickle {error}, which could run code; fetch the original file"
        ) from None
    except Exception as error:  # damaged pickles raise nearly anything
        raise UserError(
            f"{where} is not a readable pickle ({type(error).__name__}); fetch the original file"
        ) from error
    if not isinstance(loaded, dict):
        raise UserError(f"{where} holds no dictionary; fetch the original file")
    keys = ((key.decode("latin1") if isinstance(key, bytes) else key, value) for key, value in loaded.items())
    return {key: value for key, value in keys if isinstance(key, str)}


def bytes_array(value: Any, where: str) -> np.ndarray:
    """A recorded two-dimensional array of unsigned bytes, built only if its shape and its content agree."""
    code = getattr(getattr(value, "dtype", None), "code", None) if isinstance(value, Recorded) else None
    if code not in ("u1", b"u1", "|u1", b"|u1"):
        raise UserError(f"{where}: data is not an array of unsigned bytes; fetch the original file")
    shape, content = value.shape, value.content
    whole = isinstance(shape, tuple) and len(shape) == 2 and all(type(side) is int and side > 0 for side in shape)
    if not whole or not isinstance(content, bytes | bytearray) or shape[0] * shape[1] != len(content):
        raise UserError(f"{where}: the shape and the contents of data do not agree; fetch the original file")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if value.fortran else "C")
