"""Careless and hostile arguments: every one ends in an answer or in one short line, soon."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import computeflow as cf
from computeflow import codec
from computeflow.answers.checking import checked
from computeflow.answers.probes import check_ray_address
from computeflow.catalog import find_model, load_catalog
from computeflow.cli import run
from computeflow.cli.app import COMMANDS, app
from computeflow.cli.command import AnswerCommand
from computeflow.cli.types import CountType, ListType, Number, Quantity, RangeType
from computeflow.cluster import find_cluster
from computeflow.engines import each
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import one_line
from computeflow.files.parsing import parse_number
from computeflow.planning import plan
from computeflow.planning.batches import try_batches
from computeflow.planning.goals import Goals, Search
from computeflow.simulation import budget
from computeflow.simulation.budget import MAX_WORK, one_budget
from computeflow.simulation.simulate import _check_work, expected_events
from computeflow.telemetry.metrics.prometheus_server import connect
from computeflow.views.tables import Column, Table, to_rich, to_text
from computeflow.workload import Job
from test_simulation import a_run, by_time

FACTS = load_catalog()
SMALL = Job(model=find_model(FACTS, "llama-3.1-8b"), global_batch=64, seq_len=4096)
PROGRAM = [sys.executable, "-m", "computeflow"]
ANY_TEXT = st.text(st.characters(), max_size=40)
NO_NUMBERS = ("nan", "inf", "-inf", "1e400", "", " ", "²", "x" * 100_000, "\x1b[31m", "-1e9", "--")
HUGE = "9" * 5000


def numeric_options() -> list[tuple[str, click.Option]]:
    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in COMMANDS}
    return [
        (name, parameter)
        for name, command in commands.items()
        if isinstance(command, AnswerCommand)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and isinstance(parameter.type, CountType | Number | Quantity | RangeType | ListType)
        and parameter.type.name != "names"
    ]


@pytest.mark.parametrize("value", [*NO_NUMBERS, HUGE], ids=lambda value: value[:8])
def test_no_numeric_option_takes_what_is_no_number(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = numeric_options()
    assert len(options) > 100
    for command, parameter in options:
        name = max(parameter.opts, key=len)
        assert run([command, f"{name}={value}"]) == 2, (command, name)
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert len(message) < 1200
        assert message[:-1].isprintable()


def test_no_command_has_a_plain_number_of_click() -> None:
    """Click's own float takes "nan", and its int any number of digits."""
    for name in COMMANDS:
        command = app.get_command(click.Context(app), name)
        assert command is not None
        kinds = [type(parameter.type) for parameter in command.params]
        plain = (type(click.INT), type(click.FLOAT), click.FloatRange, click.IntRange)
        assert not [kind for kind in kinds if kind in plain], name


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**30, "", [1.0, math.nan], {"a": math.inf}, ("",)]
)
def test_no_library_function_takes_what_is_no_number_or_no_text(value: Any) -> None:
    @checked
    def anything(*, given: Any = None) -> Any:
        return given

    with pytest.raises(InputError, match="given"):
        anything(given=value)


@pytest.mark.parametrize("empty", [{"storage": ""}, {"stack": ""}])
def test_an_empty_text_is_not_what_was_left_out(empty: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="an empty text"):
        cf.predict("llama-3.1-8b", on="h100-sxm:8", global_batch=64, seq_len=4096, **empty)


@given(ANY_TEXT)
def test_what_leaves_for_a_terminal_is_printable_and_json_says_the_same(text: str) -> None:
    table = Table(title=text, columns=(Column(header=text),), rows=((text,),), notes=(text,))
    assert all(line.isprintable() for line in to_text(table).split("\n"))
    shown = codec.to_json({"name": text, text: 1})
    shown.encode("utf-8")
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == {"name": text, text: 1}
    assert one_line(text).isprintable()


def test_markup_in_a_name_is_text() -> None:
    from rich.console import Console

    name = "[bold]x[/bold] [link=http://a]y[/link] :smile:"
    table = Table(title=name, columns=(Column(header="a"),), rows=((name,),))
    console = Console(force_terminal=True, width=100)
    with console.capture() as taken:
        console.print(to_rich(table, 100))
    assert taken.get().count("[link=http://a]") == 2
    assert "\x1b]8" not in taken.get()


