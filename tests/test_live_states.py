"""Nodes and jobs that a collector watches: what no window of steps shows is a finding of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from computeflow.collection.online.live_values import (
    POWER_READINGS,
    TEMPERATURE_READINGS,
    LiveFinding,
)
from computeflow.collection.online.node_watch import NodeWatch
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.collection.wire.batches import NodeReading, NodeSignal, make_batch
from computeflow.recorder.frames import Record
from live_stream import LiveRankFile, over_the_wire
from run_folder_maker import MS, Training

BEGAN = 1_790_000_000.0
HEAT, POWER_CAP = 0x40, 0x4
REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
ACTIVITY = "DCGM_FI_DEV_GPU_UTIL"


class Site:
    """Two nodes with two ranks each, whose agents tell of them every five seconds."""

    def __init__(self, records: Sequence[Sequence[Record]], usd: float | None = 3.6) -> None:
        self.watcher = Watcher(WatchOptions(price_usd_per_gpu_hour=usd))
        self.files = [LiveRankFile(mine, "ab"[rank // 2]) for rank, mine in enumerate(records)]
        self.now, self.number = BEGAN, 0
        self.lost: set[str] = set()
        self.opened: list[LiveFinding] = []
        self.closed: list[LiveFinding] = []

    def say(
        self,
        node: str,
        readings: Mapping[str, float] | None = None,
        signals: Sequence[NodeSignal] = (),
    ) -> None:
        made = [
            NodeReading(at=round(self.now * 1e6), name=name, value=value, labels={"gpu": "0"})
            for name, value in (readings or {}).items()
        ]
        self.number += 1
        batch = make_batch(
            [],
            agent=node,
            number=self.number,
            node=node,
            sent=round(self.now * 1e6),
            readings=made,
            signals=signals,
        )
        self.watcher.take(over_the_wire(batch), self.now)

    def go(self, seconds: int, readings: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Let time pass; every rank sends each second, every node every five."""
        for _ in range(seconds):
            self.now += 1.0
            for node in "ab":
                if node in self.lost:
                    continue
                if self.now % 5 == 0:
                    self.say(node, (readings or {}).get(node, {}))
                parts = [file.part(self.now - 1.0) for file in self.files if file.node == node]
                self.number += 1
                batch = make_batch(
                    [part for part in parts if part is not None],
                    agent=node,
                    number=self.number,
                    node=node,
                    sent=round(self.now * 1e6),
                    run="run",
                )
                if batch.ranks:
                    self.watcher.take(over_the_wire(batch), self.now)
            changes = self.watcher.tick(self.now)
            self.opened += changes.opened
            self.closed += changes.closed

    def rules(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.rule, each.nodes) for each in self.opened]


def trained(steps: int = 2_000, slow: int | None = None) -> list[list[Record]]:
    def extra(rank: int, step: int) -> Mapping[str, int]:
        return {"f": 50 * MS} if rank == slow and step >= 100 else {}

    return Training(ranks=4, steps=steps, jitter=0.03, extra=extra, ends=False).records()


def waiting(seconds: int) -> list[list[Record]]:
    """Processes that live and do no step."""
    beats = [
        {"k": "b", "t": second * 10**6, "n": 0, "in": "", "for": 0} for second in range(seconds)
    ]
    return [[mine[0], *beats] for mine in trained(steps=1)]


def xid(site: Site, code: int) -> NodeSignal:
    return NodeSignal(at=round(site.now * 1e6), what=f"xid {code}", detail="", gpu="GPU-1")


@pytest.mark.parametrize("code", [48, 79, 94, 95])
def test_an_xid_that_announces_a_failure_is_a_finding_until_it_is_long_ago(code: int) -> None:
    site = Site(trained())
    site.go(30)
    site.say("b", signals=[xid(site, code)])
    site.go(2)
    assert site.rules() == [("failing-node", ("b",))]
    assert f"xid {code}" in site.opened[0].title and "2 ranks" in site.opened[0].title
    assert site.opened[0].run == "run" and not site.opened[0].usd
    assert site.watcher.findings()[0].key == site.opened[0].key
    site.now += 1_000
    site.say("b")
    site.go(6)
    assert [each.why_closed for each in site.closed if each.rule == "failing-node"]


@pytest.mark.parametrize("code", [13, 31, 63])
def test_an_xid_of_the_application_or_without_effect_is_none(code: int) -> None:
    site = Site(trained())
    site.go(30)
    site.say("b", signals=[xid(site, code)])
    site.go(3)
    assert site.opened == []


def test_a_fault_of_the_node_of_a_slow_rank_is_its_evidence_alone() -> None:
    site = Site(trained(slow=3))
    site.go(40)
    assert site.rules() == [("straggler-rank", ("b",))]
    site.say("b", signals=[xid(site, 79)])
    site.go(3)
    assert len(site.opened) == 1
    (finding,) = site.watcher.findings()
    assert "xid 79" in " ".join(each.what for each in finding.evidence)


