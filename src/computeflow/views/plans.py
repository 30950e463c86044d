"""Plans as tables: the best layouts, the ones left out, why, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from computeflow.ledger import ACCOUNTS
from computeflow.units import format_seconds, format_share, format_si, format_usd
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from computeflow.planning.explain import AccountLoss, ChangeEffect
    from computeflow.planning.exports.config_writer import Exported
    from computeflow.planning.plans import Plan, Plans
    from computeflow.planning.pools import Pools
    from computeflow.prediction import Prediction
    from computeflow.workload import Layout

_USUAL = {"schedule": "1f1b", "offload": "none", "context": "ring"}


def plan_headline(answer: Plans, days: float | None = None, usd: float | None = None) -> str:
    """The first plan with its step, MFU and memory, and the whole training's totals where known."""
    prediction = answer.plans[0].prediction
    low, high = map(format_seconds, prediction.step_seconds_range)
    mfu = prediction.ledger.mfu
    layouts = f"{answer.count.evaluated:,} layouts"
    parts = [
        f"{format_seconds(prediction.step_seconds)} a step (predicted range {low} to {high})",
        *([] if mfu is None else [f"MFU {format_share(mfu)}"]),
        memory_text(prediction),
        *([] if days is None else [f"{days:,.1f} days for the whole training"]),
        *([] if usd is None else [format_usd(usd)]),
    ]
    first = f"Best of {layouts}" if answer.complete else f"Interrupted; best of {layouts} so far"
    return f"{first}: {layout_text(prediction.layout)}: {', '.join(parts)}."


def memory_text(prediction: Prediction) -> str:
    used, limit = prediction.memory_bytes, prediction.memory_limit_bytes
    return f"{format_si(used, 'B')} of {format_si(limit, 'B')}"


def plan_tables(answer: Plans, title: str) -> list[Table]:
    rows = tuple(_row(number, plan) for number, plan in enumerate(answer.plans, start=1))
    table = Table(
        title=title,
        columns=columns(
            "#",
            "layout",
            "step",
            "ranked by",
            "MFU",
            "memory",
            "W",
            right="#,step,ranked by,MFU,memory,W",
            wrap="layout",
        ),
        rows=rows,
        notes=_notes(answer),
        strong=frozenset({0}),
    )
    return [table, _count_table(answer)]


def layout_text(layout: Layout) -> str:
    """The parts of a layout that differ from the defaults, as people write them."""
    sizes = ("tp", "pp", "vp", "cp", "ep", "etp")
    parts = [f"{name} {getattr(layout, name)}" for name in sizes if getattr(layout, name) > 1]
    parts.append(layout.sharding + (f" x {layout.replicas}" if layout.replicas > 1 else ""))
    parts.append(f"micro-batch {layout.micro_batch}")
    if layout.recompute != "none":
        parts.append(f"{layout.recompute} recomputation")
    parts += [
        f"{name} {getattr(layout, name)}"
        for name, usual in _USUAL.items()
        if getattr(layout, name) != usual
    ]
    return ", ".join(parts)


def _row(number: int, plan: Plan) -> tuple[str, ...]:
    prediction = plan.prediction
    mfu, watts = prediction.ledger.mfu, prediction.watts_per_gpu
    return (
        str(number),
        layout_text(plan.layout),
        format_seconds(prediction.step_seconds),
        format_seconds(plan.pessimistic_seconds),
        format_share(mfu),
        format_si(prediction.memory_bytes, "B"),
        "-" if watts is None else f"{watts:.0f}",
    )


def _notes(answer: Plans) -> tuple[str, ...]:
    notes = ["Ranked by the step with everything that a plan relies on one deviation worse."]
    if not answer.complete:
        notes.append("Interrupted: no files and no reasons.")
    if answer.plans:
        line = answer.plans[0].prediction.evidence.line
        notes.append(f"{line[0].upper()}{line[1:]}.")
    best = min((p.pessimistic_seconds for p in answer.plans), default=0.0)
    if answer.plans and answer.plans[0].pessimistic_seconds > best:
        notes.append("Plan 1 ties with faster ones; it is simpler or closer to what was measured.")
    remarks: dict[str, list[str]] = {}
    for number, plan in enumerate(answer.plans, start=1):
        untested = ", ".join(plan.unmeasured)
        for remark in (untested and f"no published run here tests {untested}", *plan.warnings):
            if remark:
                remarks.setdefault(remark, []).append(str(number))
    notes += [
        f"Plan{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {remark}."
        for remark, numbers in remarks.items()
    ]
    return (" ".join(notes),)


