"""Slurm's programs, run with lists of words: `CommandLine`. No shell reads a word of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from computeflow.actions.engine import EngineError, RefusedStepError
from computeflow.errors import UnavailableError
from computeflow.files.names import shown

_SECONDS = 60.0
"""Longest that a program may take: Slurm gives its controller 10 s by default, some try thrice."""
_UNREACHABLE = (
    "unable to contact slurm controller",
    "connection refused",
    "socket timed out",
    "zero bytes were transmitted",
    "unable to contact slurm",
    "slurm_persist_conn_open",
    "communication connection failure",
)
"""What programs say where slurmctld does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    environment: Mapping[str, str] | None = None
    """None: that of this process."""
    locks: Sequence[int] = ()
    """Descriptors that every program inherits: locks on them are held until the last of them ends, so
    that whoever takes a lock next finds what they did."""
    seconds: float = field(default=_SECONDS)

    def run(self, words: Sequence[str], more: Mapping[str, str] | None = None) -> str:
        """What a program says; `more` are variables beside the environment."""
        environment = None if self.environment is None else dict(self.environment)
        if more:
            import os

            environment = {**(environment or dict(os.environ)), **more}
        try:
            done = subprocess.run(
                list(words),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
                pass_fds=tuple(self.locks),
            )
        except FileNotFoundError:
            raise UnavailableError(
                f"{words[0]}: not found: Slurm's programs must be in PATH"
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"{words[0]}: no answer within {self.seconds:.0f} s") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit {done.returncode}"
            error = EngineError if _is_unreachable(said) else RefusedStepError
            raise error(f"{' '.join(words[:3])}: {shown(said, 300)}")
        return done.stdout


def _is_unreachable(said: str) -> bool:
    return any(text in said.lower() for text in _UNREACHABLE)
