"""Draw the map in docs/design.md from the source: its layers, and what three commands call.

Nothing is imported or run. A name is followed from where it is used to where it is defined, through
imports at the top of a module and inside functions. Neglected: what is reached only by a method's name.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "computeflow"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- map:begin -->\n", "<!-- map:end -->\n"
WIDTH = 80
FLOWS = {"audit": "audits", "plan": "plans", "simulate": "simulations"}
"""Commands that are drawn, and the module of `answers` that has their function."""
FOUNDATION = "ledger"
"""Flows are drawn down to its layer: what lies below serves every package."""
MAX_NAMES = 8
"""Names that a step of a flow shows: those that are used first."""


@dataclass(frozen=True)
class Module:
    """The imports and definitions of one module, by name."""

    doc: str
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (module, name there)."""
    definitions: dict[str, ast.AST] = field(default_factory=dict)


@cache
def read_module(name: str) -> Module | None:
    path = SOURCE.joinpath(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    module = Module(ast.get_docstring(tree) or "")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.definitions[node.name] = node
        for variable in _variables(node):
            module.definitions[variable] = node
            if variable == "_EXPORTS" and isinstance(exports := _value(node), dict):
                for exported, inner in exports.items():
                    module.imports[exported] = (f"{name}.{inner}", exported)
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    for statement in statements:
        if (source := statement.module or "").startswith("computeflow"):
            for alias in statement.names:
                module.imports[alias.asname or alias.name] = (source, alias.name)
    return module


def _variables(node: ast.stmt) -> list[str]:
    """Names that a statement assigns: a table of functions is followed, too."""
    targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _value(node: ast.stmt) -> object:
    try:
        return ast.literal_eval(getattr(node, "value", None) or ast.Constant(None))
    except ValueError:
        return None


@cache
def find_definition(module: str, name: str) -> tuple[str, str] | None:
    """The module and name of a definition, through packages that pass the name on."""
    known = read_module(module)
    if known is None:
        return None
    if name in known.definitions:
        return (module, name) if "." in module else None
    target = known.imports.get(name, (module, name))
    return find_definition(*target) if target != (module, name) else None


def uses(module: str, name: str) -> Iterator[tuple[str, str]]:
    """Functions and classes that a definition uses, as (module, name), in their order."""
    known = read_module(module)
    assert known is not None
    nodes = (n for n in ast.walk(known.definitions[name]) if isinstance(n, ast.expr))
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
        target = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            target = find_definition(module, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = known.imports.get(node.value.id)
            target = find_definition(".".join(owner), node.attr) if owner else None
        if target is not None:
            yield target


def package_of(module: str) -> str:
    return module.split(".")[1]


@dataclass(frozen=True)
class Step:
    """One package in a flow: who calls it, and by which names."""

    callers: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)


def flow(module: str, name: str) -> dict[str, Step]:
    """By package: what the packages above it use of it, from one function down."""
    seen, waiting = {(module, name)}, [(module, name)]
    steps: dict[str, Step] = {}
    for here in waiting:
        for there in uses(*here):
            package, caller = package_of(there[0]), package_of(here[0])
            if package != caller:
                step = steps.setdefault(package, Step())
                step.callers.add(caller)
                if there[1] not in step.names:
                    step.names.append(there[1])
            if there not in seen:
                seen.add(there)
                waiting.append(there)
    return steps


@cache
def imports() -> dict[str, set[str]]:
    """By package: the packages that it imports."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        inner = parts[:-1] if parts[-1] == "__init__" else parts
        module = read_module(".".join(("computeflow", *inner)))
        assert module is not None
        known = found.setdefault(parts[0], set())
        for target, name in module.imports.values():
            package = target.split(".")[1] if "." in target else name
            if package != parts[0] and not package.startswith("__"):
                known.add(package)
    return found


@cache
def level(package: str) -> int:
    """One above the highest package that it imports."""
    return 1 + max(map(level, imports()[package]), default=-1)


def reached(package: str) -> set[str]:
    return set().union(*({other} | reached(other) for other in imports()[package]))


def nearest(package: str) -> list[str]:
    """The packages it imports, without those that these import themselves."""
    direct = imports()[package]
    passed = set().union(*map(reached, direct))
    return sorted(direct - passed, key=lambda other: (-level(other), other))


def layers() -> list[list[str]]:
    """Packages by level, highest first."""
    names = sorted(imports())
    highest = max(map(level, names))
    return [[name for name in names if level(name) == n] for n in range(highest, -1, -1)]


def summary(package: str) -> str:
    """The first sentence of a package's docstring."""
    module = read_module(f"computeflow.{package}")
    assert module is not None
    first = " ".join(module.doc.split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) |[:;,]? start with ", first, flags=re.IGNORECASE)[0]
    return sentence.rstrip(".") + "."


def draw_layers() -> str:
    indent = max(map(len, imports())) + 2
    edge = "─" * (WIDTH - 2)
    blocks = []
    for names in layers():
        lines = []
        for name in names:
            text = textwrap.wrap(summary(name), WIDTH - 4 - indent)
            if nearest(name):
                text += [f"↓ {', '.join(nearest(name))}"]
            lines += [f"{'' if n else name:{indent}}{line}" for n, line in enumerate(text)]
        blocks.append("".join(f"│ {line:{WIDTH - 4}} │\n" for line in lines))
    return f"┌{edge}┐\n" + f"├{edge}┤\n".join(blocks) + f"└{edge}┘\n"


def draw_flow(command: str) -> str:
    entry = f"computeflow.answers.{FLOWS[command]}"
    steps = flow(entry, command)
    shown = sorted(
        (name for name in steps if level(name) >= level(FOUNDATION)),
        key=lambda name: (-level(name), name),
    )
    lines = [f"answers.{FLOWS[command]}.{command}"]
    for number, name in enumerate(shown):
        last = number == len(shown) - 1
        callers = sorted(steps[name].callers & {*shown, "answers"}, key=lambda c: (-level(c), c))
        bar = " " if last else "│"
        lines += textwrap.wrap(
            f"{'└' if last else '├'}─ {name}  ← {', '.join(callers)}",
            WIDTH,
            subsequent_indent=f"{bar}            ",
        )
        functions = [n for n in steps[name].names if n[0].islower()]
        values = [n for n in steps[name].names if n[0].isupper() and not n.isupper()]
        for word, names in (("calls", functions), ("values", values)):
            if names:
                more = ", ..." if len(names) > MAX_NAMES else ""
                text = f"{word:8}{', '.join(names[:MAX_NAMES])}{more}"
                lines += textwrap.wrap(
                    text,
                    WIDTH,
                    initial_indent=f"{bar}    ",
                    subsequent_indent=f"{bar}            ",
                    break_long_words=False,
                )
    return "\n".join(lines) + "\n"


def draw_map() -> str:
    """The section of docs/design.md between the two marks."""
    flows = "\n".join(draw_flow(command) for command in FLOWS)
    return f"""
Drawn from the imports by `make docs`. Every package stands above the packages that it imports. ↓
lists the nearest of them; what those import themselves is left out.

```text
{draw_layers()}```

Three commands followed down the layers, from their function in `answers`: every package with its
callers (←), the functions that they call and the values that are passed, in the order of use.

```text
{flows}```

"""


def with_map(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{draw_map()}{END}{after}"
