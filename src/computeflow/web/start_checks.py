"""`check_directory`, `check_options`: what is wrong with the words of `serve`, before it listens.

Only what costs little is looked at: names, the prediction, the beginning of files up to the first one
that is a recording. What is wrong further inside, pages say.
"""

from __future__ import annotations

from pathlib import Path

from computeflow.answers.audits import audit
from computeflow.auditing.audit_report import read_expected
from computeflow.collection.outputs.snapshots import STATE_FILE, check_store
from computeflow.errors import InputError
from computeflow.telemetry.recording_files import files_of
from computeflow.telemetry.run_folders.run_folder_source import has_begun
from computeflow.telemetry.source_registry import holds_recording, sort_files
from computeflow.web.sources.opening import AuditOptions

_SMALL_BYTES = 1 << 20
"""A file whose beginning says nothing is read whole up to this size."""


def check_options(options: AuditOptions) -> None:
    """Refuse names that the catalog does not have, half a model, and a file that is no prediction."""
    options.request()
    if options.expect is not None:
        try:
            read_expected(options.expect)
        except InputError as error:
            raise InputError(
                f"--expect {error}; a prediction is the output of predict or plan -o json"
            ) from None


def check_directory(path: Path) -> None:
    """Refuse what is neither a store, nor empty, nor anything of which `audit` could read a part."""
    try:
        if (path / STATE_FILE).is_file():
            check_store(path)
        elif path.is_dir():
            _check_folder(path)
        else:
            _check_file(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except InputError as error:
        raise InputError(str(error).removeprefix("--store ")) from None


def _check_folder(path: Path) -> None:
    begins = not any(files_of(path, [])) or has_begun(path)
    if not begins and not holds_recording(path):
        sort_files([path])  # says what is there instead


def _check_file(path: Path) -> None:
    if not holds_recording(path):
        sort_files([path])
        if path.stat().st_size <= _SMALL_BYTES:
            audit(path)