@pytest.mark.parametrize("text", ["x" * 1_000_000, HUGE, "\x1b]0;owned\x07", "‮evil", "\udcff"])
def test_an_error_is_one_short_printable_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        [text],
        ["predict", text, "--on", text],
        ["catalog", "models", text],
        ["ledger", text],
        ["audit", text],
        ["plan", "m", "--on", f"h100-sxm:{text}"],
        ["simulate", "--failures", text],
        ["size", "m", "--tokens", text],
    ):
        assert run(arguments) == 2
        message = capsys.readouterr().err
        assert len(message) < 1200
        assert message[:-1].isprintable()
    assert len(str(UnknownNameError("name", text, ["a"]))) < 700


def interrupted(arguments: list[str], started: Path) -> tuple[int, str]:
    """Result of a process that gets SIGINT once it says that it has started.

    Tests that run in the background may ignore the signal, and their children with them.
    """
    heard = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    heard += "os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", heard, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not started.exists() and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_an_interrupt_while_simulate_plans_ends_it(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = (
        "import sys; from importlib import import_module; from pathlib import Path\n"
        "search = import_module('computeflow.planning.search')\n"
        "cover = search._Walk.cover\n"
        f"def noted(self, progress):\n    Path({str(started)!r}).touch()\n    cover(self, progress)\n"
        "search._Walk.cover = noted\n"
        "from computeflow.cli import main; main(sys.argv[1:])"
    )
    job = "simulate deepseek-v3 --on h100-sxm:2048 --global-batch 8192 --seq-len 4096 --days 9"
    returned, errors = interrupted([sys.executable, "-c", code, *job.split()], started)
    assert (returned, errors) == (130, "computeflow: interrupted\n")


def test_an_interrupt_leaves_no_worker_behind(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from computeflow import engines\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "def linger(_):\n    (folder / f'worker-{os.getpid()}').touch()\n    time.sleep(60)\n"
        "def say(done, of):\n"
        "    while len(list(folder.glob('worker-*'))) < 2: time.sleep(0.02)\n"
        "    (folder / 'started').touch()\n"
        "engines._processors = lambda: 2\n"
        "engines.each(linger, range(4), progress=say)"
    )
    interrupted([sys.executable, "-c", code], tmp_path / "started")
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert len(workers) == 2
    assert not [pid for pid in workers if _runs(pid)]


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody collects does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_engines_still_give_results_in_order() -> None:
    assert each(functools.partial(pow, 2), range(5)) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "address",
    [
        "http://a b",
        "http://a\tb",
        "http://é",
        "http://a\x1b[31m",
        "http://[::1",
        "http://:9",
        "http://a:99999",
        "http://" + "x" * 5000,
    ],
)
def test_what_is_no_address_of_a_server_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="no address") as refused:
        connect(address)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("address", ["$(id)", "auto;x", "ray://", "localhost", "a:99999", "a b:1"])
def test_what_is_no_address_of_a_ray_cluster_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="host:port"):
        check_ray_address(address)


def test_numbers_with_very_many_divisors_are_refused_before_the_search() -> None:
    job = Job(model=find_model(FACTS, "deepseek-v3"), global_batch=720_720, seq_len=131_072)
    with pytest.raises(InputError, match=r"at most [\d,]+ are searched.*--fix"):
        plan(job, find_cluster("h100-sxm:720720", FACTS))


@pytest.mark.parametrize("price", [1e308, "1e308", 1e25])
def test_a_price_that_makes_costs_infinite_is_refused(price: float | str) -> None:
    with pytest.raises(InputError, match="between 0 and"):
        cf.plan("llama-3.1-8b", on="h100-sxm:8", global_batch=64, seq_len=4096, price=price)


def test_a_cluster_has_a_most_size() -> None:
    for count in ("735134400", HUGE, "0"):
        with pytest.raises(InputError):
            find_cluster(f"h100-sxm:{count}", FACTS)


