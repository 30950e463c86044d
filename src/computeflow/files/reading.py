"""Files that are read whole. Whatever a user may name by mistake (a folder, a pipe, a spreadsheet, a
bomb) ends in one `InputError` that says what it is.
"""

from __future__ import annotations

import stat
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import TEXT_BYTES


def read_text(path: Path) -> str:
    """The text of a file of moderate size; what cannot be read is an error in words."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise InputError(f"{path}: {what}, not a file")
        with path.open("rb") as file:
            content = file.read(TEXT_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(content) > TEXT_BYTES:
        raise InputError(f"{path}: larger than {TEXT_BYTES >> 20} MiB, which no input needs")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        is_what = "UTF-16, not UTF-8 text: save it as UTF-8" if wide else "not UTF-8 text"
        raise InputError(f"{path}: {is_what}") from None
