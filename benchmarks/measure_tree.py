"""Size, complexity and wording of the tree: lines, names, functions, docstrings, layout by hand.

    python -m benchmarks.measure_tree [FOLDER]        of a checkout; this one by default

Complexity is radon's cyclomatic complexity of functions and methods. A public name is a function, a
class or a constant of a module whose name has no leading underscore.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples")
VAGUE = set(
    "base common core facts helpers manager misc model settings source utils values".split()
)
"""File names that say nothing of what is inside."""


def public_names(source: str) -> list[str]:
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def complexities(source: str) -> list[int]:
    from radon.visitors import ComplexityVisitor

    visitor = ComplexityVisitor.from_code(source)
    methods = [method for kind in visitor.classes for method in kind.methods]
    return [block.complexity for block in (*visitor.functions, *methods)]


def sources(root: Path, folders: Sequence[str]) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def public_classes(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the texts under fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text.strip()


def is_fragment(text: str) -> bool:
    """Whether a docstring needs its name to be read."""
    return text.startswith(("Of ", "Of:"))


def hand_laid(text: str) -> list[int]:
    """Lines that the formatter is told to skip."""
    return [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")]


def has_one_definition(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return path.name != "__init__.py" and sum(isinstance(node, kinds) for node in body) == 1


def wording(root: Path) -> dict[str, int]:
    """Counts of what reads badly."""
    package = sources(root, ["src"])
    texts = [path.read_text(encoding="utf-8") for path in sources(root, FOLDERS)]
    classes = Counter(
        name
        for path in package
        for name in public_classes(ast.parse(path.read_text(encoding="utf-8")))
    )
    return {
        "classes of one name": sum(count > 1 for count in classes.values()),
        'docstrings with "Of"': sum(
            is_fragment(doc) for text in texts for _, doc in docstrings(ast.parse(text))
        ),
        "lines laid by hand": sum(len(hand_laid(text)) for text in texts),
        "one-definition files": sum(map(has_one_definition, package)),
        "vague file names": sum(path.stem in VAGUE for path in package),
        "lines of README": (root / "README.md").read_text(encoding="utf-8").count("\n"),
    }


def main(root: Path) -> None:
    folder = root / "src" / "computeflow"
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in sources.items()}
    scores = sorted(score for text in sources.values() for score in complexities(text))
    cli = sum(n for path, n in lines.items() if path.relative_to(folder).parts[0] == "cli")
    print(f"lines                 {sum(lines.values()):,}")
    print(f"files                 {len(sources):,}")
    print(f"lines of cli          {cli:,}")
    print(f"public names          {sum(len(public_names(text)) for text in sources.values()):,}")
    print(f"functions             {len(scores):,}")
    print(f"complexity p95, max   {scores[int(0.95 * len(scores))]}, {scores[-1]}")
    print(f"functions above 9     {sum(score > 9 for score in scores):,}")
    for what, count in wording(root).items():
        print(f"{what:22}{count:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
