"""Step times of Calculon, SimuMax and ours on the same published runs; benchmarks/reports/planners.md.

    python -m benchmarks.compare_planners --calculon CHECKOUT --simumax CHECKOUT [--write]

Every published run that a planner can express is put into its own input (`planner_inputs`) and asked
in a process of its own (`ask_planner`, run by `--python`, which has what the planners need). Ours is
predicted with the run's own source left out, on exactly the rows that the planner answers. `--answers`
keeps the answers, so that a second report needs no second hour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.collect_cases import packaged_cases, seen
from benchmarks.planner_inputs import SHARDED, Question, calculon_question, simumax_question
from benchmarks.prove_prediction import shared_cases
from benchmarks.prove_unseen import FEW, chosen
from computeflow.errors import InputError
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import PEAKS
from computeflow.prediction.validation.leave_out import leave_out
from computeflow.workload import flops_per_token

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Answers = dict[str, dict[str, Any]]
HERE = Path(__file__).parent
REPORT = HERE / "reports" / "planners.md"
SHIPPED = "as shipped"
UNLIMITED = {"memory": "unlimited"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    name: str
    ask: Callable[[MeasuredRun], Question]
    settings: dict[str, Callable[[Question], dict[str, Any]]]
    """What is changed of the shipped system, by the name of the setting."""


PLANNERS = (
    Planner(
        name="Calculon",
        ask=calculon_question,
        settings={
            SHIPPED: lambda _: {},
            "no memory limit": lambda _: UNLIMITED,
            "no memory limit, the run's network": lambda q: UNLIMITED | q.known_links,
        },
    ),
    Planner(
        name="SimuMax",
        ask=simumax_question,
        settings={SHIPPED: lambda _: {}, "the run's links": lambda q: q.known_links},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one planner says of all runs in one setting."""

    cases: tuple[MeasuredRun, ...]
    questions: tuple[Question, ...]
    seconds: Floats
    cpu_seconds: Floats
    refused: Counter[str]

    @property
    def sharded(self) -> Mask:
        return np.array([SHARDED in question.assumed for question in self.questions], bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    left_out: dict[str, float]
    """Predicted seconds by row, its own source left out."""
    formulas: dict[str, float]


def ask(
    planner: Planner, setting: str, cases: Sequence[MeasuredRun], answer: Callable[[str], Answers]
) -> Asked:
    """One planner's answers; `answer` takes questions, a JSON object a line."""
    refused: Counter[str] = Counter()
    told: list[tuple[MeasuredRun, Question, str]] = []
    for case in cases:
        try:
            question = planner.ask(case)
        except InputError as error:
            refused[str(error)] += 1
            continue
        changes = planner.settings[setting](question)
        told.append((case, question, json.dumps({"inputs": question.inputs, "changes": changes})))
    answers = answer("\n".join(text for _, _, text in told))
    kept = []
    for case, question, text in told:
        if "seconds" in answers[text]:
            kept.append((case, question, answers[text]))
        else:
            refused[reason(planner.name, answers[text]["refused"])] += 1
    return Asked(
        cases=tuple(case for case, _, _ in kept),
        questions=tuple(question for _, question, _ in kept),
        seconds=np.array([found["seconds"] for _, _, found in kept]),
        cpu_seconds=np.array([found["cpu_seconds"] for _, _, found in kept]),
        refused=refused,
    )


def reason(planner: str, text: str) -> str:
    """A planner's own refusal without the figures, so that equal ones count together."""
    if "Mem tier1 needs" in text:
        return f"{planner}: does not fit in memory (the run did)"
    plain = re.sub(r"[-\d.,]*\d", "N", text.partition("\n")[0])
    return f"{planner}: {plain.removeprefix('AssertionError: ').removeprefix('Error: ')[:90]}"


def answerer(name: str, options: argparse.Namespace) -> Callable[[str], Answers]:
    """Answers by question, from the folder of kept ones or from the planner's own process."""
    checkout = Path(getattr(options, name)).resolve()
    script = HERE / "ask_planner.py"
    command = [options.python, str(script), name, str(checkout)]
    version = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    kept = options.answers / f"{name}.jsonl" if options.answers else None

    def answer(questions: str) -> Answers:
        known = dict(_kept(kept))
        keys = {text: _key(version, text) for text in questions.splitlines()}
        new = [text for text, key in keys.items() if key not in known]
        if new:
            print(f"{name}: {len(new)} questions", file=sys.stderr)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n".join(new))
            process.stdin.close()
            for text, line in zip(new, process.stdout, strict=True):
                known[keys[text]] = json.loads(line)
                _keep(kept, keys[text], line)
        return {text: known[key] for text, key in keys.items()}

    return answer


def _key(version: str, question: str) -> str:
    return hashlib.sha256((version + question).encode()).hexdigest()


def _kept(path: Path | None) -> Iterable[tuple[str, dict[str, Any]]]:
    if path is not None and path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, found = line.partition(" ")
            yield key, json.loads(found)


def _keep(path: Path | None, key: str, line: str) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{key} {line.strip()}\n")


def predict_all(cases: Sequence[MeasuredRun], parameters: Parameters) -> Ours:
    runs = seen(packaged_cases()[0])
    measured = np.array([case.measured_seconds for case in cases])
    by_evidence = [
        measured / np.exp(leave_out(cases, some, parameters).log_ratios) for some in (runs, [])
    ]
    names = [case.row_id for case in cases]
    left_out, formulas = (
        dict(zip(names, seconds.tolist(), strict=True)) for seconds in by_evidence
    )
    return Ours(left_out=left_out, formulas=formulas)


def cpu_seconds_of_ours(cases: Sequence[MeasuredRun], parameters: Parameters) -> float:
    """Median CPU-seconds of one run's prediction by itself."""
    spent = []
    for case in cases:
        began = time.process_time()
        account_step(step_inputs_of([case]), parameters)
        spent.append(time.process_time() - began)
    return float(np.median(spent))


def ranks(values: Floats) -> Floats:
    """Rank of each value, the mean rank where several are equal."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place])


def spearman(some: Floats, others: Floats) -> float:
    if len(set(some)) < 2 or len(set(others)) < 2:
        return float("nan")
    return float(np.corrcoef(ranks(some), ranks(others))[0, 1])


def work(case: MeasuredRun) -> float:
    """Seconds that the model's FLOPs take at the device's peak: the step time at an MFU of one."""
    job, device = case.job, case.cluster.accelerator
    flops = flops_per_token(job.model, job.seq_len, prediction=job.multi_token).total
    peak = device.peak_flops(PEAKS.get(job.precision, job.precision))
    return job.step_tokens * flops / (case.layout.gpus * peak)


def cells(seconds: Floats, cases: Sequence[MeasuredRun]) -> str:
    """Median and mean error, median bias, and rank correlation of MFU."""
    measured = np.array([case.measured_seconds for case in cases])
    ideal = np.array([work(case) for case in cases])
    error = seconds / measured - 1
    size = np.abs(error)
    order = f"{spearman(ideal / seconds, ideal / measured):.2f}" if len(cases) >= FEW else "-"
    return (
        f"{100 * np.median(size):.1f} % | {100 * size.mean():.1f} % | "
        f"{100 * np.median(error):+.1f} % | {order}"
    )


def header(name: str) -> list[str]:
    columns = " | ".join(
        f"{who}: median | mean | bias | rank" for who in (name, "ours", "formulas alone")
    )
    return [f"| runs | n | {columns} |", "|---|--:|" + "--:|" * 12]


def row(name: str, asked: Asked, rows: Mask, ours: Ours) -> str:
    cases = [case for case, kept in zip(asked.cases, rows, strict=True) if kept]
    predicted = (
        np.array([seconds[case.row_id] for case in cases])
        for seconds in (ours.left_out, ours.formulas)
    )
    parts = " | ".join(cells(s, cases) for s in (asked.seconds[rows], *predicted))
    return f"| {name} | {len(cases)} | {parts} |"


def table(planner: Planner, asked: Asked, ours: Ours) -> list[str]:
    """Errors on the rows that are answered and need no stand-in for sharded weights, by group."""
    plain = ~asked.sharded
    groups: list[tuple[str, Mask]] = [("**all**", plain)]
    found = np.array([case.row_id.startswith("f") for case in asked.cases], bool)
    groups += [("two public tables", plain & ~found), ("found since", plain & found)]
    devices = np.array([case.cluster.accelerator.name for case in asked.cases])
    sources = np.array([case.source for case in asked.cases])
    groups += [(name, plain & (devices == name)) for name in dict.fromkeys(devices.tolist())]
    by_source = [(name, plain & (sources == name)) for name in dict.fromkeys(sources.tolist())]
    groups += [(name, rows) for name, rows in by_source if rows.sum() >= FEW]
    groups.append(("sharded weights as a sharded optimizer", asked.sharded))
    return [
        *header(planner.name),
        *(row(name, asked, rows, ours) for name, rows in groups if rows.any()),
    ]


def planner_section(
    planner: Planner,
    cases: Sequence[MeasuredRun],
    blind: Sequence[MeasuredRun],
    answer: Callable[[str], Answers],
    parameters: Parameters,
) -> tuple[list[str], str]:
    """A planner's tables, and its line of the summary."""
    lines = [f"## {planner.name}", ""]
    by_setting = {name: ask(planner, name, cases, answer) for name in planner.settings}
    everything = list({case.row_id: case for a in by_setting.values() for case in a.cases}.values())
    ours = predict_all(everything, parameters)
    for setting, asked in by_setting.items():
        answered, sharded = len(asked.cases), int(asked.sharded.sum())
        lines += [
            f"### {planner.name}, {setting}",
            "",
            f"Answers {answered} of {len(cases)} runs, {sharded} of them with sharded weights taken "
            "as a sharded optimizer.",
            "",
            *table(planner, asked, ours),
            "",
        ]
    shipped = by_setting[SHIPPED]
    lines += [f"### Why {planner.name} does not answer, {SHIPPED}", "", "| reason | runs |"]
    lines += ["|---|--:|", *(f"| {why} | {n} |" for why, n in shipped.refused.most_common()), ""]
    assumed = Counter(name for question in shipped.questions for name in question.assumed)
    lines += ["### What stands in for what it cannot express", "", "| assumed | runs |"]
    lines += ["|---|--:|", *(f"| {name} | {n} |" for name, n in assumed.most_common()), ""]
    if blind:
        lines += blind_section(planner, blind, answer, parameters)
    mine = cpu_seconds_of_ours(shipped.cases, parameters)
    theirs = float(np.median(shipped.cpu_seconds))
    speed = (
        f"| {planner.name} | {len(shipped.cases)} of {len(cases)} | {1e3 * theirs:.1f} ms | "
        f"{1e3 * shipped.cpu_seconds.max():,.0f} ms | {1e3 * mine:.1f} ms |"
    )
    return lines, speed


def blind_section(
    planner: Planner,
    blind: Sequence[MeasuredRun],
    answer: Callable[[str], Answers],
    parameters: Parameters,
) -> list[str]:
    """Small single-node runs that nobody looked at when our formulas were made."""
    lines = [f"### {planner.name} on small single-node runs", "", *header(planner.name)]
    for setting in planner.settings:
        asked = ask(planner, setting, blind, answer)
        if asked.cases:
            ours = predict_all(asked.cases, parameters)
            lines.append(row(setting, asked, ~asked.sharded, ours))
    return [*lines, ""]


INTRODUCTION = """\
# Other planners on the same runs

Made by `python -m benchmarks.compare_planners`. Errors are of the step time; "bias" is the median of
predicted over measured, "rank" Spearman's correlation of predicted and measured MFU (step times
themselves differ by their work, which anyone ranks). "Ours" leaves out what other runs of the run's
source say; "formulas alone" leaves out all runs. All columns of a row are of the same runs.

This is no blind test of ours: our formulas were made with the two public tables in view, and with the
runs found since in view for two causes. The other planners' authors saw none of them, but for
Calculon's machines, which were validated on korthikanti-2022.

Each planner gets its best shipped machine for the device and our reading of the row: the same layout,
micro-batch, recomputation and overlap of gradients. Calculon knows neither the embedding and the head
nor fused attention. Two choices were made for it with the errors in view, in its favour: its rings,
which hide all of tensor parallelism's traffic, are off (with them 23 instead of 13 % at the median of
the 50 runs that overlap), and its logging is off, which makes it several times faster. SimuMax ships
an A100 on PCIe and one B200 node only; all A100 runs here have NVLink, so the fair setting is "the
run's links": the NVLink machine of its own documentation and the network of the run. It may use 60
CPU-seconds for a run.
"""


def report(options: argparse.Namespace) -> str:
    cases, _ = packaged_cases()
    public = [*chosen(cases, found=False), *chosen(cases, found=True)]
    blind = [] if options.no_blind else unseen_half()
    sections, speeds = [], []
    parameters = load_parameters()
    for planner in PLANNERS:
        answer = answerer(planner.name.lower(), options)
        lines, speed = planner_section(planner, public, blind, answer, parameters)
        sections += lines
        speeds.append(speed)
    summary = [
        "## Runs answered, and CPU time of one prediction",
        "",
        "| planner | answers, as shipped | median | longest | ours, on these runs |",
        "|---|--:|--:|--:|--:|",
        *speeds,
        "",
        f"Ours predicts all {len(public)} runs, and many in one call: benchmarks/prove_prediction.py.",
        "",
    ]
    return "\n".join([INTRODUCTION, *summary, *sections])


def unseen_half() -> list[MeasuredRun]:
    """The half of the small single-node runs that our formulas were not made with."""
    return [c for c in shared_cases("throughput_single_node.csv.gz") if int(c.row_id) % 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calculon", required=True, help="Checkout of calculon-ai/calculon.")
    parser.add_argument("--simumax", required=True, help="Checkout of MooreThreads/SimuMax.")
    parser.add_argument("--python", default=sys.executable, help="Python with what they need.")
    parser.add_argument("--answers", type=Path, help="Folder that keeps their answers.")
    parser.add_argument("--no-blind", action="store_true", help="Leave out small single-node runs.")
    parser.add_argument("--write", action="store_true", help="Write the report.")
    options = parser.parse_args()
    text = report(options)
    if options.write:
        REPORT.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
