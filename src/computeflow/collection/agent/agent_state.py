"""What an agent keeps over a restart: its name, and a lock, so that a node has one: `AgentState`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from pathlib import Path

from computeflow.errors import InputError

_NAME = re.compile(r"[0-9a-f]{16}")
_MACHINE = Path("/etc/machine-id")


def default_state() -> Path:
    return user_state() / "computeflow" / "agent"


def default_runs() -> Path:
    """The folder in which `record` keeps runs."""
    return user_state() / "computeflow" / "runs"


def user_state() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")


class AgentState:
    """The name of the agent; `note` says where it could not be kept."""

    def __init__(self, folder: Path, node: str) -> None:
        self.note = ""
        self._lock: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.agent = _kept_name(folder / "name")
        except BlockingIOError:
            self.close()
            raise InputError(
                f"--state {folder}: another agent uses it; one for each node, or name another folder"
            ) from None
        except OSError as error:
            self.close()
            self.note = f"--state {folder}: {error.strerror or error}; the agent's name is derived"
            self.agent = _derived_name(node)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _kept_name(path: Path) -> str:
    try:
        kept = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        kept = ""
    if _NAME.fullmatch(kept):
        return kept
    name = secrets.token_hex(8)
    part = path.with_name(f".name.{os.getpid()}")
    part.write_text(f"{name}\n", encoding="ascii")
    part.replace(path)
    return name


def _derived_name(node: str) -> str:
    try:
        machine = _MACHINE.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        machine = ""
    return hashlib.sha256(f"{machine}\0{node}".encode()).hexdigest()[:16]
