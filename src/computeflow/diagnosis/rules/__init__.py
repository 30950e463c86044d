"""The rule book: `RULES` lists every rule, in the order of docs/rules."""

from collections.abc import Callable

from computeflow.diagnosis.rule import Outcome, Rule, SourceRule
from computeflow.diagnosis.rules import (
    device_work,
    fleet,
    fleet_clocks,
    host,
    host_calls,
    host_line,
    joined_fleet,
    kernels,
    links,
    live_states,
    memory,
    outages,
    ranks,
    ranks_together,
    recorded_failures,
    recorded_growth,
    recordings,
    runs,
    timelines,
)
from computeflow.errors import UnknownNameError
from computeflow.telemetry.live.live_states import JOB, NODE
from computeflow.telemetry.source_reports import SourceReport

_MODELLED = "operator shapes in a GPU trace of a job that the predictor understands"
_FLEETS = (
    "no wrong finding on the synthetic fleets of docs/sources/metrics.md; below 1, as no real fleet "
    "with known faults was available"
)
_JOINED = (
    "no wrong finding on the made fleets of docs/sources/fleet.md, healthy ones included; below 1, as "
    "no fleet with known faults was available that somebody else made"
)
_LOGS = "supported by synthetic logs; not yet measured on labelled ones"
_RECORDED = (
    "no wrong finding on made run folders, healthy ones included, and on those of two real ranks over "
    "gloo (tests/test_recorded_findings.py); below 1, as they are few"
)
_LIVE = (
    "the device, the driver or the agent states it; right on made nodes and jobs "
    "(tests/test_live_states.py), of which no real ones with known faults were available"
)
_TIMELINES = "a lower bound: all of 82 findings on published and synthetic timelines were right"


def _recorded(judge: Callable[[SourceReport], Outcome]) -> dict[str, SourceRule]:
    return {"recording": SourceRule(judge=judge, confidence=0.9, because=_RECORDED)}


def _live(kind: str, judge: Callable[[SourceReport], Outcome]) -> dict[str, SourceRule]:
    return {kind: SourceRule(judge=judge, confidence=0.9, because=_LIVE)}


