"""PyTorch's own sharding (FSDP2, DDP): one Python file of the plan and the calls that carry it out.

The file opens with a literal `PLAN`; the rest is `fsdp2_template.py.txt`. Reading takes the literal
out of the syntax tree: a file is never run.
"""

from __future__ import annotations

import ast
import re
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from computeflow.errors import InputError
from computeflow.files.languages import PYTHON_OPENING, comment, to_python
from computeflow.files.reading import read_text
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    ConfigKeys,
    bounded,
    contradiction,
    cut_sizes,
    header,
    not_expressed,
    reading,
    stated,
)
from computeflow.workload.layout import RECOMPUTES, SHARDINGS

_PLAN = re.compile(r"^PLAN\b.*=\s*\{", re.MULTILINE)
_EMPTY = "PLAN = {}\n"
_SIZES = ("gpus", "micro_batch", "replicas")


class Fsdp2:
    name = "fsdp2"
    version = "torch 2.13"
    expresses = frozenset(
        "gpus micro_batch recompute sharding replicas offload "
        "model global_batch seq_len precision optimizer".split()
    )
    choices: ClassVar[Choices] = {
        "offload": ("none", "parameters"),
        "precision": ("fp32", "tf32", "bf16"),
        "optimizer": ("adamw",),
    }
    capabilities: ClassVar[Choices] = {}

    def write(self, setup: Setup) -> WrittenConfig:
        for name, size in cut_sizes(setup.layout).items():
            why = "it shards and replicates whole models only; torchtitan cuts them too"
            raise contradiction("FSDP2", f"{name} = {size}", f"dp = {setup.dp}", why)
        left_out = [
            line for line in not_expressed(setup, self) if not line.startswith("context = ")
        ]
        title = f"PyTorch FSDP2 and DDP ({self.version}), written by ComputeFlow."
        start = f"torchrun --nnodes {setup.nodes} --nproc-per-node {setup.node_devices} fsdp2.py"
        opening = PYTHON_OPENING + comment([*header(title, setup, left_out), start])
        body = _template().replace(_EMPTY, _literal(_plan(setup, self)))
        return WrittenConfig(files={"fsdp2.py": opening + body}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return "def parallelize(" in text and bool(_PLAN.search(text))

    def read(self, text: str, where: str) -> ConfigReading:
        settings = ConfigKeys(stated_plan(bounded(text, where), where), where)
        notes: list[str] = []
        layout: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
        layout |= stated(
            **{name: settings.size(name) for name in _SIZES},
            sharding=settings.choice("sharding", {name: name for name in SHARDINGS}),
            recompute=settings.choice("recompute", {name: name for name in RECOMPUTES}),
            offload=settings.choice("offload", {n: n for n in self.choices["offload"]}),
        )
        job = stated(
            model=settings.text("model"),
            global_batch=settings.size("global_batch"),
            seq_len=settings.size("seq_len"),
            precision=settings.choice("precision", {n: n for n in self.choices["precision"]}),
            optimizer=settings.choice("optimizer", {n: n for n in self.choices["optimizer"]}),
        )
        _check(settings, job, layout)
        steps = settings.size("steps")
        if steps is not None and {"global_batch", "seq_len"} <= job.keys():
            job["tokens"] = float(steps * job["global_batch"] * job["seq_len"])
        return reading(self.name, settings, job, layout, notes, stack="torch")


def _template() -> str:
    return read_text(Path(__file__).with_name("fsdp2_template.py.txt"))


def _plan(setup: Setup, framework: Fsdp2) -> dict[str, Any]:
    """The plan as the file carries it out, where that is not all of it."""
    job, layout, choices = setup.job, setup.layout, framework.choices
    plan: dict[str, Any] = {
        "model": job.model.name,
        "gpus": layout.gpus,
        "sharding": layout.sharding,
        "replicas": layout.replicas,
        "recompute": layout.recompute,
        "offload": layout.offload if layout.offload in choices["offload"] else "none",
        "precision": job.precision if job.precision in choices["precision"] else "bf16",
        "optimizer": "adamw",
        "micro_batch": layout.micro_batch,
        "accumulation": setup.accumulation,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
    }
    return plan if setup.steps is None else plan | {"steps": setup.steps}


def _literal(plan: dict[str, Any]) -> str:
    lines = [f"    {to_python(key)}: {to_python(value)}," for key, value in plan.items()]
    return "\n".join(["PLAN = {", *lines, "}\n"])


def stated_plan(text: str, where: str) -> Any:
    """What the file's PLAN says."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        lines = str(error).splitlines() or ["no reason given"]
        raise InputError(f"{where}: not Python: {lines[0][:200]}") from None
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    plans = [node.value for node in assigned if _names(node) == ["PLAN"]]
    if len(plans) != 1:
        raise InputError(f"{where}: PLAN is set {len(plans)} times at the top level; set it once")
    try:
        return ast.literal_eval(plans[0])
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise InputError(f"{where}: PLAN is not a literal: write its values out") from None


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _check(settings: ConfigKeys, job: dict[str, Any], layout: dict[str, Any]) -> None:
    """Check the file's numbers against each other."""
    sharding, replicas = layout.get("sharding", "fsdp"), layout.get("replicas", 1)
    factors: tuple[Any, ...] = (
        layout.get("gpus"),
        layout.get("micro_batch"),
        settings.size("accumulation"),
    )
    if replicas > 1 and sharding != "hsdp":
        raise settings.against(f"replicas = {replicas}", f"sharding = {sharding}", "hsdp has them")
    if (factors[0] or 0) % replicas:
        raise settings.against(f"gpus = {factors[0]}", f"replicas = {replicas}", "uneven replicas")
    if layout.get("offload") == "parameters" and sharding in ("ddp", "zero1", "zero2"):
        raise settings.against(
            "offload = parameters", f"sharding = {sharding}", "weights on the host are sharded"
        )
    total = job.get("global_batch")
    if None not in (total, *factors) and prod(factors) != total:
        raise settings.against(
            f"global_batch = {total}",
            f"gpus x micro_batch x accumulation = {' x '.join(map(str, factors))}",
            "they are the same number",
        )
