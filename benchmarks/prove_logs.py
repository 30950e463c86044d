"""Step lines of public trainers, read without being described: benchmarks/reports/logs.md.

    python -m benchmarks.prove_logs

Every style of `log_styles` is written with made numbers and read as `audit` reads it. Scored are the
steps (first, last and how many), the step time (within 5 % of the made one), the loss (the last one)
and wrong claims: a time, a loss or a restart that is not there, or more than 5 % off.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.log_styles import JUDGING, JUDGING_AGAIN, SHAPING, Style
from computeflow.catalog import load_catalog
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.logs.log_source import LogSource
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceRequest

REPORT = Path(__file__).parent / "reports" / "logs.md"
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    style: Style
    steps: bool
    seconds: str
    loss: str
    wrong: tuple[str, ...] = ()

    @property
    def row(self) -> str:
        told = "yes" if self.steps else "no"
        wrong = "; ".join(self.wrong) or "-"
        cells = (self.style.name, told, self.seconds, self.loss, wrong, self.style.source)
        return f"| {' | '.join(cells)} |"


def score(style: Style, folder: Path) -> Score:
    path = folder / "train.log"
    written = list(style.lines())
    path.write_text("\n".join(line for _, line in written) + "\n")
    source = LogSource()
    if not source.recognises(path, head_of(path)):
        return Score(style=style, steps=False, seconds="no", loss="no")
    reports = source.observe([path], SourceRequest(catalog=load_catalog()))
    run = reports[0].facts
    assert isinstance(run, LoggedRun)
    first, last = written[0][0], written[-1][0]
    count = len(written) if style.epochs else last.number
    shift = style.first == 1 and style.every > 1 and not style.epochs
    expected = {count, count - style.first + 1} | ({count + style.every - 1} if shift else set())
    grown = len(written) - 1 if style.epochs else last.number - first.number
    counted = run.last_step is not None and run.last_step - (run.first_step or 0) == grown
    seconds, wrong = _seconds(style, run, written[-1][0].mean)
    loss, more = _loss(style, run, last.loss)
    wrong += more + ([f"{len(run.restarts)} restarts"] if run.restarts else [])
    wrong += [f"{len(reports)} runs"] if len(reports) > 1 else []
    if run.steps and not (counted and run.steps in expected):
        wrong.append(f"{run.steps} steps, {run.first_step} to {run.last_step}")
    right = counted and run.steps in expected
    return Score(style=style, steps=right, seconds=seconds, loss=loss, wrong=tuple(wrong))


def _seconds(style: Style, run: LoggedRun, made: float) -> tuple[str, list[str]]:
    if run.step_seconds is None:
        return ("no" if style.timed else "not told"), []
    if abs(run.step_seconds / made - 1) <= TOLERANCE:
        return "yes", []
    return "no", [f"{run.step_seconds:.3g} s a step, made with {made:.3g}"]


def _loss(style: Style, run: LoggedRun, made: float) -> tuple[str, list[str]]:
    if run.last_loss is None:
        return ("no" if style.lossy else "not told"), []
    if abs(run.last_loss - made) <= 0.01 * made:
        return "yes", []
    return "no", [f"loss {run.last_loss:.4g}, made with {made:.4g}"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tables = [_table(name, styles, Path(folder)) for name, styles in _SETS]
    REPORT.write_text(f"{_TITLE}\n" + "\n".join(text for text, _ in tables))
    print("\n".join(text for text, _ in tables))
    return 1 if any(wrong for _, wrong in tables) else 0


_SETS = (("Shaping", SHAPING), ("Judging", JUDGING), ("Judging again", JUDGING_AGAIN))
_TITLE = """# Log lines that nobody described

Written by `python -m benchmarks.prove_logs`: lines as public trainers print them, with made numbers.
"not told": the lines do not tell it, or not for certain, and nothing is claimed.
"""


def _table(name: str, styles: tuple[Style, ...], folder: Path) -> tuple[str, int]:
    scores = [score(style, folder) for style in styles]
    timed = [s for s in scores if s.style.timed]
    lossy = [s for s in scores if s.style.lossy]
    wrong = sum(bool(s.wrong) for s in scores)
    text = [
        f"## {name}: {len(styles)} styles\n",
        f"Steps right in {sum(s.steps for s in scores)} of {len(scores)}, step time in "
        f"{sum(s.seconds == 'yes' for s in timed)} of {len(timed)}, loss in "
        f"{sum(s.loss == 'yes' for s in lossy)} of {len(lossy)}; wrong claims in {wrong}.\n",
        "| trainer | steps | step time | loss | wrong | lines as in |",
        "|---|---|---|---|---|---|",
        *(s.row for s in scores),
        "",
    ]
    return "\n".join(text), wrong


if __name__ == "__main__":
    sys.exit(main())
