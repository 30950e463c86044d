"""Jobs and nodes from slurmrestd: `RestReader`, in place of `squeue --json` and `sinfo --json`.

    RestReader(address="unix:/run/slurmrestd.socket")
    RestReader(address="http://head:6820", token=...)      the token of `scontrol token`

slurmrestd answers with the JSON of Slurm's own programs. It is asked for state only: that of 22.05 can
neither drain a node nor pin a job, and later ones want an operator's token for it; steps stay commands.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from computeflow.actions.engine import EngineError
from computeflow.errors import InputError
from computeflow.files.names import shown

_SECONDS = 30.0
_MAX_BYTES = 512 << 20
"""Largest answer that is read: some 4 kB a job."""
_VERSION = re.compile(r"/slurm/(v0\.0\.(\d+))/jobs/?")


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestReader:
    address: str
    """unix:PATH, http://HOST:PORT or https://HOST:PORT."""
    user: str = ""
    token: str = field(default="", repr=False)
    """With a token of `scontrol token`; a socket knows who asks."""
    _versions: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme == "unix" and parts.path.startswith("/"):
            return
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"--slurmrestd {shown(self.address)}: unix:/PATH, http://HOST:PORT or https://..."
            )

    def jobs(self) -> str:
        return self._get(f"/slurm/{self._version()}/jobs")

    def nodes(self) -> str:
        return self._get(f"/slurm/{self._version()}/nodes")

    def _version(self) -> str:
        """The newest version of its interface, asked for once."""
        if not self._versions:
            try:
                paths = json.loads(self._get("/openapi/v3"))["paths"]
            except (ValueError, KeyError, TypeError):
                raise EngineError(f"slurmrestd {self.address}: no list of its paths") from None
            known = [found for path in paths if (found := _VERSION.fullmatch(path))]
            if not known:
                raise EngineError(f"slurmrestd {self.address}: it does not serve jobs")
            self._versions.append(max(known, key=lambda found: int(found[2]))[1])
        return self._versions[0]

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        if parts.scheme == "unix":
            return _SocketConnection(parts.path)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return kind(parts.hostname or "", parts.port, timeout=_SECONDS)

    def _get(self, path: str) -> str:
        headers = {"Accept": "application/json"}
        if self.token:
            headers |= {"X-SLURM-USER-NAME": self.user, "X-SLURM-USER-TOKEN": self.token}
        connection = self._connection()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            text = answer.read(_MAX_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"slurmrestd {self.address}: {error}") from None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            said = f"{answer.status} {answer.reason} {shown(text, 200)}"
            raise EngineError(f"slurmrestd {self.address}: {path}: {said}")
        return text