def change_table(
    now: Prediction, best: Prediction, changes: Mapping[str, tuple[Any, Any]], price: float | None
) -> Table:
    """The file's layout beside the best one, and what the difference is worth."""
    gain = 1 - best.step_seconds / now.step_seconds
    rows = [
        ("step", format_seconds(now.step_seconds), format_seconds(best.step_seconds)),
        ("MFU", *(format_share(prediction.ledger.mfu) for prediction in (now, best))),
        ("memory", format_si(now.memory_bytes, "B"), format_si(best.memory_bytes, "B")),
        *((name, str(before), str(after)) for name, (before, after) in changes.items()),
    ]
    if not now.fits:
        title = "The file's layout does not fit into a device's memory; the best one that does"
    elif not changes:
        title = "Nothing to change: the file's layout is the best of those predicted"
    elif gain > 0:
        worth = "" if price is None else f", {format_usd(gain * now.layout.gpus * price)}/h"
        title = f"Changing the file saves {100 * gain:.1f} % of the step{worth}"
    else:
        title = f"The file's layout is {-100 * gain:.1f} % faster, by our median"
    return Table(
        title=title, columns=columns("setting", "now", "best", right="now,best"), rows=tuple(rows)
    )


def account_table(plans: Sequence[Plan], names: Sequence[str]) -> Table:
    """Seconds of a step on each of the named accounts, a column for each plan."""
    ledgers = [plan.prediction.ledger for plan in plans]
    numbers = [str(number) for number in range(1, len(plans) + 1)]
    rows = [
        (
            name,
            ACCOUNTS[name].owner,
            *(f"{ledger.accounts.get(name, 0.0) / ledger.gpus:.3f}" for ledger in ledgers),
        )
        for name in names
    ]
    rows.append(("total", "", *(f"{ledger.wall_seconds:.3f}" for ledger in ledgers)))
    rows += [
        (
            f"predicted range, {end}",
            "",
            *(f"{p.prediction.step_seconds_range[i]:.3f}" for p in plans),
        )
        for i, end in enumerate(("from", "to"))
    ]
    return Table(
        title="Seconds of a step by account, for each plan",
        columns=columns("account", "owner", *numbers, right=",".join(numbers)),
        rows=tuple(rows),
        strong=frozenset({len(names)}),
    )


def _count_table(answer: Plans) -> Table:
    count = answer.count
    ordered = sorted(count.pruned.items(), key=lambda item: -item[1])
    rows = [(f"{n:,}", reason) for reason, n in ordered]
    return Table(
        title=f"Layouts left out: {count.evaluated:,} of {count.enumerated:,} were predicted",
        columns=columns("layouts", "left out because", right="layouts", wrap="left out because"),
        rows=tuple(rows),
    )


def explanation_tables(
    plans: Sequence[Plan], lost: Sequence[Sequence[AccountLoss]], helps: Sequence[ChangeEffect]
) -> list[Table]:
    """The best plan's ledger, where each other plan is slower, and what would help."""
    tables = [ledger_table(plans[0].prediction.ledger)]
    rows = [
        (str(number), layout_text(plan.layout), _losses(parts))
        for number, (plan, parts) in enumerate(zip(plans[1:], lost, strict=True), start=2)
    ]
    if rows:
        tables.append(
            Table(
                title="Why the others come after the first (seconds of a step)",
                columns=columns("#", "layout", "differs by", right="#", wrap="layout,differs by"),
                rows=tuple(rows),
            )
        )
    tables.append(
        Table(
            title="What would change the first plan's step",
            columns=columns("change", "step", "gain", "note", right="step,gain", wrap="note"),
            rows=tuple(
                (
                    item.change,
                    "-" if item.step_seconds is None else format_seconds(item.step_seconds),
                    "-" if item.gain is None else f"{100 * item.gain:+.1f} %",
                    item.note,
                )
                for item in helps
            ),
        )
    )
    return tables


def _losses(parts: Sequence[AccountLoss]) -> str:
    total = sum(part.seconds for part in parts)
    large = [part for part in parts if abs(part.seconds) >= 0.1 * max(abs(total), 1e-9)][:4]
    return ", ".join(f"{part.account} {part.seconds:+.2f}" for part in large) or "nothing"


class FrontRow(NamedTuple):
    """A number of GPUs, its best plan, and the whole training's totals where they are known."""

    gpus: int
    plan: Plan
    days: float | None
    usd: float | None
    megawatt_hours: float | None


