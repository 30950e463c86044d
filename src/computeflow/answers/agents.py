"""`agent`: the agent of this node, one look at it, or the file that starts one on every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import PROBLEMS, Answer
from computeflow.answers.checking import checked
from computeflow.collection.agent.kernel_signals import KMSG
from computeflow.collection.agent.manifests import ManifestKind, manifest
from computeflow.collection.agent.node_agent import AgentOptions, AgentReport, run_agent
from computeflow.errors import InputError
from computeflow.units import HOUR_SECONDS
from computeflow.views.agents import agent_headline, agent_tables
from computeflow.views.tables import Table, columns

_LISTEN = "127.0.0.1:9471"
_MIN_SECONDS, _MAX_SECONDS = 1.0, HOUR_SECONDS
Files = Sequence[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AgentAnswer(Answer):
    report: AgentReport

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.agent/1", **codec.encode(self.report)}

    @property
    def headline(self) -> str:
        return agent_headline(self.report)

    def tables(self) -> list[Table]:
        return agent_tables(self.report)

    @property
    def exit_code(self) -> int:
        """3 where the collector did not take what was there."""
        return PROBLEMS if self.report.connected is False else 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ManifestAnswer(Answer):
    kind: str
    text: str

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.manifest/1", "kind": self.kind, "text": self.text}

    def tables(self) -> list[Table]:
        rows = tuple((line,) for line in self.text.splitlines())
        return [Table(title=f"agent for {self.kind}", columns=columns("line"), rows=rows)]


def _silence(_: str) -> None:
    """Say nothing."""


@checked
def agent(
    *,
    collector: str | None = None,
    runs: Files = (),
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    listen: str | None = None,
    otlp: str | None = None,
    every: float = 5.0,
    node: str | None = None,
    state: str | Path | None = None,
    nvml: str | Path | None = None,
    kernel_log: str | Path | None = None,
    all_hosts: bool = False,
    once: bool = False,
    print_manifest: ManifestKind | None = None,
    say: Callable[[str], None] = _silence,
) -> AgentAnswer | ManifestAnswer:
    """Run the agent of this node until it is asked to stop, or `once`.

    `say` gets a line where something is wrong. Without a collector it serves metrics on `listen`.
    """
    if print_manifest is not None:
        folder = str(runs[0]) if runs else None
        text = manifest(print_manifest, collector=collector, runs=folder)
        return ManifestAnswer(kind=print_manifest, text=text)
    if not _MIN_SECONDS <= every <= _MAX_SECONDS:
        raise InputError(f"--every {every:g}: {_MIN_SECONDS:g} to {_MAX_SECONDS:g} seconds")
    if collector is None and (ca is not None):
        raise InputError("--ca belongs to --collector")
    if collector is None and otlp is None and listen is None and not once:
        listen = _LISTEN
    options = AgentOptions(
        collector=collector,
        runs=tuple(Path(folder) for folder in runs),
        token_file=_path(token_file),
        ca=_path(ca),
        listen=None if once else listen,
        otlp=otlp,
        every_seconds=every,
        node=node or "",
        state=_path(state),
        nvml=_path(nvml),
        kernel_log=_path(kernel_log) or KMSG,
        all_hosts=all_hosts,
    )
    return AgentAnswer(report=run_agent(options, say=say, once=once))


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else Path(name)
