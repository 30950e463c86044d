"""Names from files of others: which are accepted, and how one is shown.

A name ends up in comments of scripts, in tables, in file names and on terminals. So it is checked once,
where it enters: text that can be printed, of one line, of moderate length.
"""

from __future__ import annotations

import re

from computeflow.errors import InputError
from computeflow.files.limits import (
    HOST_CHARACTERS,
    MESSAGE_CHARACTERS,
    NAME_CHARACTERS,
    SHOWN_CHARACTERS,
)

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def check_name(name: str, what: str) -> str:
    """The name, checked; `what` opens the message ("model", "topology.yaml: host")."""
    if not name.strip():
        raise InputError(f"{what}: an empty name")
    if len(name) > NAME_CHARACTERS:
        raise InputError(
            f"{what} {shown(name)}: a name of {len(name):,} characters; at most {NAME_CHARACTERS}"
        )
    odd = next((letter for letter in name if not letter.isprintable()), None)
    if odd is not None:
        raise InputError(f"{what} {shown(name)}: a name with {odd!r}, which cannot be printed")
    return name


def is_host(name: str) -> bool:
    return len(name) <= HOST_CHARACTERS and _HOST.fullmatch(name) is not None


def check_host(name: str, what: str) -> str:
    """The checked name of a machine: it is unquoted in host files, and in lists with commas."""
    if not is_host(name):
        raise InputError(
            f"{what} '{shown(name)}': not a host name: letters, digits, '.', '-' and '_', "
            f"at most {HOST_CHARACTERS}"
        )
    return name


def printable(text: str) -> str:
    """The same text without what a terminal would obey; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else _escaped(letter) for letter in text
    )


def shown(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Text as one line for a message: printable, and cut where it is long."""
    line = "".join(
        letter if letter.isprintable() else _escaped(letter) for letter in text[: most + 1]
    )
    return line if len(text) <= most else f"{line[:most]}..."


def shown_whole(text: str) -> str:
    """Text as one printable line, however long it is."""
    return shown(text, len(text))


def one_line(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """A whole message as one printable line; of a long one both ends: what it is about, what to do."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return printable(" ".join(text.split()))


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
