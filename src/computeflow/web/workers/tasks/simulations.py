"""A whole run with failures: its timeline, checkpoint intervals, spares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

from computeflow.answers.plans import PlanAnswer, plan
from computeflow.answers.simulations import simulate
from computeflow.views.plans import layout_text
from computeflow.views.simulations import step_range_seconds, step_range_sentence
from computeflow.web.page_answers import page_content
from computeflow.web.part_data import parts_data
from computeflow.web.workers.tasks.packaged_catalog import model_name, shared_catalog


class SimulatedJob(TypedDict):
    model: str
    device: str
    gpus: int
    sequence: int
    batch: int
    precision: str
    tokens: str
    price: float | None
    failures: str
    interval: float | None
    """Minutes between checkpoints; None: the best one."""
    spares: int | None
    """Spare nodes; None: as many as are needed."""
    simulations: int
    sensitivity: bool


def simulate_content(
    *, progress: Callable[[str], None], **job: Unpack[SimulatedJob]
) -> dict[str, Any]:
    facts, on = shared_catalog(), f"{job['device']}:{job['gpus']}"
    same: dict[str, Any] = {
        "model": model_name(job["model"]),
        "on": on,
        "seq_len": job["sequence"],
        "global_batch": job["batch"],
        "precision": job["precision"],
        "catalog": facts,
    }
    progress("planning")
    planned = plan(**same, quick=True, top=1)
    assert isinstance(planned, PlanAnswer)
    layout = asdict(planned.best.layout)
    layout.pop("gpus")
    progress(f"{job['simulations']:,} simulations")
    interval = job["interval"]
    answer = simulate(
        **same,
        **layout,
        tokens=job["tokens"],
        price=job["price"],
        failures=job["failures"],
        interval=None if interval is None else f"{interval:g}min",
        spares=job["spares"],
        simulations=job["simulations"],
        sensitivity=job["sensitivity"],
        best=True,
        timeline=True,
    )
    curve = answer.interval
    return page_content(
        "Simulate",
        answer,
        headline=f"{answer.headline} {step_range_sentence(answer.simulation)}".strip(),
        seconds_with_step_range=step_range_seconds(answer.simulation),
        interval_range_seconds=None if curve is None else curve.flat_seconds,
        layout=layout_text(planned.best.layout),
        parts=parts_data(answer.parts()),
        command=_command(job, layout_options(layout)),
    )


def layout_options(layout: dict[str, Any]) -> str:
    """Fields of a layout that differ from the plainest, as options."""
    return " ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in layout.items()
        if value not in (1, "none", "1f1b", "ring")
    )


def _command(job: SimulatedJob, layout: str) -> str:
    price, interval, spares = job["price"], job["interval"], job["spares"]
    words = [
        f"computeflow simulate {job['model']} --on {job['device']}:{job['gpus']}",
        f"--global-batch {job['batch']} --seq-len {job['sequence']}",
        f"--precision {job['precision']} --tokens {job['tokens']} {layout}",
        f"--price {price:g}" if price is not None else "",
        f"--interval {interval:g}min" if interval is not None else "",
        f"--spares {spares}" if spares is not None else "",
        "--sensitivity" if job["sensitivity"] else "",
        f"--failures {job['failures']} --simulations {job['simulations']} --best --timeline",
    ]
    return " ".join(filter(None, words))
