"""The library behind the commands: every command is one function, and `cli` only parses and shows."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import typing
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import computeflow as cf
from computeflow import codec
from computeflow.cli.app import app
from computeflow.cli.command import AnswerCommand

CLI = Path(cf.__file__).parent / "cli"
SHOWN = {"output", "html", "quiet", "force"}
NO_ANSWER = {"completion"}
"""Commands without an answer: they print a script for a shell."""
FUNCTIONS = (
    "audit", "build", "calibrate", "check", "claims", "compare", "place", "plan", "predict", "probe",
    "simulate", "site_limits", "compare_sites", "size", "validate",
)  # fmt: skip
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = {name: command for name, command in leaves(app) if name not in NO_ANSWER}


def keywords(command: AnswerCommand) -> dict[str, Any]:
    """The keywords of the library function, with their defaults."""
    function = command.library_function()
    plain: Any = getattr(function, "func", function)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = get_args(typing.get_type_hints(plain)[name])
            found |= dict.fromkeys(typing.get_type_hints(options), None)
        else:
            found[name] = parameter.default
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_library_function_with_its_options_as_keywords(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, AnswerCommand)
    known = keywords(command)
    options = [option for option in command.params if option.name not in SHOWN]
    assert {option.name for option in options} <= set(known)
    for option in options:
        if isinstance(option, click.Option):
            assert option.name in (option.opts[0].removeprefix("--").replace("-", "_"), "from_")


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_in_a_help_text_are_those_of_the_function(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, AnswerCommand)
    known = keywords(command)
    for option in command.params:
        if isinstance(option, click.Option) and option.show_default and option.name not in SHOWN:
            default = known[option.name or ""]
            if default is not None and default is not inspect.Parameter.empty:
                assert option.default == default, option.name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_library_function_is_typed_and_returns_an_answer(name: str) -> None:
    function = getattr(cf, name)
    hints = typing.get_type_hints(function)
    returned = get_args(hints["return"]) or (hints["return"],)
    assert all(issubclass(kind, cf.Answer) for kind in returned)
    assert all(parameter in hints for parameter in inspect.signature(function).parameters)
    assert inspect.getdoc(function)


JOB: dict[str, Any] = {"on": "h100-sxm:8", "global_batch": 64, "seq_len": 4096}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("predict", {"tpp": 4}, "unknown keyword 'tpp'; nearest: tp"),
        ("predict", {"tp": "2"}, "a whole number"),
        ("predict", {"tp": True}, "a whole number"),
        ("predict", {"on": 8}, "a text"),
        ("plan", {"tp": 4}, "unknown keyword 'tp'"),
        ("plan", {"objective": "banana"}, "unknown objective 'banana'"),
        ("plan", {"fix": "tp=2"}, "fix='tp=2'"),
        ("plan", {"top": 0}, "between 1 and 20"),
        ("plan", {"gpus": (4, 8), "explain": True}, "--explain cannot be combined"),
        ("plan", {"critical_batch": 100.0}, "needs --batches"),
        ("simulate", {"saving": "banana", "days": 1.0}, "unknown saving"),
        ("simulate", {"price": -1.0, "days": 1.0}, "not a finite number"),
        ("place", {"neighbours": "banana"}, "unknown neighbours"),
    ],
)
def test_what_a_command_line_would_refuse_the_library_refuses(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(cf.InputError) as refused:
        getattr(cf, name)("llama-3.1-8b", **{**JOB, **options})
    assert said in str(refused.value)


def test_an_answer_is_short_in_a_console_compares_and_travels() -> None:
    answer, again = (cf.predict("llama-3.1-8b", **JOB, sharding="fsdp") for _ in range(2))
    assert (
        repr(answer)
        == "<PredictAnswer: llama-3.1-8b on 8 h100-sxm, 64 x 4,096 tokens a step, bf16>"
    )
    assert pickle.loads(pickle.dumps(answer)) == answer == again
    assert json.loads(codec.to_json(answer.to_dict())) == answer.to_dict()
    with pytest.raises(FrozenInstanceError):
        answer.prediction = None  # type: ignore[misc, assignment]


def test_one_path_where_several_may_stand_is_a_list_of_one() -> None:
    trace = Path("tests/data/h200_traces/healthy-base.json.gz")
    both = [cf.audit(paths, no_cache=True) for paths in (trace, [str(trace)])]
    assert both[0].to_dict() == both[1].to_dict()
    with pytest.raises(cf.InputError, match="an empty text"):
        cf.audit("")


def computes(source: str) -> list[int]:
    """Lines of a module that have arithmetic."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ARITHMETIC)
    ]


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_the_command_line_computes_nothing(path: Path) -> None:
    waiting = path.name == "output.py"  # seconds until a line of progress is worth showing
    assert len(computes(path.read_text(encoding="utf-8"))) == int(waiting)


def test_arithmetic_would_be_seen() -> None:
    assert computes("def days(answer):\n    return answer.seconds / 86400") == [2]