def front_table(rows: Sequence[FrontRow], infeasible: Sequence[int] = ()) -> Table:
    """GPU counts with their best plan: days, dollars and megawatt-hours of the whole training."""
    return Table(
        title="By number of devices, the best plan of each",
        columns=columns(
            "devices",
            "layout",
            "step",
            "days",
            "$",
            "MWh",
            right="devices,step,days,$,MWh",
            wrap="layout",
        ),
        rows=tuple(
            (
                f"{row.gpus:,}",
                layout_text(row.plan.layout),
                format_seconds(row.plan.prediction.step_seconds),
                "-" if row.days is None else f"{row.days:,.1f}",
                "-" if row.usd is None else f"{row.usd:,.0f}",
                "-" if row.megawatt_hours is None else f"{row.megawatt_hours:,.1f}",
            )
            for row in rows
        ),
        notes=_infeasible_note(infeasible),
    )


class BatchRow(NamedTuple):
    """A global batch, the tokens it needs, its best plan, and the whole training's totals."""

    batch: int
    tokens: float
    plan: Plan
    days: float | None
    usd: float | None
    megawatt_hours: float | None


def _infeasible_note(counts: Sequence[int]) -> tuple[str, ...]:
    listed = " or ".join(f"{count:,}" for count in counts)
    return (f"Nothing fits on {listed} devices.",) if counts else ()


def batches_headline(
    rows: Sequence[BatchRow],
) -> str:
    """The batch that takes the least time, which is also the cheapest on the same GPUs."""
    best = min(rows, key=lambda row: row.days or 0.0)
    cost = "" if best.usd is None else f", {format_usd(best.usd)}"
    return (
        f"Fastest to the same result: a global batch of {best.batch:,}, "
        f"{format_si(best.tokens, '')} tokens in {best.days or 0.0:,.1f} days{cost}, with "
        f"{layout_text(best.plan.layout)}."
    )


def batches_table(
    rows: Sequence[BatchRow],
) -> Table:
    """Global batches with the tokens that each needs to the same result."""
    return Table(
        title="By global batch, to the same result",
        columns=columns(
            "batch",
            "tokens",
            "layout",
            "step",
            "days",
            "$",
            right="batch,tokens,step,days,$",
            wrap="layout",
        ),
        rows=tuple(
            (
                f"{batch:,}",
                format_si(tokens, ""),
                layout_text(plan.layout),
                format_seconds(plan.prediction.step_seconds),
                "-" if days is None else f"{days:,.1f}",
                "-" if dollars is None else f"{dollars:,.0f}",
            )
            for batch, tokens, plan, days, dollars, _ in rows
        ),
        notes=("Tokens grow as 1 + batch / critical batch (arXiv:1812.06162).",),
    )


def pools_headline(pools: Pools, names: Sequence[str]) -> str:
    if pools.mixed_wins and pools.mixed is not None:
        return (
            f"Both pools together are fastest: {format_seconds(pools.mixed.step_seconds)} a step."
        )
    steps = {
        name: plan.prediction.step_seconds
        for name, plan in zip(names, pools.alone, strict=True)
        if plan is not None
    }
    if not steps:
        return "The job fits on neither pool."
    best = min(steps, key=lambda name: steps[name])
    return f"One pool alone is as good as both: {best}, {format_seconds(steps[best])} a step."


def pools_table(pools: Pools, names: Sequence[str]) -> Table:
    """Each pool alone, and both together."""
    rows = [
        (name, "nothing fits", "-", "-")
        if plan is None
        else (name, layout_text(plan.layout), "all", format_seconds(plan.prediction.step_seconds))
        for name, plan in zip(names, pools.alone, strict=True)
    ]
    if pools.mixed is not None:
        shares = " + ".join(f"{share:,}" for share in pools.mixed.shares)
        step = format_seconds(pools.mixed.step_seconds)
        rows.append(("both", "each as alone, gradients summed between", shares, step))
    return Table(
        title="Two pools",
        columns=columns(
            "pool", "layout", "sequences", "step", right="sequences,step", wrap="layout"
        ),
        rows=tuple(rows),
    )


def exports_table(exported: Sequence[Exported], folder: str) -> Table:
    """The files written, and the settings that each format cannot state or refuses."""
    rows = []
    for each in exported:
        if each.written is None:
            rows.append((each.name, each.version, "-", f"refused: {each.refused}"))
        else:
            files = ", ".join(each.written.files)
            rows.append((each.name, each.version, files, "; ".join(each.written.left_out)))
    return Table(
        title=f"The first plan, written to {folder}",
        columns=columns(
            "format", "checked against", "files", "left out", wrap="checked against,files,left out"
        ),
        rows=tuple(rows),
    )
