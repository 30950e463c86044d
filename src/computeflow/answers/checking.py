"""`checked`: makes a library function refuse unknown keywords and values of the wrong type.

Types are checked by a type checker where there is one; a notebook has none, and a misspelt keyword must
not be dropped in silence. NaN, infinite numbers, integers beyond 64 bits and empty texts are refused,
too: `--storage "$UNSET"` is a mistake.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar, Union, get_args, get_origin

from computeflow.answers.renames import rename_keywords
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import shown
from computeflow.files.writing import (
    check_apart,
    check_folder,
    check_target,
    inputs_kept,
    named_files,
)

F = TypeVar("F", bound=Callable[..., Any])
_LARGEST = 2**63 - 1
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def checked(function: F) -> F:
    @functools.wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        known = keyword_types(function)
        keywords = rename_keywords(function.__name__, keywords)
        named = dict(zip(inspect.signature(function).parameters, positional, strict=False))
        for name in keywords:
            if name not in known:
                raise UnknownNameError("keyword", name, known)
        values = {**named, **keywords}
        read = {name: _read(name, value, known[name]) for name, value in values.items()}
        written = outputs(function)
        inputs = (*named_files(value for name, value in read.items() if name not in written),)
        with inputs_kept(inputs):
            given = [name for name in written if read.get(name) is not None]
            for name in given:
                _CHECKS[written[name]](read[name], _option(name))
            check_apart((read[name], _option(name)) for name in given)
            answer = function(**read)
        answer.remember_inputs(inputs)
        return answer

    return typing.cast(F, call)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_CHECKS = {"file": check_target, "folder": check_folder}


@functools.cache
def outputs(function: Callable[..., Any]) -> dict[str, str]:
    """Keywords of files or folders that the function writes, and which of the two."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: kind.__metadata__[0]
        for name, hint in hints.items()
        for kind in _kinds(hint)
        if get_origin(kind) is typing.Annotated
    }


@functools.cache
def keyword_types(function: Callable[..., Any]) -> dict[str, Any]:
    """All keywords of a function with their types, those of `**options` included."""
    hints = typing.get_type_hints(function)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = get_args(hints[name])
            found |= typing.get_type_hints(options)
        else:
            found[name] = hints[name]
    return found


def _read(name: str, value: Any, hint: Any) -> Any:
    """The value, if its type is right; a single text where a list is expected becomes a list of one."""
    kinds = _kinds(hint)
    _refuse_nonsense(name, value)
    if any(_fits(value, kind) for kind in kinds):
        return value
    if isinstance(value, str | PathLike) and any(_lists(kind, value) for kind in kinds):
        return (value,)
    choices = [str(choice) for kind in kinds for choice in _choices(kind)]
    if choices:
        raise UnknownNameError(name, str(value), choices)
    words = [_WORDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds]
    wanted = " or ".join(word for word in dict.fromkeys(words) if word != "NoneType")
    raise InputError(f"{name}={shown(repr(value))} is not {wanted}")


def _refuse_nonsense(name: str, value: Any) -> None:
    """Refuse empty texts and numbers that are not finite, at any depth of lists and mappings."""
    if isinstance(value, str) and not value:
        raise InputError(f"{name} must not be an empty text: leave it out")
    if isinstance(value, numbers.Integral) and abs(int(value)) > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST:,}")
    if isinstance(value, numbers.Real) and not math.isfinite(value):
        raise InputError(f"{name}={value} is not a finite number")
    if isinstance(value, Mapping):
        for key, part in value.items():
            _refuse_nonsense(f"{name} {shown(str(key))}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_nonsense(name, part)


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _lists(kind: Any, value: Any) -> bool:
    """Whether the type is a list of such values."""
    if get_origin(kind) is not Sequence:
        return False
    return any(_fits(value, item) for item in _kinds(get_args(kind)[0]))


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is typing.Literal else ()


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if choices := _choices(kind):
        return value in choices
    number = {int: numbers.Integral, float: numbers.Real}.get(kind)
    if number is not None:
        return isinstance(value, number) and not isinstance(value, bool)
    origin = get_origin(kind) or kind
    if origin is Sequence and isinstance(value, str):
        return False
    if origin is Callable:
        return callable(value)
    return isinstance(value, origin) if isinstance(origin, type) else True
