"""Typed input: quantities and options; and redaction of an answer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from benchmarks.readers.calling import written
from benchmarks.readers.reader import Reader, records, repeated
from computeflow import answers
from computeflow.answers.redaction import Redaction
from computeflow.cli import types
from computeflow.codec import from_json
from computeflow.errors import ComputeFlowError, InputError
from computeflow.units import _UNITS, parse


def _units(content: bytes, _: Path) -> object:
    """Read a text as every quantity, also as the command line does."""
    text = content.decode("utf-8", "replace")
    kinds = (
        types.TOKENS,
        types.DURATION,
        types.USD,
        types.BYTES,
        types.RATE,
        types.WATTS,
        types.COUNT,
        types.COUNTS,
        types.AMOUNTS,
        types.NAMES,
        types.DAY,
        types.PAIR,
        types.SPAN,
    )
    for kind in kinds:
        with suppress(click.UsageError):
            kind.convert(text, None, None)
    for quantity in _UNITS:
        with suppress(ComputeFlowError):
            parse(text, quantity)
    return None


def _options(content: bytes, folder: Path) -> object:
    """Pass a text to each option of `audit`; any failure must be a `ComputeFlowError`."""
    text = content.decode("utf-8", "replace")
    path = written(b"iteration        1/       9 | lm loss: 1.0\n", folder, "x.log")
    for name in ("period", "steps", "on", "baseline", "expect", "rank_from"):
        options: dict[str, Any] = {name: text}
        with suppress(ComputeFlowError):
            answers.audit([path], no_cache=True, **options)
    return None


def _redaction(content: bytes, _: Path) -> object:
    data = from_json(content, "it")
    if content.count(b"[") + content.count(b"{") > 400:
        raise InputError("deeper than an answer of ours")
    names = Redaction(data)
    names.text(content.decode("utf-8", "replace"))
    return names.value(data)


_NAMED = (
    b'{"node":"gpu-17","users":["ann","bob"],"note":"/home/ann/run on gpu-17 by ann@example.com from 10.0.0.7",'
    b'"job_name":"secret","pods":{"pod-1":{"x":1}},"source":"s3://bucket/key","mac":"00:1b:44:11:3a:b7"}'
)


_QUANTITIES = (
    b"80GiB", b"3.35 TB/s", b"$2.49/h", b"15T tokens", b"30d", b"1,024", b"1e400", b"2026-11-15",
    b"a=b", b"256:2048", b"400 Gb/s", b"1_000",
)  # fmt: skip
_TYPED = (
    b"30d",
    b"2026-01-01:2026-01-02T10:00+01:00",
    b"1:5",
    b"h100-sxm:8",
    b"hostname",
    b"x.json",
)


def readers() -> list[Reader]:
    quantities = {
        "natural": b"1,",
        "digits": b"7",
        "blanks": b" ",
        "underscores": b"1_",
        "letters": b"x",
        "words": b"GiB ",
        "dots": b"1.",
        "dollars": b"$ ",
    }
    typed = {"natural": b"1:", "digits": b"7", "stamps": b"2026-01-01:", "letters": b"x"}
    hidden = {
        "paths": b"/a",
        "words": b"a.",
        "ats": b"a@",
        "dots": b"1.",
        "colons": b"a:",
        "tokens": b"hf_",
        "backslashes": b"C:\\\\a",
        "schemes": b"s3://a",
    }
    return [
        Reader(
            name="units",
            read=_units,
            shapes={name: repeated(piece) for name, piece in quantities.items()},
            recorded=lambda: list(_QUANTITIES),
        ),
        Reader(
            name="options",
            read=_options,
            shapes={name: repeated(piece) for name, piece in typed.items()},
            recorded=lambda: list(_TYPED),
        ),
        Reader(
            name="redaction",
            read=_redaction,
            shapes={
                "natural": records(
                    lambda n: b'"gpu-%d at /a/b%d for u%d@example.com"' % (n, n, n),
                    b'{"node":"gpu-1","notes":[',
                    b"]}",
                    b",",
                ),
                "names": records(lambda n: b'"gpu%d"' % n, b'{"node":[', b"]}", b","),
                **{name: repeated(piece, b'["', b'"]') for name, piece in hidden.items()},
            },
            recorded=lambda: [_NAMED],
        ),
    ]
