"""`improve` on the public configurations: every difference applied, parsed by its framework, predicted.

A launch script is run by bash up to the training program, whose words are then parsed. The unchanged
file is parsed first: what a parser says of that is not the difference's fault, and is reported.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import computeflow as cf
from benchmarks.parsers.answers import Answer, Asked
from benchmarks.parsers.checks import CHECKS, Check
from benchmarks.parsers.launches import launch_words
from benchmarks.parsers.report import Results
from benchmarks.prove_exports import answered, described_job
from benchmarks.public_configs import PUBLIC_CONFIGS, PublicConfig
from computeflow.catalog import load_catalog
from computeflow.cluster import find_cluster
from computeflow.files.edits import drop_json, drop_toml, drop_yaml
from computeflow.files.parsing import parse_json, parse_toml, parse_yaml
from computeflow.planning.exports.config_edits import flat_keys
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.config_reader import read_file, setup_of

NAMES = {
    "torchtitan": "torchtitan.toml", "deepspeed": "ds_config.json", "megatron": "megatron.args",
    "accelerate": "accelerate.yaml", "trainer": "trainer.yaml", "nemo": "nemo.args",
    "megatron-bridge": "megatron_bridge.yaml", "maxtext": "maxtext.yml", "fsdp2": "fsdp2.py",
}  # fmt: skip
"""The files that the parsers' modules open."""
SCRIPTS = ("megatron", "nemo")
NO_KEYS = (*SCRIPTS, "fsdp2")
WITHIN = 0.01
PUBLIC_CHECKS = {
    # Values that are left to the Trainer are filled by transformers.
    "deepspeed": replace(CHECKS["deepspeed"], environment="huggingface"),
    "torchtitan-0.1": replace(
        CHECKS["torchtitan"],
        asked="torchtitan 0.1.0",
        module="torchtitan_older",
        environment="torchtitan-0.1",
        how="ConfigManager",
    ),
}
"""Parsers that differ from those of exported files."""


@dataclass(slots=True, kw_only=True)
class ChangedFile:
    """A public configuration after one more difference; the first is as it was."""

    config: PublicConfig
    change: str
    promised_seconds: float | None
    predicted_seconds: float | None
    asked: Asked | None
    answer: Answer

    @property
    def is_kept(self) -> bool:
        """Whether the changed file takes the promised step."""
        if self.promised_seconds is None or self.predicted_seconds is None:
            return False
        return abs(self.predicted_seconds / self.promised_seconds - 1) <= WITHIN


def prove_files(configs: Iterable[PublicConfig] = PUBLIC_CONFIGS) -> list[ChangedFile]:
    """Every state of every file, with its parser's answer."""
    found: list[ChangedFile] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for config in configs:
            found += _changed(config, folder / config.file)
        for name in {_check_name(one.config) for one in found}:
            _ask(name, [one for one in found if _check_name(one.config) == name], folder)
    return found


def _check_name(config: PublicConfig) -> str:
    return config.check or config.format


def _changed(config: PublicConfig, folder: Path) -> list[ChangedFile]:
    folder.mkdir()
    file = folder / config.file
    file.write_text(config.text)
    steps = cf.improve(file, on=config.on, **config.given).to_dict()["steps"]
    states = [_state(config, file, folder / "0", "as it is", None)]
    for number, step in enumerate(steps, start=1):
        subprocess.run(["patch", "-s", str(file)], input=step["diff"], text=True, check=True)
        where, promised = folder / str(number), step["step_seconds"]
        states.append(_state(config, file, where, step["change"], promised))
    return states


def _state(
    config: PublicConfig, file: Path, folder: Path, change: str, promised: float | None
) -> ChangedFile:
    sizes = {name: value for name, value in config.given.items() if name != "model"}
    model = config.given.get("model")
    told = cf.predict(model, on=config.on, from_=file, **sizes).to_dict()
    state = ChangedFile(
        config=config,
        change=change,
        promised_seconds=promised,
        predicted_seconds=told["step_seconds"],
        asked=None,
        answer=Answer(taken=False, said="not asked"),
    )
    try:
        state.asked = _asked(config, file, folder)
    except ValueError as error:
        state.answer = Answer(taken=False, said=str(error))
    return state


def _asked(config: PublicConfig, file: Path, folder: Path) -> Asked:
    folder.mkdir()
    text = file.read_text()
    if config.no_parser:
        raise ValueError(config.no_parser)
    if config.format in SCRIPTS:
        words = _without_flags(launch_words(file), config.without)
        text = shlex.join([*words, *config.beside])
    else:
        drop = {".toml": drop_toml, ".json": drop_json}.get(file.suffix, drop_yaml)
        text = reduce(drop, config.without, text)
    (folder / NAMES[config.format]).write_text(text)
    plan = _plan(config, file.read_text())
    job = plan.job
    return Asked(
        folder=str(folder),
        dp=plan.dp,
        nodes=plan.nodes,
        layout=asdict(plan.layout),
        job=described_job(job)
        | {
            "layers": job.model.layers,
            "hidden": job.model.hidden,
            "heads": getattr(job.model.blocks[0].attention, "heads", 1),
        },
        left_out=_not_said(config, file.read_text()),
        own_keys=_unchanged_keys(config, file.read_text()),
    )


