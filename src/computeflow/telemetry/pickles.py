"""Safe reading of untrusted pickles: `unpickle` gives plain data and executes nothing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

from computeflow.errors import InputError
from computeflow.files.limits import PICKLED_BYTES, PICKLED_CHARACTERS

_ALLOCATED = {
    pickle.MARK: 72,
    pickle.EMPTY_LIST: 72,
    pickle.LIST: 72,
    pickle.EMPTY_DICT: 80,
    pickle.DICT: 80,
    pickle.EMPTY_SET: 232,
    pickle.FROZENSET: 232,
    pickle.TUPLE: 64,
    pickle.TUPLE1: 64,
    pickle.TUPLE2: 72,
    pickle.TUPLE3: 80,
    pickle.PUT: 104,
    pickle.BINPUT: 104,
    pickle.LONG_BINPUT: 104,
    pickle.MEMOIZE: 104,
}
"""Bytes that operations of one or two bytes take: `sys.getsizeof` and the collector's 16, and an entry
of a dictionary with its number (Python 3.11)."""


def _counted(act: Callable[[Any], None], size: int) -> Callable[[Any], None]:
    def call(self: Any) -> None:
        self.allocated += size
        if self.allocated > PICKLED_BYTES:
            raise pickle.UnpicklingError(f"its lists take more than {PICKLED_BYTES >> 20:,} MiB")
        act(self)

    return call


class _Plain(pickle._Unpickler):
    """An unpickler of plain data only. It is the one in Python because its memo is a dictionary:
    that of the one in C is an array, which five bytes of a file can make gigabytes long.
    """

    allocated = 0
    dispatch = {  # noqa: RUF012
        code: _counted(act, _ALLOCATED[bytes([code])]) if bytes([code]) in _ALLOCATED else act
        for code, act in pickle._Unpickler.dispatch.items()
        if code
        not in b"".join(
            [
                pickle.GLOBAL,
                pickle.STACK_GLOBAL,
                pickle.INST,
                pickle.OBJ,
                pickle.NEWOBJ,
                pickle.NEWOBJ_EX,
                pickle.REDUCE,
                pickle.BUILD,
                pickle.EXT1,
                pickle.EXT2,
                pickle.EXT4,
                pickle.PERSID,
                pickle.BINPERSID,
                pickle.BYTEARRAY8,
                pickle.NEXT_BUFFER,
                pickle.READONLY_BUFFER,
            ]
        )
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}"[:PICKLED_CHARACTERS])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object kept elsewhere")


def unpickle(content: bytes, where: str) -> Any:
    """Read numbers, texts, lists and dictionaries; anything else is an `InputError`. The caller
    bounds the size of the content.
    """
    try:
        return _Plain(io.BytesIO(content)).load()
    except KeyError as error:  # an opcode that is not in the table, or not in the memo
        raise InputError(f"{where}: not read: no plain data ({error})") from None
    except (pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        text = str(error)[:PICKLED_CHARACTERS] or type(error).__name__
        raise InputError(f"{where}: not read: {text}") from None
    except Exception as error:  # a broken pickle fails in any way that data can
        raise InputError(f"{where}: a broken pickle ({type(error).__name__})") from None
