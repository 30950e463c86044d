"""Rules of CONTRIBUTING.md: where a third-party library is imported, who touches the machine."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "computeflow"
HOMES = {
    "amdsmi": ("collection/agent/amd_readings.py",),
    "click": ("cli/",),
    "duckdb": ("files/parquet.py",),
    "fastapi": ("web/",),
    "google": ("telemetry/xplane/protobuf.py",),  # protobuf
    "isal": ("telemetry/gzip_reader.py",),
    "jax": ("recorder/jax_hooks.py",),
    "msgspec": (
        "codec.py", "telemetry/kineto/kineto_events.py", "telemetry/logs/mlperf_lines.py",
        "telemetry/logs/tables.py",  # decoding is the cost of traces and of logs in JSON
    ),
    "numpy": ("",),
    "opentelemetry": ("collection/agent/otlp_push.py",),
    "plotly": ("views/html_report.py",),
    "prometheus_client": (  # what exporters wrote is read; what agents and collectors know is written
        "telemetry/metrics/prometheus_text.py", "collection/agent/exposition.py",
        "collection/outputs/metrics.py",
    ),
    "pynvml": ("collection/agent/nvml_library.py",),
    "ray": ("lab/probe/on_ray.py", "engines.py"),  # on each node; over files or replicas
    "rich": (
        "views/tables.py", "cli/output.py",  # tables; the terminal that shows them
        "cli/live_view.py",  # the terminal that `top` draws on
    ),
    "scipy": ("prediction/validation/fitting.py",),
    "starlette": ("collection/collector/service.py",),
    "torch": ("lab/", "recorder/"),  # the recorder has it from the user's process alone
    "uvicorn": ("collection/collector/http_server.py",),
    "yaml": ("files/parsing.py",),
}  # fmt: skip
"""Areas (with a slash) or modules in which each library may be imported."""
EAGER = {"click", "fastapi", "msgspec", "numpy", "torch"}
"""Libraries that modules may import at their top; all others are imported when they are used."""

OPEN_FILES = (
    "actions/", "answers/", "cli/", "collection/", "lab/", "recorder/", "telemetry/",
    "web/", "files/",
    "collection/sealing.py",
    "auditing/baselines.py",  # what a later audit is compared with
    "catalog/loading.py", "catalog/huggingface.py",
    # These open packaged data by themselves; they are to call catalog.files.
    "diagnosis/figures.py", "simulation/fault_trace.py",
)  # fmt: skip
WRITE_FILES = (
    "files/writing.py",
    "files/cache.py",
    "lab/probe/storage.py",  # measures a disk with a file of its own
    "lab/trainer/training_loop.py",  # folders for what torch writes
    "recorder/",  # standard library only, and appends
    "collection/",
    "actions/control_loop.py",
    "actions/slurm/slurm_session.py",  # scripts of jobs, lists of hosts
)
READ_CLOCKS = (
    "actions/control_loop.py", "actions/controller_lock.py", "answers/", "cli/", "collection/",
    "lab/", "recorder/", "web/",
    "telemetry/metrics/prometheus_server.py",
)  # fmt: skip
"""Modules that may read clocks: for the date, the time of a search, or a server's timeout."""
PRINT = ("cli/", "lab/")
FILE_CALLS = set(
    "exists glob is_dir is_file iterdir mkdir open read_bytes read_text rename rglob stat touch "
    "unlink write_bytes write_text".split()
)
WRITE_CALLS = set(
    "makedirs mkdir mkdtemp mkstemp rename renames replace rmdir rmtree symlink_to touch truncate "
    "unlink write_bytes write_text".split()
)
CLOCK_CALLS = set(
    "date.today datetime.now datetime.today datetime.utcnow time.monotonic time.perf_counter "
    "time.process_time time.sleep time.time".split()
)

MODULES = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]


