"""Size and complexity of the source tree: lines, files, public names, functions, lines of `cli`.

    python -m benchmarks.measure_tree [FOLDER]

Complexity is radon's cyclomatic complexity of functions and methods. A public name is a function, a
class or a constant of a module whose name has no leading underscore.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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


def main(folder: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "computeflow")