def test_batches_that_are_repeated_are_planned_once_and_very_many_are_refused() -> None:
    search = Search(job=SMALL, cluster=find_cluster("h100-sxm:8", FACTS), goals=Goals(tokens=1e12))
    assert [option.size for option in try_batches(search, [64] * 3000, 1000.0)] == [64]
    with pytest.raises(InputError, match="at most 64"):
        try_batches(search, range(1, 3000), 1000.0)


def test_sizes_that_are_repeated_are_sized_once_and_very_many_are_refused() -> None:
    answer = cf.size("llama-3.1-8b", tokens=1e12, devices=["h100-sxm"] * 9, counts=[64] * 900)
    assert [len(device.cells) for device in answer.size.devices] == [1]
    with pytest.raises(InputError, match="at most 64"):
        cf.size("llama-3.1-8b", tokens=1e12, counts=range(1, 900))


def test_a_simulation_of_too_many_events_says_how_many_would_do() -> None:
    with pytest.raises(InputError, match="6 times shorter"):
        _check_work([by_time(a_run(gpus=100_000), 3650)], 1)
    run = by_time(a_run(gpus=10_000), 3650)
    with pytest.raises(InputError, match=r"at most ([\d,]+) simulations") as refused:
        _check_work([run], 1000)
    fitting = int(str(refused.value).rpartition("at most ")[2].split()[0].replace(",", ""))
    _check_work([run], fitting)
    with pytest.raises(InputError):
        _check_work([run], 2 * fitting)
    assert expected_events(by_time(a_run(gpus=16_384), 90)) * 1400 < MAX_WORK


def test_a_refused_simulation_states_no_figures_that_would_do() -> None:
    """Where the rounds cost most, events times simulations are few."""
    run = by_time(a_run(gpus=100_000), 1200)
    assert expected_events(run) < MAX_WORK / 100
    with pytest.raises(InputError, match=r"take [\d.]+ times what one call may"):
        _check_work([run], 1)
    with pytest.raises(InputError, match=r"at most 2,\d+ simulations or 2\d\d runs"):
        _check_work([by_time(a_run(gpus=1024), 10)] * 1000, 10_000)


def test_the_simulations_of_one_command_are_bounded_together() -> None:
    run = by_time(a_run(gpus=10_000), 365)
    with one_budget(), pytest.raises(InputError, match="simulations of this command"):
        for _ in range(1000):
            with one_budget():
                _check_work([run], 1000)
    for _ in range(1000):
        _check_work([run], 1000)


@pytest.mark.parametrize("command", ["build", "compare", "simulate", "sites"])
def test_a_command_that_simulates_has_one_budget(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "MAX_COMMAND_WORK", 10)
    assert run([*SIMULATING[command].split(), "--quiet"]) == 2
    assert "simulations of this command" in capsys.readouterr().err


SIMULATING = {
    "build": "build llama-3.1-8b --on h100-sxm:64 --tokens 1T --global-batch 256",
    "compare": "compare llama-3.1-8b --tokens 100B --deadline 30d --providers lambda",
    "simulate": "simulate llama-3.1-8b --on h100-sxm:64 --global-batch 64 --seq-len 4096 --tp 8 "
    "--days 30",
    "sites": "sites --draws 10",
}


def test_a_name_is_escaped_once() -> None:
    with pytest.raises(UnknownNameError) as refused:
        find_model(FACTS, "m\x1b")
    assert str(refused.value).startswith(r"unknown model 'm\x1b'")
    with pytest.raises(InputError, match=r"'a\\x1b' is not a finite number"):
        parse_number("a\x1b", "price")


def test_a_condition_beyond_reason_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    job = "simulate llama-3.1-8b --on h100-sxm:8 --global-batch 64 --seq-len 4096 --tp 8 --days 1"
    for value in ("throttle=1e308", "load_seconds=1e300"):
        assert run([*job.split(), "--set", value]) == 2
        assert "at most" in capsys.readouterr().err


def test_a_soak_without_end_is_refused() -> None:
    for soak in (math.nan, math.inf, -1.0, "nan", "-5s", "1000d"):
        with pytest.raises(InputError):
            cf.probe(soak=soak, device="cpu")
