"""Check every format of every plan with its project's parser; written to benchmarks/reports/exports.md.

Plans are in `benchmarks.parsers.plans`, parsers beside it, each in an environment of its own that is
made once (several GB in a cache folder; COMPUTEFLOW_PROOFS names another). Each parser also gets
layouts drawn at random, and one file with a misspelt key, which it must refuse. Then a few plans are
trained.
With names of formats as arguments only those are checked, and no report is written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.parsers.answers import Answer, Asked
from benchmarks.parsers.checks import CHECKS, Check
from benchmarks.parsers.environments import MissingError, interpreter
from benchmarks.parsers.plans import CASES, TRAINED, setup, sweep
from benchmarks.parsers.report import Results, Trained, rejections, report
from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.config_writer import Exported, export
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.exports.launchers import LAUNCHERS
from computeflow.workload import Job

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "exports.md"
COMMAND = ["python", "train.py", "--note", "it's"]
DRAWN = 200
STEPS = 4
LOSS = re.compile(r"step \d+: loss ([\d.]+)")


def formats() -> list[str]:
    return [*FRAMEWORKS, *LAUNCHERS]


def described_job(job: Job) -> dict[str, Any]:
    return {
        "model": job.model.name,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "precision": job.precision,
        "optimizer": job.optimizer,
    }


def ask(exported: Exported, plan: Setup, folder: Path) -> Asked:
    """Write the files of one format, and describe them."""
    assert exported.written is not None
    folder.mkdir(parents=True)
    for name, text in exported.written.files.items():
        (folder / name).write_text(text)
    return Asked(
        folder=str(folder),
        dp=plan.dp,
        nodes=plan.nodes,
        layout=asdict(plan.layout),
        job=described_job(plan.job),
        left_out=exported.written.left_out,
    )


def spoil(written: WrittenConfig, check: Check) -> WrittenConfig:
    """Misspell one key, which a parser that reads keys must refuse."""
    wrong = check.key[:-1] + ("x" if check.key[-1].isalpha() else "")
    files = {name: text.replace(check.key, wrong) for name, text in written.files.items()}
    if files == written.files:
        raise RuntimeError(f"{check.key} is in none of {', '.join(files)}")
    return WrittenConfig(files=files, left_out=written.left_out)


def collect(name: str, plans: dict[str, Setup], drawn: list[Setup], folder: Path) -> Results:
    """Check all files of a format in one call."""
    results = Results()
    requests: list[Asked] = []
    named: list[str] = []
    for case, plan in plans.items():
        (exported,) = export(plan, COMMAND, (name,))
        if exported.written is None:
            results.named[case] = exported.refused
            continue
        if not requests and name in CHECKS:
            spoiled = Exported(
                name=name, version=exported.version, written=spoil(exported.written, CHECKS[name])
            )
            requests.append(ask(spoiled, plan, folder / name / "spoiled"))
        requests.append(ask(exported, plan, folder / name / str(len(named))))
        named.append(case)
    for number, plan in enumerate(drawn):
        (exported,) = export(plan, COMMAND, (name,))
        if exported.written is None:
            results.drawn_refused += 1
        else:
            requests.append(ask(exported, plan, folder / name / f"drawn{number}"))
    answers = answered(name, requests, folder, results)
    if answers:
        results.spoiled, *rest = answers
        results.named |= dict(zip(named, rest, strict=False))
        results.drawn = rest[len(named) :]
    return results


def answered(
    name: str, requests: list[Asked], folder: Path, results: Results, check: Check | None = None
) -> list[Answer]:
    check = check or CHECKS.get(name)
    if check is None:
        results.missing = "no parser is known here"
        return []
    source, target = folder / f"{name}.asked", folder / f"{name}.answers"
    source.write_text(json.dumps([asdict(one) for one in requests]))
    module = f"benchmarks.parsers.{check.module}"
    try:
        python = str(interpreter(check.environment))
    except MissingError as error:
        results.missing = str(error)
        return []
    done = subprocess.run(
        [python, "-m", module, str(source), str(target)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-1500:]}")
    return [Answer(**one) for one in json.loads(target.read_text())]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more


def train(folder: Path) -> list[Trained]:
    """Train plans of two ranks on CPUs."""
    trained: list[Trained] = []
    for case in TRAINED:
        for name in ("fsdp2", "deepspeed"):
            if name not in FRAMEWORKS:
                continue
            (exported,) = export(setup(case), COMMAND, (name,))
            if exported.written is None or another_run(exported.written):
                continue
            where = folder / "trained" / name / str(len(trained))
            ask(exported, setup(case), where)
            try:
                losses, note = started(name, where)
            except MissingError as error:
                losses, note = (), f"not run: {error}"
            print(f"  {name}, {case.name}: {losses} {note}", flush=True)
            trained.append(Trained(name=f"{name}, {case.name}", losses=losses, note=note))
    return trained


def another_run(written: WrittenConfig) -> bool:
    """Whether the file leaves out what training it would prove."""
    fields = ("sharding = ", "offload = ", "recompute = ")
    return any(line.startswith(fields) for line in written.left_out)


def started(name: str, folder: Path) -> tuple[tuple[float, ...], str]:
    """Losses of a training run, or why there are none."""
    python = interpreter("" if name == "fsdp2" else name)
    what = [str(folder / "fsdp2.py"), "--steps", str(STEPS)]
    if name == "deepspeed":
        file = str(folder / "ds_config.json")
        what = ["-m", "benchmarks.parsers.train_deepspeed", file, str(STEPS)]
    line = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *what]
    path = f"{python.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        line,
        cwd=ROOT,
        env=environment(DS_ACCELERATOR="cpu", PATH=path),
        capture_output=True,
        text=True,
        timeout=900,
    )
    losses = tuple(map(float, LOSS.findall(done.stdout)))
    if done.returncode:
        errors = [text for text in done.stderr.splitlines() if re.match(r"\s*\w*Error: ", text)]
        return losses, f"ended with {done.returncode}: {''.join(errors[:1]).strip()[:200]}"
    falls = len(losses) == STEPS and losses[-1] < losses[0]
    return losses, "" if falls else "the loss did not fall"


def main() -> int:
    plans = {case.name: setup(case) for case in CASES}
    drawn = sweep(DRAWN)
    wanted = sys.argv[1:] or formats()
    results: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in wanted:
            results[one] = collect(one, plans, drawn, folder)
            print(summary(one, results[one]), flush=True)
        trained = train(folder) if not sys.argv[1:] else []
    if not sys.argv[1:]:
        REPORT.write_text(report(plans, results, trained, DRAWN))
    return 0 if sound(results, trained) else 1


def summary(name: str, results: Results) -> str:
    answers = [*results.answers, *results.drawn]
    taken = sum(answer.taken for answer in answers)
    wrong = results.spoiled is not None and results.spoiled.taken
    words = "\n".join([*rejections({name: results}), *(["a misspelt key too"] if wrong else [])])
    return f"{name}: {results.missing or f'{taken} of {len(answers)} taken'}\n{words}"


def sound(results: dict[str, Results], trained: list[Trained]) -> bool:
    """Whether every parser accepted every file but the misspelt one, and every loss fell."""
    for result in results.values():
        if result.spoiled is not None and result.spoiled.taken:
            return False
        if not all(one.taken for one in (*result.answers, *result.drawn)):
            return False
    return not any(one.note for one in trained)


if __name__ == "__main__":
    sys.exit(main())
