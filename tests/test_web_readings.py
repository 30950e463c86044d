"""Power, memory, temperature and clocks over time: of a store's files and journal, of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.collection.online.live_values import LiveNode
from computeflow.collection.store.journal import JournalWriter
from computeflow.collection.store.segment_tables import SegmentTables
from computeflow.collection.store.segments import write_segments
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, open_store
from computeflow.collection.wire.batches import NodeReading, make_batch, pack_batch
from computeflow.web.sources.reading_curves import MeterSlots, make_slots
from computeflow.web.sources.step_table import COLUMNS
from live_value_maker import live_run
from page_client import RUNS, page_client

POWER, LIMIT, MEMORY = (
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_FB_USED",
)
START = 1_790_000_000
NODES = ("node-0", "node-1")
GPUS = 4
RUN = "metered"


def readings(
    node: int, seconds: Sequence[int], name: str = POWER, base: float = 100.0
) -> list[NodeReading]:
    """A GPU of node 0 draws base to base + 30 W, and of node 1 as much and 100 W more."""
    return [
        NodeReading(
            at=(START + second) * 1_000_000,
            name=name,
            value=base + 100.0 * node + 10.0 * gpu,
            labels={"gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}"},
        )
        for second in seconds
        for gpu in range(GPUS)
    ]


def batch_of(node: int, taken: Sequence[NodeReading]) -> Any:
    name = f"node-{node}"
    return make_batch((), agent=name, number=1, node=name, sent=START, readings=taken)


def seal(store: StoreFolder, number: int, batches: Sequence[Any]) -> None:
    tables = SegmentTables()
    for batch in batches:
        tables.take(batch)
    write_segments(store, tables, number, "20260921", START * 1_000_000)


def append(store: StoreFolder, batches: Sequence[Any], number: int = 9) -> None:
    journal = JournalWriter(store.journal, number)
    journal.append([(START * 1_000_000, pack_batch(batch)) for batch in batches])
    journal.close()


@pytest.fixture
def store(tmp_path: Path) -> StoreFolder:
    """A run of 600 s on two nodes with four GPUs each, and nothing read of them yet."""
    made = open_store(tmp_path / "store")
    run = replace(live_run(), run=RUN, world=8, nodes=NODES, started=START, updated=START + 600.0)
    nodes = [
        LiveNode(node=node, agent=node, last_seen=START, gpus=GPUS, readings={LIMIT: 700.0})
        for node in NODES
    ]
    state = StateDatabase(made.state)
    state.save_view([], [run], nodes)
    state.close()
    return made


def asked(store: StoreFolder) -> dict[str, Any]:
    answer = page_client(store.path).get(f"/readings/{RUN}")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_sealed_and_unsealed_readings_are_one_curve(store: StoreFolder) -> None:
    seal(store, 1, [batch_of(node, readings(node, range(0, 300, 5))) for node in (0, 1)])
    seal(store, 2, [batch_of(node, readings(node, range(300, 450, 5))) for node in (0, 1)])
    append(store, [batch_of(node, readings(node, range(450, 600, 5))) for node in (0, 1)])
    found = asked(store)["readings"]
    (power,) = found["meters"]
    assert found["slot_seconds"] == 10.0 and found["count"] == 8 and found["start"] == START
    assert power["unit"] == "W" and power["limit"] == 700.0
    assert set(power["mean"][:60]) == {165.0} and set(power["largest"][:60]) == {230.0}
    assert found["energy"]["covered"] == pytest.approx(1.0)
    assert found["energy"]["joules"] == pytest.approx(8 * 165.0 * 600)


def test_what_was_not_read_is_a_hole_and_not_covered(store: StoreFolder) -> None:
    """Node 1 is never read, and node 0 for a third of the time."""
    append(store, [batch_of(0, readings(0, [*range(0, 100, 5), *range(400, 500, 5)]))])
    found = asked(store)["readings"]
    (power,) = found["meters"]
    assert power["mean"][9:11] == [115.0, None] and power["mean"][40] == 115.0
    assert found["energy"]["covered"] == pytest.approx(200 * 4 / (600 * 8))
    assert found["energy"]["joules"] == pytest.approx(4 * 115.0 * 200)


def test_readings_before_and_after_a_run_and_of_other_nodes_are_not_its_own(
    store: StoreFolder,
) -> None:
    seconds = [*range(-60, 0, 5), *range(700, 800, 5)]
    append(store, [batch_of(0, readings(0, seconds)), batch_of(7, readings(7, range(0, 600, 5)))])
    content = asked(store)
    assert content["readings"]["meters"] == [] and content["readings"]["energy"] is None
    assert "No GPU readings from the time of this run" in content["readings_missing"]


def test_a_file_that_is_sealed_twice_counts_once(store: StoreFolder) -> None:
    """It is read from the journal, and sealed before the files are listed."""
    batches = [batch_of(node, readings(node, range(0, 600, 5))) for node in (0, 1)]
    seal(store, 1, batches)
    append(store, batches)
    energy = asked(store)["readings"]["energy"]
    assert energy["joules"] == pytest.approx(8 * 165.0 * 600) and energy["covered"] <= 1.0


def test_a_sealed_file_is_read_once(store: StoreFolder, monkeypatch: Any) -> None:
    from computeflow.web.sources.store import stored_readings

    seal(store, 1, [batch_of(0, readings(0, range(0, 300, 5)))])
    client = page_client(store.path)
    first = client.get(f"/readings/{RUN}").json()
    taken: list[Any] = []
    read = stored_readings._sealed_sums

    def counted(*given: Any) -> Any:
        taken.append(given[-1])
        return read(*given)

    monkeypatch.setattr(stored_readings, "_sealed_sums", counted)
    state = StateDatabase(store.state)
    state.save_view([], [], [])
    state.close()
    assert client.get(f"/readings/{RUN}").json() == first and not taken
    seal(store, 2, [batch_of(0, readings(0, range(300, 600, 5)))])
    state = StateDatabase(store.state)
    state.save_view([], [], [LiveNode(node="other", agent="a", last_seen=START, gpus=1)])
    state.close()
    more = client.get(f"/readings/{RUN}").json()
    assert [len(files) for files in taken] == [1]
    assert more["readings"]["energy"]["joules"] == pytest.approx(4 * 115.0 * 600)


def test_memory_is_bytes(store: StoreFolder) -> None:
    append(store, [batch_of(0, readings(0, range(0, 600, 5), MEMORY, 1024.0))])
    (memory,) = asked(store)["readings"]["meters"]
    assert memory["unit"] == "B" and memory["mean"][0] == pytest.approx(1039 * 2**20, rel=1e-3)


def test_agents_that_read_rarely_cover_the_time_between(store: StoreFolder) -> None:
    append(store, [batch_of(node, readings(node, range(7 * node, 600, 60))) for node in (0, 1)])
    found = asked(store)["readings"]
    assert found["slot_seconds"] == 120.0
    assert found["energy"]["covered"] == pytest.approx(1.0)


def test_a_recording_has_the_memory_that_its_recorder_noted() -> None:
    content = page_client(RUNS).get("/readings/gc").json()
    (host,) = content["readings"]["meters"]
    assert host["name"] == "host" and all(1e8 < value < 1e9 for value in host["mean"])
    assert content["readings"]["count"] == 2 and content["readings"]["energy"] is None
    assert "No power, temperature or clock readings for this run" in content["readings_missing"]


def test_a_trace_says_what_is_missing() -> None:
    trace = RUNS.parent / "h200_traces" / "slow-loader-0.03.json.gz"
    content = page_client(trace).get(f"/readings/{trace.name}").json()
    assert content["readings"] is None and "computeflow agent" in content["readings_missing"]


@pytest.mark.parametrize("span", [1.0, 60.0, 4e3, 3e5, 9e6, 4e8])
@pytest.mark.parametrize("interval", [1.0, 5.0, 3600.0])
def test_slots_are_few_and_longer_than_the_time_between_readings(
    span: float, interval: float
) -> None:
    slots = make_slots(START + 0.3, START + 0.3 + span, interval)
    assert 1 <= slots.count <= COLUMNS and slots.seconds > interval
    assert slots.lengths().sum() == pytest.approx(span) and len(slots.lengths()) == slots.count


def test_energy_of_nothing_read_is_unknown() -> None:
    slots = make_slots(START, START + 100.0, 5.0)
    empty = MeterSlots.empty(slots.count)
    assert empty.energy(slots, 8) is None
    empty.add(np.array([0]), np.array([800.0]), np.array([8.0]), np.array([100.0]))
    found = empty.energy(slots, 8)
    assert found is not None and found.joules == pytest.approx(800.0 * 10)
