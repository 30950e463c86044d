"""The screen of `computeflow top`: `draw_screen` gives its lines, `press` what a key does to it.

Both are plain functions of a snapshot and a `ScreenState`: no terminal is needed to try them. A line is
pieces of text with the name of a style each; the command line knows what styles look like.
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.sinks import ranks_label, run_name, run_usd_per_hour
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.files.names import shown
from computeflow.ledger import ACCOUNTS
from computeflow.units import format_seconds, format_share
from computeflow.views.live_runs import (
    LETTERS,
    SORTS,
    SortBy,
    age_text,
    finding_rows,
    flow_letters,
    heard_text,
    is_quiet,
    letters_legend,
    rank_cells,
    seconds_text,
    short_headline,
    sorted_findings,
    sorted_runs,
    usd_text,
)

Piece = tuple[str, str]
"""Text and the name of its style: "", bold, dim, warning, selected, or the owner of an account."""
ScreenLine = tuple[Piece, ...]
Key = Literal["up", "down", "enter", "back", "sort", "help", "quit"]
MIN_WIDTH = 40
_KEYS = (
    ("j k, arrows", "select a finding or a run"),
    ("Enter", "open it: evidence, remedy, command; or the accounts of a run"),
    ("Esc", "back"),
    ("s", "sort findings: by cost, by age, by run"),
    ("?", "this help"),
    ("q", "quit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenState:
    selected: str = ""
    """Key of the finding, or "run:" and the run; "" for the first line."""
    sort: SortBy = "cost"
    opened: bool = False
    scroll: int = 0
    """First line that is shown of what is open."""
    help: bool = False


def items(snapshot: LiveSnapshot, sort: SortBy) -> list[str]:
    """Everything that can be selected, in the order of the screen."""
    return [
        *(f"run:{run.run}" for run in sorted_runs(snapshot)),
        *(finding.key for finding in sorted_findings(snapshot, sort)),
    ]


def selected_item(snapshot: LiveSnapshot, state: ScreenState) -> str:
    """The selected line, or the first finding, or the first run."""
    known = items(snapshot, state.sort)
    if state.selected in known:
        return state.selected
    return next((item for item in known if not item.startswith("run:")), known[0] if known else "")


def press(state: ScreenState, key: Key, snapshot: LiveSnapshot) -> ScreenState | None:
    """The state after a key; None where the view ends."""
    if key == "quit":
        return None
    if state.help:
        return replace(state, help=False)
    if key == "help":
        return replace(state, help=True)
    if key == "back":
        return replace(state, opened=False, scroll=0)
    if key == "enter":
        chosen = selected_item(snapshot, state)
        return replace(state, selected=chosen, opened=bool(chosen) and not state.opened, scroll=0)
    if key == "sort":
        return replace(state, sort=SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)])
    step = 1 if key == "down" else -1
    if state.opened:
        return replace(state, scroll=max(state.scroll + step, 0))
    known = items(snapshot, state.sort)
    if not known:
        return state
    at = known.index(selected_item(snapshot, state)) + step
    return replace(state, selected=known[min(max(at, 0), len(known) - 1)])


def draw_screen(
    snapshot: LiveSnapshot, state: ScreenState, width: int, height: int, trouble: str = ""
) -> tuple[ScreenLine, ...]:
    """Exactly `height` lines of at most `width` characters; `trouble`: why the snapshot is old."""
    width = max(width, MIN_WIDTH)
    head = _head(snapshot, width, trouble)
    body = max(height - 1 - len(head), 1)
    if state.help:
        lines = [_text(f"{keys:14}{meaning}") for keys, meaning in _KEYS]
        lines += [(), _text("Letters of a flow", "bold"), *_letters(width)]
    elif state.opened:
        lines = _detail(snapshot, state, width, body)
    else:
        lines = _overview(snapshot, state, width, body)
    lines = [*lines[:body], *[()] * (body - len(lines))]
    whole = [*head, *lines, _footer(state, width)]
    return tuple(_fitted(line, width) for line in whole[:height])


def _head(snapshot: LiveSnapshot, width: int, trouble: str) -> list[ScreenLine]:
    """One line; where the snapshot is old, the reason in up to three."""
    clock = datetime.datetime.fromtimestamp(snapshot.taken, tz=datetime.UTC).strftime("%H:%M:%S")
    if trouble:
        lines = _wrapped(f"As of {clock} UTC: {trouble}", width)
        return [_text(line, "warning") for line in lines[:3]]
    words = f"ComputeFlow  {short_headline(snapshot)}  {shown(snapshot.source, 60)}"
    return [((words[: width - 10].ljust(width - 8), "bold"), (clock, "dim"))]


def _footer(state: ScreenState, width: int) -> ScreenLine:
    if state.help:
        words = "any key: back   q: quit"
    elif state.opened:
        words = "Enter, Esc: back   j k: scroll   ?: help   q: quit"
    else:
        words = f"j k: select   Enter: open   s: sort by {state.sort}   ?: help   q: quit"
    return ((words.ljust(width), "dim"),)


def _overview(
    snapshot: LiveSnapshot, state: ScreenState, width: int, height: int
) -> list[ScreenLine]:
    chosen = selected_item(snapshot, state)
    runs, findings = sorted_runs(snapshot), sorted_findings(snapshot, state.sort)
    if not runs and not findings:
        return [(), _text("No runs yet: computeflow record -- COMMAND, and an agent that sends.")]
    names = [f"run:{run.run}" for run in runs]
    keys = [finding.key for finding in findings]
    rows = height - 6  # headings, the legend and two empty lines
    slow = _followed(snapshot, chosen)
    run_rows = min(len(runs), max(rows // 3, 1))
    rank_rows = min(len(slow.slowest) if slow else 0, max(rows // 4, 1))
    finding_rows_ = max(rows - run_rows - rank_rows, 1)
    first = _window(names, chosen, run_rows)
    lines = [_run_heading(width)]
    lines += [
        _run_line(run, width, f"run:{run.run}" == chosen) for run in runs[first : first + run_rows]
    ]
    lines += [_text(f"  {letters_legend(snapshot.runs)}", "dim"), ()]
    tall = 2 * len(findings) <= finding_rows_
    first = _window(keys, chosen, finding_rows_)
    hidden = max(len(findings) - finding_rows_, 0)
    lines.append(_finding_heading(hidden))
    for finding in findings[first : first + finding_rows_]:
        lines += _finding_lines(finding, snapshot, width, chosen=finding.key == chosen, tall=tall)
    lines += [_text("  none", "dim")] * (not findings)
    if slow and slow.slowest and rank_rows:
        lines += [(), *_rank_lines(slow, rank_rows)]
    return lines


def _window(keys: Sequence[str], chosen: str, rows: int) -> int:
    """First visible line of a list, so that the chosen one is seen."""
    at = keys.index(chosen) if chosen in keys else 0
    return max(min(at - rows // 2, len(keys) - rows), 0)


def _followed(snapshot: LiveSnapshot, chosen: str) -> LiveRun | None:
    """The run whose ranks are shown: the selected one, or that of the selected finding."""
    name = chosen.removeprefix("run:")
    for finding in snapshot.findings:
        if finding.key == chosen:
            name = finding.run
    return next((run for run in snapshot.runs if run.run == name), None)


def _run_heading(width: int) -> ScreenLine:
    heads = f"  {'run':16} {'state':8} {'ranks':>11} {'step':>8} {'time':>7} {'MFU':>6} "
    return _text(heads + "flow".ljust(max(width - len(heads), 0)), "bold")


def _run_line(run: LiveRun, width: int, chosen: bool) -> ScreenLine:
    mark = "> " if chosen else "  "
    mfu = "-" if run.mfu is None else f"{100 * run.mfu:.1f}%"
    head = f"{mark}{shown(run.name or run.run, 13):16} "
    state = f"{run.state:8}"
    tail = f" {heard_text(run):>11} {run.step:>8,} {seconds_text(run.step_seconds):>7} {mfu:>6} "
    style = "selected" if chosen else ""
    trouble = "warning" if run.state in ("stuck", "silent") else style
    used = len(head) + len(state) + len(tail)
    bar = flow_letters(run, max(width - used, 4))
    pieces: list[Piece] = [(head, style), (state, trouble), (tail, style)]
    return (*pieces, *_joined(bar))


def _joined(bar: Sequence[tuple[str, str]]) -> list[Piece]:
    """Neighbours of one style as one piece."""
    pieces: list[Piece] = []
    for letter, style in bar:
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + letter, style)
        else:
            pieces.append((letter, style))
    return pieces


def _finding_heading(hidden: int) -> ScreenLine:
    more = f" ({hidden} more)" if hidden else ""
    return _text(f"  {'$/h':>9} {'share':>6} {'age':>7}  finding{more}", "bold")


def _finding_lines(
    finding: LiveFinding, snapshot: LiveSnapshot, width: int, *, chosen: bool, tall: bool
) -> list[ScreenLine]:
    """One line, or two where there is room for its title."""
    quiet = is_quiet(finding, snapshot.taken)
    run = shown(run_name(finding.run, snapshot.runs), 20)
    ranks = f" rank{'s' * (len(finding.ranks) > 1)} {ranks_label(finding.ranks)}"
    head = (
        f"{'> ' if chosen else '  '}{usd_text(finding.usd_per_hour):>9} "
        f"{100 * finding.share:>5.1f}% {age_text(finding, snapshot.taken):>7}  "
    )
    words = f"{finding.rule}{ranks if finding.ranks else ''}" + (f", {run}" if run else "")
    words += " (silenced)" if quiet else ""
    style = "selected" if chosen else "dim" if quiet else ""
    room = max(width - len(head) - 3, 8)
    if not tall:
        return [_text(head + shown(f"{words}: {finding.title}", room), style)]
    return [
        _text(head + shown(words, room), style),
        _text(" " * len(head) + shown(finding.title, room), "dim"),
    ]


def _rank_lines(run: LiveRun, rows: int) -> list[ScreenLine]:
    lines = [_text(f"  {'rank':>6} {'late':>8} {'own':>8} {'step':>9}  node", "bold")]
    for rank in run.slowest[:rows]:
        number, node, late, own, step = rank_cells(rank)
        lines.append(_text(f"  {number:>6} {late:>8} {own:>8} {step:>9}  {shown(node, 40)}"))
    return lines


def _detail(
    snapshot: LiveSnapshot, state: ScreenState, width: int, height: int
) -> list[ScreenLine]:
    chosen = selected_item(snapshot, state)
    finding = next((each for each in snapshot.findings if each.key == chosen), None)
    if finding is not None:
        lines = _finding_detail(finding, snapshot, width)
    else:
        run = next((each for each in snapshot.runs if f"run:{each.run}" == chosen), None)
        lines = [_text("It is gone.")] if run is None else _run_detail(run, width, snapshot.taken)
    first = min(state.scroll, max(len(lines) - height, 0))
    return lines[first:]


def _finding_detail(finding: LiveFinding, snapshot: LiveSnapshot, width: int) -> list[ScreenLine]:
    lines = [_text(line, "bold") for line in _wrapped(f"{finding.rule}: {finding.title}", width)]
    lines.append(())
    for label, text in finding_rows(finding, snapshot.runs, snapshot.taken):
        first, *more = _wrapped(text, width - 13) or [""]
        lines.append(((f"{label:13}", "dim"), (first, "bold" if label == "command" else "")))
        lines += [_text(" " * 13 + line) for line in more]
    return lines


def _mfu(run: LiveRun) -> str:
    palm = "" if run.mfu_palm is None else f" ({format_share(run.mfu_palm)} by PaLM's count)"
    return f"{format_share(run.mfu)}{palm}"


def _run_detail(run: LiveRun, width: int, now: float) -> list[ScreenLine]:
    usd = run_usd_per_hour(run)
    cost = "unknown" if usd is None else f"${usd:,.2f} an hour"
    facts = [
        ("command", run.command or "-"),
        ("state", f"{run.state}, updated {format_seconds(max(now - run.updated, 0.0))} ago"),
        ("ranks", f"{run.ranks:,} of {run.world:,} on {len(run.nodes):,} nodes, {run.gpu or '-'}"),
        ("speed", f"{seconds_text(run.step_seconds)} a step, {_tokens(run)}"),
        ("goodput", f"{format_share(run.goodput)}; MFU {_mfu(run)}; cost {cost}"),
    ]
    lines = [_text(shown(run.name or run.run, width), "bold"), ()]
    for label, text in facts:
        lines.append(((f"{label:13}", "dim"), (shown(text, width - 13), "")))
    lines += [(), _text("account        share", "bold")]
    for name in sorted(run.accounts, key=lambda name: -run.accounts[name]):
        if name in ACCOUNTS:
            share = run.accounts[name]
            bar = LETTERS[name] * round(max(min(share, 1.0), 0.0) * max(width - 26, 4))
            lines.append(((f"{name:13}{100 * share:>6.1f}%  ", ""), (bar, ACCOUNTS[name].owner)))
    lines += [(), *_rank_lines(run, 16)] if run.slowest else []
    return lines + [_text(shown(note, width), "dim") for note in run.notes]


def _tokens(run: LiveRun) -> str:
    if run.tokens_per_second is None:
        return "tokens unknown"
    return f"{run.tokens_per_second:,.0f} tokens/s"


def _letters(width: int) -> list[ScreenLine]:
    names: dict[str, str] = {}
    for account, letter in LETTERS.items():
        names[letter] = f"{names[letter]}, {account}" if letter in names else account
    cells = [f"{letter} {shown(name, 34)}" for letter, name in names.items()]
    two = 2 if width >= 76 else 1
    rows = [cells[at : at + two] for at in range(0, len(cells), two)]
    return [_text("  ".join(f"{cell:37}" for cell in row)) for row in rows]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(shown(text, 2000), max(width, 20), break_on_hyphens=False)


def _text(text: str, style: str = "") -> ScreenLine:
    return ((text, style),)


def _fitted(line: ScreenLine, width: int) -> ScreenLine:
    """Cut at the edge of the terminal; nothing that a terminal would obey is left in it."""
    pieces: list[Piece] = []
    room = width
    for text, style in line:
        plain = shown(text, len(text))[:room]
        room -= len(plain)
        if plain:
            pieces.append((plain, style))
    return tuple(pieces)
