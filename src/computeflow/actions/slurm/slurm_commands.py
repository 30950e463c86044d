"""The command lines of Slurm for each step, as lists of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from computeflow.actions.slurm.slurm_state import names, number
from computeflow.actions.steps import Submit
from computeflow.units import HOUR_SECONDS

Words = tuple[str, ...]
MARK = "computeflow:"
"""Before the key of an action, in comments of jobs and reasons of nodes."""
SHOW_JOBS: Words = ("squeue", "--json")
SHOW_NODES: Words = ("sinfo", "--json")
SHOW_CONFIG: Words = ("scontrol", "show", "config")
SHOW_RESERVATIONS: Words = ("scontrol", "-o", "show", "reservation")
_MINUTE = 60


def mark(key: str) -> str:
    return f"{MARK}{key}"


def drain(node: str, reason: str, key: str) -> Words:
    return _update(f"NodeName={node}", "State=DRAIN", f"Reason={mark(key)} {reason}".strip())


def drain_again(node: str, reason: str) -> Words:
    """Drained with the reason that it had before."""
    return _update(f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def resume(node: str) -> Words:
    return _update(f"NodeName={node}", "State=RESUME")


def reservation(key: str) -> str:
    """The name of an action's reservation."""
    return f"computeflow-{key}"


def reserve(node: str, name: str, user: str = "USER") -> Words:
    """Without an end: a node that nobody goes on with is kept, not given to jobs."""
    fields = ("StartTime=now", "Duration=infinite", "Flags=MAINT,IGNORE_JOBS")
    create = ("scontrol", "create", "reservation", f"ReservationName={name}")
    return (*create, f"Nodes={node}", f"Users={user}", *fields)


def unreserve(name: str) -> Words:
    return ("scontrol", "delete", f"ReservationName={name}")


def submit_probe(
    node: str, name: str, script: str, probe: Sequence[str], key: str, output: str = ""
) -> Words:
    return (
        "sbatch",
        "--parsable",
        f"--comment={mark(key)}",
        f"--reservation={name}",
        f"--nodelist={node}",
        "--nodes=1",
        "--exclusive",
        "--no-requeue",
        "--job-name=computeflow-probe",
        *_given("output", output),
        script,
        *probe,
    )


def requeue_held(job: str) -> Words:
    return ("scontrol", "requeuehold", job)


def exclude(job: str, nodes: Sequence[str], comment: str) -> Words:
    """Also starts it at once: a requeued job waits two minutes otherwise."""
    return _update(
        f"JobId={job}", f"ExcNodeList={','.join(nodes)}", "StartTime=now", f"Comment={comment}"
    )


def place(job: str, nodes: Sequence[str]) -> Words:
    return _update(f"JobId={job}", f"ReqNodeList={','.join(nodes)}")


def release(job: str) -> Words:
    return ("scontrol", "release", job)


def shrink(job: str, keep: Sequence[str]) -> Words:
    return _update(f"JobId={job}", f"NodeList={','.join(keep)}")


def cancel(job: str) -> Words:
    return ("scancel", job)


def kill(job: str) -> Words:
    return ("scancel", "--signal=KILL", job)


def send_signal(job: str, name: str) -> Words:
    return ("scancel", f"--signal={name}", job)


def batch_script(job: str) -> Words:
    return ("scontrol", "write", "batch_script", job, "-")


def _update(*fields: str) -> Words:
    return ("scontrol", "update", *fields)


def submit(step: Submit, key: str) -> Words:
    options = [
        f"--nodes={step.nodes}",
        f"--ntasks-per-node={step.tasks_per_node}",
        *_given("gpus-per-node", step.gpus_per_node or ""),
        *_given("nodelist", ",".join(sorted(set(step.node_order)))),
        *_given("exclude", ",".join(step.exclude)),
        *_given("switches", _switches(step)),
        *_given("job-name", step.name),
        *_given("partition", step.partition),
        *_given("account", step.account),
        *_given("chdir", step.folder),
        *_given("output", f"{step.folder}/slurm-%j.out" if step.folder else ""),
    ]
    if step.hold:
        options.append("--hold")
    if step.node_order:
        options.append("--distribution=arbitrary")
    return (
        "sbatch",
        "--parsable",
        f"--comment={mark(key)}",
        *options,
        step.script,
        *step.arguments,
    )


def _switches(step: Submit) -> str:
    if step.max_switches is None:
        return ""
    minutes = round(step.switch_wait_seconds / _MINUTE)
    hours, minutes = divmod(minutes, round(HOUR_SECONDS / _MINUTE))
    return f"{step.max_switches}@{hours:02d}:{minutes:02d}:00"


def resubmit(
    row: Mapping[str, Any],
    script: str,
    excluded: Sequence[str],
    key: str,
    *,
    user: str = "",
    arguments: Sequence[str] | None = None,
) -> Words:
    """The job of a row of `squeue --json` again; its script's own `#SBATCH` lines hold, too.

    `user`: in whose name, if not the caller's. Without `arguments` those that Slurm shows are taken,
    which it joins with spaces.
    """
    nodes, tasks = number(row.get("node_count")), number(row.get("tasks_per_node"))
    minutes = number(row.get("time_limit"))
    comment = f"{row.get('comment') or ''} {mark(key)}".strip()
    options = [
        *_given("uid", user),
        *_given("nodes", f"{nodes:.0f}" if nodes else ""),
        *_given("ntasks-per-node", f"{tasks:.0f}" if tasks else ""),
        *_given(
            "gres", str(row.get("tres_per_node") or "").removeprefix("gres:").replace("gres/", "")
        ),
        *_given("time", f"{minutes:.0f}" if minutes else ""),
        *_given("partition", row.get("partition")),
        *_given("account", row.get("account")),
        *_given("qos", row.get("qos")),
        *_given("job-name", row.get("name")),
        *_given("chdir", row.get("current_working_directory")),
        *_given("output", row.get("standard_output")),
        *_given("error", row.get("standard_error")),
        *_given("exclude", ",".join(sorted({*names(row.get("excluded_nodes")), *excluded}))),
    ]
    options.append("--requeue" if row.get("requeue") is not False else "--no-requeue")
    if arguments is None:
        arguments = str(row.get("command") or "").split()[1:]
    return (
        "sbatch",
        "--parsable",
        "--open-mode=append",
        f"--comment={comment}",
        *options,
        script,
        *arguments,
    )


def _given(option: str, value: Any) -> list[str]:
    return [f"--{option}={value}"] if value else []