def _without_flags(words: list[str], flags: tuple[str, ...]) -> list[str]:
    """Words without some flags and all their values."""
    kept, dropping = [], False
    for word in words:
        dropping = word in flags or (dropping and not word.startswith("--"))
        kept += [] if dropping else [word]
    return kept


def _plan(config: PublicConfig, text: str) -> Setup:
    facts = load_catalog()
    cluster = find_cluster(config.on, facts)
    return setup_of(read_file(text, config.file, config.format), cluster, config.given, facts)


def _not_said(config: PublicConfig, text: str) -> tuple[str, ...]:
    """Fields that the file leaves to the script, in the form of an export's."""
    reading = read_file(text, config.file, config.format)
    said = {*reading.job, *reading.layout}
    if not any(block.experts for block in _plan(config, text).job.model.blocks):
        said.discard("etp")
    names = ("model", "global_batch", "gpus", "micro_batch", "recompute", "sharding", "offload")
    return tuple(f"{name} = ?" for name in (*names, *_SIZES) if name not in said)


_SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")


def _unchanged_keys(config: PublicConfig, text: str) -> tuple[str, ...]:
    """Keys that no difference has touched: whole, and their first and last parts."""
    if config.format in NO_KEYS:
        return ()
    before, after = (_keys(config, each) for each in (config.text, text))
    same = [key for key, value in before.items() if after.get(key) == value]
    return tuple({part for key in same for part in (key, key.split(".")[0], key.split(".")[-1])})


def _keys(config: PublicConfig, text: str) -> dict[str, Any]:
    parse = {"toml": parse_toml, "json": parse_json}.get(config.file.rpartition(".")[2], parse_yaml)
    return flat_keys(parse(text, config.file))


def _ask(name: str, states: list[ChangedFile], folder: Path) -> None:
    """Put the parser's answers into the states that it can be asked about."""
    asked = {id(state): state.asked for state in states if state.asked is not None}
    results = Results()
    answers = answered(name, list(asked.values()), folder, results, _check(name))
    if results.missing:
        answers = [Answer(taken=False, said=results.missing)] * len(asked)
    for state, said in zip((s for s in states if id(s) in asked), answers, strict=True):
        state.answer = said


def is_sound(states: Iterable[ChangedFile]) -> bool:
    """Whether every difference keeps its promise and is taken by every parser that can be asked."""
    changed = [state for state in states if state.promised_seconds is not None]
    return all(s.is_kept and (s.answer.taken or s.config.no_parser) for s in changed)


def file_lines(states: Sequence[ChangedFile]) -> list[str]:
    """Part of the report."""
    changed = [state for state in states if state.promised_seconds is not None]
    taken = sum(state.answer.taken for state in changed)
    kept = sum(state.is_kept for state in changed)
    files = {state.config.file for state in states}
    return [
        "## Differences of public configurations",
        "",
        f"{len(files)} files (tests/data/exports; FSDP2's is ours), {len(changed)} differences, "
        "applied with `patch` one after another. "
        f"The framework's own parser takes {taken} of {len(changed)} changed files; predicted again, "
        f"each by itself, {kept} of {len(changed)} take the promised step within 1 %.",
        "",
        "A launch script is run by bash up to the training program, whose words are parsed. No GPU "
        "was used: files were parsed, validated and built into the projects' own objects. What stood "
        "in for hardware is listed in [exports.md](exports.md).",
        "",
        "| file | on | change | parser | taken | step | promised |",
        "|---|---|---|---|---|--:|--:|",
        *map(_state_row, states),
        "",
        "Parsers and what was set aside for them:",
        "",
        *_parser_lines({_check_name(state.config) for state in states}),
        *_aside_lines([state.config for state in states if state.promised_seconds is None]),
    ]


def _state_row(state: ChangedFile) -> str:
    config, answer = state.config, state.answer
    check = _check(_check_name(config))
    parser = "none" if config.no_parser else check.asked
    taken = "yes" if answer.taken else "not asked" if config.no_parser else f"no: {answer.said}"
    promised = "" if state.promised_seconds is None else f"{state.promised_seconds:.4g} s"
    return (
        f"| {config.file} | {config.on} | {state.change} | {parser} | {taken} "
        f"| {state.predicted_seconds:.4g} s | {promised} |"
    )


def _check(name: str) -> Check:
    return PUBLIC_CHECKS.get(name) or CHECKS[name]


def _parser_lines(names: Iterable[str]) -> list[str]:
    return [f"- {_check(name).asked}: {_check(name).how}." for name in sorted(names)]


def _aside_lines(configs: Iterable[PublicConfig]) -> list[str]:
    lines = []
    for config in configs:
        if config.no_parser:
            lines.append(f"- {config.file}: no parser: {config.no_parser}.")
        if config.without:
            keys = ", ".join(f"`{key}`" for key in config.without)
            lines.append(f"- {config.file}: without {keys}, which {config.because}.")
        if config.beside:
            words = " ".join(config.beside)
            lines.append(f"- {config.file}: with `{words}`, which the facts of it here leave out.")
    return lines