def test_an_old_fault_is_no_news_of_its_node_and_stays_the_evidence_of_its_finding() -> None:
    site = Site(trained(slow=3))
    site.go(40)
    said = xid(site, 79)
    site.say("b", signals=[said])
    site.go(3)
    assert [node.signals for node in site.watcher.nodes(site.now)] == [(), ("xid 79",)]
    later = site.now + 901
    assert [node.signals for node in site.watcher.nodes(later)] == [(), ()]
    (finding,) = site.watcher.findings()
    assert "xid 79" in " ".join(each.what for each in finding.evidence)


def test_heat_that_lasts_a_minute_is_a_finding_and_the_power_limit_is_none() -> None:
    site = Site(trained())
    site.go(100, {"a": {REASONS: POWER_CAP}, "b": {REASONS: HEAT | POWER_CAP}})
    assert site.rules() == [("clock-throttle", ("b",))]
    site.go(10, {"a": {REASONS: 0.0}, "b": {REASONS: 0.0}})
    assert [each.rule for each in site.closed] == ["clock-throttle"]


def test_errors_of_links_count_beyond_what_is_healthy() -> None:
    site = Site(trained())
    name = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    for minute in range(8):
        site.go(10, {"a": {name: minute / 2}, "b": {name: 20.0 * minute}})
    assert site.rules() == [("slow-link", ("b",))]


def test_an_agent_that_falls_silent_is_named_and_its_ranks_live_as_others_go_on() -> None:
    site = Site(trained())
    site.go(30)
    site.lost = {"b"}
    site.go(40)
    assert site.rules() == [("silent-agent", ("b",))]
    assert "its ranks are alive" in site.opened[0].title
    site.lost = set()
    site.go(10)
    assert [each.rule for each in site.closed] == ["silent-agent"]
    assert len(site.opened) == 1


def test_nobody_is_silent_while_the_watch_itself_is_behind() -> None:
    site = Site(trained())
    site.go(30)
    site.say("a")
    site.watcher.tick(site.now + 40)  # what was read last had come 40 s before
    assert site.watcher.findings() == ()


def test_a_lost_node_on_which_others_wait_is_a_silent_rank() -> None:
    site = Site(trained(steps=300))
    for file in site.files:
        if file.node == "a":  # they wait for those of the other node
            last = file.times[-1] - file.epoch
            beats = [
                {"k": "b", "t": last + second * 10**6, "n": 299, "in": "b", "for": second * 10**6}
                for second in range(1, 60)
            ]
            file.records = [*file.records, *beats]
            file.times += [file.epoch + each["t"] for each in beats]
    site.go(33)
    site.lost = {"b"}
    site.go(50)
    assert ("silent-rank", ("b",)) in site.rules()
    assert [rule for rule, _ in site.rules()].count("silent-agent") == 0


def test_a_job_that_holds_ranks_and_does_nothing_costs_all_of_them() -> None:
    site = Site(waiting(900))
    site.go(590)
    assert site.opened == []
    site.go(60)
    assert [each.rule for each in site.opened] == ["idle-allocation"]
    (finding,) = site.watcher.findings()
    assert finding.usd_per_hour == pytest.approx(4 * 3.6)
    assert finding.usd is not None and finding.usd > 4 * 3.6 * 600 / 3600


def test_a_job_whose_gpus_are_active_before_its_first_step_is_not_idle() -> None:
    site = Site(waiting(900))
    site.go(700, {"a": {ACTIVITY: 40.0}, "b": {ACTIVITY: 0.0}})
    assert site.opened == []


def test_what_is_open_on_a_node_outlives_the_watcher_and_can_be_silenced() -> None:
    site = Site(trained())
    site.go(30)
    site.say("b", signals=[xid(site, 79)])
    site.go(2)
    after = Watcher(WatchOptions(), site.watcher.findings())
    assert [each.key for each in after.findings()] == [site.opened[0].key]
    assert after.silence(site.opened[0].key, 1e12).silenced_until == 1e12


@pytest.mark.parametrize(("number", "uuid"), [("gpu", "UUID"), ("gpu_id", "gpu_uuid")])
def test_a_node_keeps_power_and_temperature_of_each_gpu(number: str, uuid: str) -> None:
    nodes, names = NodeWatch(), (POWER_READINGS[0], TEMPERATURE_READINGS[0], ACTIVITY)
    readings = [
        NodeReading(
            at=1, name=name, value=float(10 * gpu), labels={number: str(gpu), uuid: f"u{gpu}"}
        )
        for gpu in (10, 2)
        for name in names
    ]
    batch = make_batch([], agent="a", number=1, node="a", sent=1, readings=readings)
    nodes.take(over_the_wire(batch), BEGAN)
    (view,) = nodes.views(BEGAN)
    assert view.gpus == 2 and view.readings[POWER_READINGS[0]] == 100.0
    assert [(gpu.gpu, gpu.readings) for gpu in view.by_gpu] == [
        (2, dict.fromkeys(names[:2], 20.0)),
        (10, dict.fromkeys(names[:2], 100.0)),
    ]
