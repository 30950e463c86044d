"""A drained node is probed before it returns: `advance_probe`.

Slurm starts nothing on a drained node. So the node is reserved first (for maintenance, for the user of
the controller), then resumed: nobody's job can start on it but the probe, which is submitted into the
reservation. Accepted, the reservation goes; refused, the node is drained again before it does. The
reservation has no end: where the controller dies, the node stays reserved until the next one goes on.
"""

from __future__ import annotations

from computeflow.actions.engine import EngineNode, Found, RefusedStepError, StepProgress
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.slurm_session import (
    SlurmSession,
    find_job,
    marked_job,
    this_user,
)
from computeflow.actions.steps import ProbeNode
from computeflow.files.names import shown

_SCRIPT = '#!/bin/sh\nexec srun --mpi=none --ntasks=1 "$@"\n'
"""The words of the probe are its arguments: no shell reads them."""
_MAX_SAID = 160
_OF_SLURM = ("srun:", "slurmstepd:")


def advance_probe(
    session: SlurmSession, step: ProbeNode, key: str, probe: tuple[str, ...]
) -> StepProgress:
    """Reserved; submitted; resumed; probed; accepted or drained again: whichever comes next."""
    state, name = session.observe(), commands.reservation(key)
    node = state.nodes.get(step.node)
    if node is None:
        raise RefusedStepError(f"node {step.node}: Slurm knows none of this name")
    reserved = is_reserved(session, name)
    made = marked_job(session.rows(), key)
    if made is None:
        return _begin(session, step, key, node, probe, reserved=reserved)
    job = find_job(state, made)
    if job.phase == "pending":
        if not reserved:
            raise RefusedStepError(f"{step.node}: its reservation for the probe is gone")
        if is_drained(node):
            return session.wait(commands.resume(step.node), note="open to the probe alone")
        return StepProgress(done=False, note=f"probe {made} waits for the node")
    if job.phase in ("running", "ending"):
        return StepProgress(done=False, note=f"probe {made} runs", result={"probe": made})
    if job.phase == "done":
        left = (commands.unreserve(name),) if reserved else ()
        return session.done(*left, note=f"{step.node} is accepted by probe {made}")
    why = f"refused by probe {made}: {_said(session, key) or job.state}"
    if not is_drained(node):
        session.line.run(commands.drain(step.node, why, key))
    if reserved:
        session.line.run(commands.unreserve(name))
    raise RefusedStepError(f"{step.node} stays drained: {why}")


def _begin(
    session: SlurmSession,
    step: ProbeNode,
    key: str,
    node: EngineNode,
    probe: tuple[str, ...],
    *,
    reserved: bool,
) -> StepProgress:
    name = commands.reservation(key)
    if not reserved:
        if not is_drained(node):
            return StepProgress(done=True, note=f"{step.node} is in service")
        if not node.is_up:
            raise RefusedStepError(f"{step.node} does not answer")
        if node.busy:
            return StepProgress(done=False, note=f"waits for what runs on {step.node}")
        words = commands.reserve(step.node, name, this_user())
        return session.wait(words, note="reserved for the probe")
    script = session.keep("probe.sh", _SCRIPT)
    output = session.folder / f"probe-{key}.txt"
    words = commands.submit_probe(
        step.node, name, str(script), step.command or probe, key, output=str(output)
    )
    job = session.submit(words)
    return StepProgress(
        done=False, commands=(words,), note=f"probe {job} is submitted", result={"probe": job}
    )


def undo_probe(session: SlurmSession, step: ProbeNode, key: str, found: Found) -> StepProgress:
    """The node is drained again as it was found, and neither probe nor reservation is left."""
    node, name = session.observe().nodes.get(step.node), commands.reservation(key)
    words = []
    if node is not None and found.get("drained") and not is_drained(node):
        words.append(commands.drain_again(step.node, str(found.get("reason") or "computeflow")))
    made = marked_job(session.rows(), key)
    if made is not None and find_job(session.observe(), made).phase in ("pending", "running"):
        words.append(commands.cancel(made))
    if is_reserved(session, name):
        words.append(commands.unreserve(name))
    return session.done(*words, note=f"{step.node} is as it was found")


def is_drained(node: EngineNode) -> bool:
    """Drained itself: a reservation keeps jobs off as well."""
    return "DRAIN" in node.state.split("+")


def is_reserved(session: SlurmSession, name: str) -> bool:
    text = session.line.run(commands.SHOW_RESERVATIONS)
    return f"ReservationName={name}" in text.split()


def _said(session: SlurmSession, key: str) -> str:
    """The last line of the probe, where the disk is shared."""
    try:
        lines = (session.folder / f"probe-{key}.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    said = [" ".join(line.split()) for line in lines if not line.startswith(_OF_SLURM)]
    said = [line for line in said if line]
    return shown(said[-1], _MAX_SAID) if said else ""