RULES = (
    Rule(id="input-stall", account="input", order=9, trace=host.input_stall, step=host_line.input_stall,
         needs="marks of the data loader in a trace, or a run folder",
         sources=_recorded(recordings.input_stall)),
    Rule(id="host-sync", account="host", order=21, trace=host.host_sync, step=host_calls.host_sync,
         needs="runtime calls in a trace of a device"),
    Rule(id="launch-bound", account="host", order=24, trace=host.launch_bound,
         step=host_calls.launch_bound,
         needs="runtime calls and whole steps of kernels in a trace of a device"),
    Rule(id="gc-pause", account="host", order=11, trace=host.gc_pause, step=host_line.gc_pause,
         needs="marks of Python's garbage collection in a trace, or a run folder",
         sources=_recorded(recordings.gc_pause)),
    Rule(id="memory-pressure", account="host", order=12, trace=host.memory_pressure,
         step=host_calls.memory_pressure,
         needs="runtime calls in a trace of a device, a memory snapshot, or a run folder",
         sources={**_recorded(recordings.memory_pressure),
                  "memory": SourceRule(
             judge=memory.snapshot_pressure, confidence=0.95,
             because="findings on the recordings of docs/sources/memory.md that name the "
             "planted fault, less what so few can prove")}),
    Rule(id="pageable-copy", account="copy", order=10, trace=host.pageable_copy,
         step=host_line.pageable_copy,
         needs="copies in a trace of a device"),
    Rule(id="checkpoint-stall", account="checkpoint", order=7, trace=host.checkpoint_stall,
         step=host_line.checkpoint_stall,
         needs="marks of saving in a trace, a log with times, or a run folder",
         sources={"log": SourceRule(judge=runs.checkpoints, confidence=0.9, because=_LOGS),
                  **_recorded(recordings.checkpoint_stall)}),
    Rule(id="checkpoint-interval", account="checkpoint", order=3,
         needs="a run folder with three failures or more, and a save in a step",
         sources={"recording": SourceRule(
             judge=recorded_failures.checkpoint_interval, confidence=0.8,
             because="right on made run folders; failures are few, and come at no constant rate "
             "where one cause is behind them")}),
    Rule(id="unfused-attention", account="compute.kernel", order=18, needs=_MODELLED,
         trace=kernels.unfused_attention, step=device_work.unfused_attention),
    Rule(id="matmul-precision", account="compute.kernel", order=17, needs=_MODELLED,
         trace=kernels.matmul_precision, step=device_work.matmul_precision),
    Rule(id="underfilled", account="compute.kernel", order=23, needs=_MODELLED,
         trace=kernels.underfilled, step=kernels.no_findings),
    Rule(id="recompute-excess", account="compute.recompute", order=19, needs=_MODELLED,
         trace=kernels.recompute_excess, step=device_work.recompute_excess),
    Rule(id="unfused-optimizer", account="optimizer", order=20, needs=_MODELLED,
         trace=kernels.unfused_optimizer, step=device_work.unfused_optimizer),
    Rule(id="exposed-comm", account="comm", order=25, trace=links.exposed_comm,
         needs="traces of several ranks that share collectives, of a job that the predictor "
         "understands"),
    Rule(id="slow-link", account="comm", order=16, trace=links.slow_link,
         needs="traces of several process groups whose collectives record message sizes; or counters "
         "of a node's links, while a job runs",
         sources=_live(NODE, live_states.link_errors)),
    Rule(id="straggler-rank", account="straggler", order=14, trace=ranks.straggler_rank,
         needs="traces or a run folder of several ranks that share collectives, or an op timeline",
         sources={"op-timeline": SourceRule(judge=timelines.slow_worker, confidence=0.95,
                                            because=_TIMELINES),
                  **_recorded(recordings.straggler_rank)}),
    Rule(id="imbalance", account="imbalance", order=15, trace=ranks.imbalance,
         needs="traces of several ranks that share collectives, with shapes of operators; or a run "
         "folder with tokens",
         sources=_recorded(recordings.imbalance)),
    Rule(id="repeated-reduction", account="comm", order=28, trace=ranks_together.repeated_reduction,
         needs="traces of several ranks that share collectives, with backward passes"),
    Rule(id="host-stall", account="host", order=13, step=host_line.host_stall,
         needs="operators and runtime calls in a trace of a device, or a run folder",
         sources=_recorded(recordings.host_stall)),
    Rule(id="small-micro-batch", account="host", order=22, step=host_calls.small_micro_batch,
         needs="runtime calls and backward passes in a trace of a device"),
    Rule(id="evaluation", account="evaluation", order=8, step=device_work.evaluation,
         needs="operators and runtime calls in a trace of a device, or a run folder",
         sources=_recorded(recordings.evaluation)),
    Rule(id="regression", account="", order=27,
         needs="an earlier recording of the same job (`regressions`, after all others), or a run "
         "folder of many steps",
         sources=_recorded(recorded_growth.slower_steps)),
    Rule(id="idle-allocation", account="idle", order=5,
         needs="activity of GPUs over ten minutes, and who holds them",
         sources={**_live(JOB, live_states.idle_allocation),
                  "metrics": SourceRule(judge=fleet.idle_allocation, confidence=0.95,
                                        because=_FLEETS),
                  "fleet": SourceRule(judge=joined_fleet.idle_allocation, confidence=0.95,
                                      because=_JOINED)}),
    Rule(id="clock-throttle", account="compute.clock", order=6,
         needs="clocks at work of several GPUs of one model, and the device's reasons",
         sources={**_live(NODE, live_states.clock_throttle),
                  "metrics": SourceRule(judge=fleet.clock_throttle, confidence=0.95,
                                        because=_FLEETS),
                  "fleet": SourceRule(judge=fleet_clocks.clock_throttle, confidence=0.95,
                                      because=_JOINED)}),
    Rule(id="hang", account="idle", order=2, needs="flight-recorder dumps, or a run folder",
         sources={**_recorded(recorded_failures.stuck),
                  "flight-recorder": SourceRule(
             judge=runs.hang, confidence=0.98,
             because="share of named ranks that are right, on the labelled and synthetic cases of "
             "docs/sources/flight-recorder.md")}),
    Rule(id="silent-rank", account="idle", order=1, needs="a run folder of several ranks",
         sources={"recording": SourceRule(
             judge=recorded_failures.silent_ranks, confidence=0.9,
             because="right on made run folders and on real ranks over gloo that were killed; below 1, "
             "as a process that keeps its threads from running looks the same")}),
    Rule(id="restarts", account="restart", order=4, needs="a log with times, or a run folder",
         sources={"log": SourceRule(judge=runs.restarts, confidence=0.9, because=_LOGS),
                  **_recorded(recorded_failures.restarts),
                  "fleet": SourceRule(judge=joined_fleet.restarts, confidence=0.9, because=_JOINED)}),
    Rule(id="failed-rank", account="restart", order=29, needs="a launcher's failure report in a log",
         sources={"log": SourceRule(
             judge=runs.failed_ranks, confidence=0.9,
             because="torchrun names the first failure that it saw; a rank that another one made fail "
             "may be seen before it")}),
    Rule(id="straggler-stage", account="straggler", order=26, needs="an op timeline",
         sources={"op-timeline": SourceRule(judge=timelines.slow_stage, confidence=0.95,
                                            because=_TIMELINES)}),
    Rule(id="failing-node", account="lost", order=30,
         needs="accounting with nodes and states of jobs; kernel logs name the fault, and are enough "
         "while a collector watches",
         sources={**_live(NODE, live_states.failing_node),
                  "fleet": SourceRule(judge=joined_fleet.failing_node, confidence=0.95,
                                      because=_JOINED)}),
    Rule(id="lost-work", account="lost", order=31, needs="accounting with states of jobs",
         sources={"fleet": SourceRule(
             judge=joined_fleet.lost_work, confidence=0.8,
             because="a failed job of which nothing followed may have written what it was for")}),
    Rule(id="fragmentation", account="idle", order=32,
         needs="accounting with submissions and starts of jobs; the nodes tell why",
         sources={"fleet": SourceRule(
             judge=joined_fleet.fragmentation, confidence=0.8,
             because="partitions, features and memory that jobs ask for are not read")}),
    Rule(id="node-out", account="idle", order=33,
         needs="accounting with the list of nodes, or a table of outages with the number of GPUs",
         sources={"fleet": SourceRule(
             judge=joined_fleet.node_out, confidence=0.95,
             because="the scheduler lists them; since when is the time of the reason"),
                  "outages": SourceRule(
             judge=outages.node_out, confidence=0.95,
             because="the table states them; that its cause is the cause is not checked")}),
    Rule(id="silent-agent", account="idle", order=34,
         needs="a collector that watches, and an agent on the node",
         sources=_live(NODE, live_states.silent_agent)),
)  # fmt: skip
_BY_ID = {rule.id: rule for rule in RULES}


def find_rule(name: str) -> Rule:
    if name not in _BY_ID:
        raise UnknownNameError("rule", name, _BY_ID)
    return _BY_ID[name]


__all__ = ["RULES", "find_rule"]