def libraries(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Third-party libraries that a module imports, by statement or by name; whether at its top."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
        for name in names:
            library = name.partition(".")[0]
            if library != "computeflow" and library not in sys.stdlib_module_names:
                yield library, node in tree.body


def effects(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], str]]:
    """Calls that print, read a clock or touch files, with the places where such calls may be."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        if call == "print":
            yield PRINT, call
        elif ".".join(call.split(".")[-2:]) in CLOCK_CALLS:
            yield READ_CLOCKS, call
        elif call == "open" or (
            isinstance(node.func, ast.Attribute) and node.func.attr in FILE_CALLS
        ):
            yield OPEN_FILES, call
        if writes(node, call):
            yield WRITE_FILES, call


def writes(node: ast.Call, call: str) -> bool:
    """Whether a call makes, changes or removes a file; texts and dataclasses have a `replace`, too."""
    name = call.rpartition(".")[2]
    if name == "open":
        modes = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
        texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
        return any(re.fullmatch("[rb]*[wxa+][bt+]*", text) for text in texts)
    if name == "replace":
        return call == "os.replace" or (len(node.args) == 1 and not node.keywords and "." in call)
    return name in WRITE_CALLS


Facts = tuple[list[tuple[str, bool]], list[tuple[tuple[str, ...], str]]]
"""Imports and calls of a module."""


def facts_of(source: str) -> Facts:
    tree = ast.parse(source)
    return list(libraries(tree)), list(effects(tree))


@cache
def facts_of_module(module: str) -> Facts:
    return facts_of((PACKAGE / module).read_text())


def broken_rules(module: str, facts: Facts) -> list[str]:
    imports, calls = facts
    return [
        library
        for library, at_top in imports
        if not module.startswith(HOMES.get(library, ())) or (at_top and library not in EAGER)
    ] + [call for places, call in calls if not module.startswith(places)]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_the_rules(module: str) -> None:
    assert broken_rules(module, facts_of_module(module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import click",
        "def f():\n    from torch import nn",
        "import_module('isal.isal_zlib')",
        "import requests",
        "print(1)",
        "path.open('wb')",
        "open('x', mode='a')",
        "os.replace(a, b)",
        "partial.replace(path)",
        "shutil.rmtree(folder)",
        "open('x')",
        "(DATA / 'x.toml').read_text()",
        "datetime.datetime.now(tz=UTC)",
        "time.monotonic()",
    ],
)
def test_a_module_that_breaks_a_rule_is_caught(source: str) -> None:
    assert broken_rules("ledger/book.py", facts_of(source))


def test_a_slow_library_is_not_imported_at_the_top_of_its_module() -> None:
    assert broken_rules("views/html_report.py", facts_of("import plotly")) == ["plotly"]
    assert broken_rules("views/html_report.py", facts_of("def f():\n    import plotly")) == []


@pytest.mark.parametrize(
    ("place", "what"),
    [(place, library) for library, places in HOMES.items() for place in places]
    + [(place, "files") for place in OPEN_FILES]
    + [(place, "clock") for place in READ_CLOCKS],
)
def test_every_exception_is_needed(place: str, what: str) -> None:
    found = [facts_of_module(module) for module in MODULES if module.startswith(place)]
    kinds = {"files": OPEN_FILES, "clock": READ_CLOCKS}
    assert any(what in dict(imports) or kinds.get(what) in dict(calls) for imports, calls in found)


@pytest.mark.parametrize("package", ["flight", "logs", "memory", "metrics"])
def test_what_is_read_is_bounded_in_one_place(package: str) -> None:
    """A number of ten thousand or more that is called the most of something is a limit."""
    limit = re.compile(r"^_?(?:MAX|MOST)_[A-Z_]+ = (?:\d{5,}|\d+_|\d+ <<|\d+ \*)", re.MULTILINE)
    folder = PACKAGE / "telemetry" / package
    found = [name for file in folder.rglob("*.py") for name in limit.findall(file.read_text())]
    assert found == []
