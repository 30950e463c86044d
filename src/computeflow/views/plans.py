"""Plans as tables: what to try, what it was chosen from, why, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from computeflow.ledger import ACCOUNTS
from computeflow.units import format_seconds, format_si
from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from computeflow.planning.explain import Lost, Sensitivity
    from computeflow.planning.exports.writing import Exported
    from computeflow.planning.plans import Plan, Plans
    from computeflow.planning.pools import Pools
    from computeflow.prediction import Prediction
    from computeflow.workload import Layout

_USUAL = {"schedule": "1f1b", "offload": "none", "context": "ring"}


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
    """The parts of a layout that are not usual, as people write them."""
    sizes = ("tp", "pp", "vp", "cp", "ep", "etp")
    parts = [f"{name} {getattr(layout, name)}" for name in sizes if getattr(layout, name) > 1]
    parts.append(layout.sharding + (f" x {layout.replicas}" if layout.replicas > 1 else ""))
    parts.append(f"micro-batch {layout.micro_batch}")
    if layout.recompute != "none":
        parts.append(f"recompute {layout.recompute}")
    parts += [
        f"{name} {getattr(layout, name)}"
        for name, usual in _USUAL.items()
        if getattr(layout, name) != usual
    ]
    return ", ".join(parts)


def _row(number: int, plan: Plan) -> tuple[str, ...]:
    found = plan.prediction
    mfu, watts = found.ledger.mfu, found.watts_per_gpu
    return (
        str(number),
        layout_text(plan.layout),
        format_seconds(found.step_seconds),
        format_seconds(plan.pessimistic_seconds),
        "-" if mfu is None else f"{100 * mfu:.0f} %",
        format_si(found.memory_bytes, "B"),
        "-" if watts is None else f"{watts:.0f}",
    )


def _notes(answer: Plans) -> tuple[str, ...]:
    notes = [] if answer.complete else ["interrupted: the best so far, without files and reasons"]
    best = min((p.pessimistic_seconds for p in answer.plans), default=0.0)
    if answer.plans and answer.plans[0].pessimistic_seconds > best:
        notes.append("1: tied with faster ones, and plainer or nearer to what was measured")
    for number, plan in enumerate(answer.plans, start=1):
        if plan.unmeasured:
            notes.append(f"{number}: no published run here tests {', '.join(plan.unmeasured)}")
        notes += [f"{number}: {warning}" for warning in plan.warnings]
    return tuple(notes)


def change_table(
    now: Prediction, best: Prediction, changes: Mapping[str, tuple[Any, Any]], price: float | None
) -> Table:
    """What there is, what it would be, and what that is worth."""
    gain = 1 - best.step_seconds / now.step_seconds
    rows = [
        ("step", format_seconds(now.step_seconds), format_seconds(best.step_seconds)),
        ("memory", format_si(now.memory_bytes, "B"), format_si(best.memory_bytes, "B")),
        *((name, str(before), str(after)) for name, (before, after) in changes.items()),
    ]
    if not now.fits:
        title = "The file's layout does not fit into a device's memory; the best that does"
    elif not changes:
        title = "Nothing to change: the file's layout is the best that was found"
    elif gain > 0:
        worth = "" if price is None else f", USD {gain * now.layout.gpus * price:,.0f} an hour"
        title = f"What to change: {100 * gain:.1f} % of the step{worth}"
    else:
        title = f"The file's layout is {-100 * gain:.1f} % faster, by our median"
    return Table(
        title=title, columns=columns("what", "now", "best", right="now,best"), rows=tuple(rows)
    )


def account_table(plans: Sequence[Plan], names: Sequence[str]) -> Table:
    """Seconds of a step on each of the named accounts, a column for each plan."""
    ledgers = [plan.prediction.ledger for plan in plans]
    numbers = [str(number) for number in range(1, len(plans) + 1)]
    rows = [
        (
            name,
            ACCOUNTS[name].owner,
            *(f"{one.accounts.get(name, 0.0) / one.gpus:.3f}" for one in ledgers),
        )
        for name in names
    ]
    rows.append(("total", "", *(f"{one.wall_seconds:.3f}" for one in ledgers)))
    rows += [
        (f"80 % of runs, {end}", "", *(f"{p.prediction.step_seconds_range[i]:.3f}" for p in plans))
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
        title=f"Of {count.enumerated:,} layouts, {count.evaluated:,} were predicted",
        columns=columns("layouts", "left out because", right="layouts", wrap="left out because"),
        rows=tuple(rows),
    )


def explanation_tables(
    plans: Sequence[Plan], lost: Sequence[Sequence[Lost]], helps: Sequence[Sensitivity]
) -> list[Table]:
    """The best plan's ledger, what each runner-up loses, what would help."""
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


def _losses(parts: Sequence[Lost]) -> str:
    total = sum(part.seconds for part in parts)
    large = [part for part in parts if abs(part.seconds) >= 0.1 * max(abs(total), 1e-9)][:4]
    return ", ".join(f"{part.account} {part.seconds:+.2f}" for part in large) or "nothing"


class FrontRow(NamedTuple):
    """A number of GPUs with its best plan, and the whole training's totals where they are known."""

    gpus: int
    plan: Plan
    days: float | None
    usd: float | None
    megawatt_hours: float | None


def front_table(rows: Sequence[FrontRow], infeasible: Sequence[int] = ()) -> Table:
    """GPU counts with their best plan: days, dollars and megawatt-hours of the whole training."""
    return Table(
        title="By number of GPUs, the best plan of each",
        columns=columns(
            "GPUs",
            "layout",
            "step",
            "days",
            "USD",
            "MWh",
            right="GPUs,step,days,USD,MWh",
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
        notes=tuple(f"nothing fits on {gpus:,} GPUs" for gpus in infeasible),
    )


def batches_table(
    rows: Sequence[tuple[int, float, Plan, float | None, float | None, float | None]],
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
            "USD",
            right="batch,tokens,step,days,USD",
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
        notes=("tokens grow as 1 + batch / critical batch (arXiv:1812.06162)",),
    )


def pools_table(found: Pools, names: Sequence[str]) -> Table:
    """Each pool alone, and both together."""
    rows = [
        (name, "nothing fits", "-", "-")
        if plan is None
        else (name, layout_text(plan.layout), "all", format_seconds(plan.prediction.step_seconds))
        for name, plan in zip(names, found.alone, strict=True)
    ]
    if found.mixed is not None:
        shares = " + ".join(f"{share:,}" for share in found.mixed.shares)
        step = format_seconds(found.mixed.step_seconds)
        rows.append(("both", "each as alone, gradients summed between", shares, step))
    verdict = "both together win" if found.mixed_wins else "one pool alone is as good"
    return Table(
        title="Two pools",
        columns=columns(
            "pool", "layout", "sequences", "step", right="sequences,step", wrap="layout"
        ),
        rows=tuple(rows),
        notes=(verdict,),
    )


def exports_table(exported: Sequence[Exported], folder: str) -> Table:
    """What was written, and what each format cannot say or take."""
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
            "format", "checked against", "files", "not said", wrap="checked against,files,not said"
        ),
        rows=tuple(rows),
    )
