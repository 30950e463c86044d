"""Memory snapshots: torch's counts, planted faults, no finding on healthy runs; nothing executed."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose_source
from computeflow.errors import InputError
from computeflow.telemetry.flight_recorder.flight_source import FlightRecorder
from computeflow.telemetry.memory import snapshot as snapshots
from computeflow.telemetry.memory.device_memory import trend
from computeflow.telemetry.memory.history import history_of, layout
from computeflow.telemetry.memory.memory_facts import DeviceMemory, ProcessMemory
from computeflow.telemetry.memory.memory_source import MemorySnapshots
from computeflow.telemetry.memory.owners import OWNERS, owners_of
from computeflow.telemetry.memory.snapshot import Snapshot, read_snapshot
from computeflow.telemetry.memory.stacks import stack_kind
from computeflow.telemetry.memory.steps import find_steps
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from computeflow.views.sources import observed_tables
from computeflow.views.tables import to_html, to_text

ASKED = SourceRequest(catalog=load_catalog())
FOLDER = Path(__file__).parent / "data" / "memory"
INDEX = json.loads((FOLDER / "index.json").read_text())
CASES = sorted(name for name, case in INDEX.items() if isinstance(case, dict))
MIB = 1 << 20


@cache
def recorded(name: str) -> SourceReport:
    return observe(FOLDER / f"{name}.pickle.gz")


@cache
def recorded_snapshot(name: str) -> Snapshot:
    return read_snapshot(FOLDER / f"{name}.pickle.gz")


def observe(path: Path) -> SourceReport:
    (found,) = MemorySnapshots().observe([path], ASKED)
    return found


def only(found: SourceReport) -> DeviceMemory:
    assert isinstance(found.facts, ProcessMemory)
    (device,) = found.facts.devices
    return device


# --- recordings of an H200 (benchmarks/record_memory.py)


@pytest.mark.parametrize("name", CASES)
def test_every_recording_is_known_by_its_content_and_shown(name: str) -> None:
    path = FOLDER / f"{name}.pickle.gz"
    assert MemorySnapshots().recognises(path, head_of(path))
    assert not FlightRecorder().recognises(path, head_of(path))
    found = recorded(name)
    assert found.ledger is None
    assert "not of work" in found.ledger_reason
    tables = observed_tables(found)
    assert max(len(line) for table in tables for line in to_text(table).splitlines()) <= 80
    assert all(to_html(table) for table in tables)
    codec.to_json(codec.encode(found.facts))


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_torch_counted(name: str) -> None:
    """Reserved to the byte; allocated less what blocks have beyond the asked size, where they are not
    split (below 1 MiB each). Torch's peaks are of the steps after the first one.
    """
    (device,) = recorded_snapshot(name).devices
    history, stats = history_of(device), INDEX[name]["stats"]
    assert history.reserved[-1] == stats["reserved_bytes.all.current"]
    assert history.reserved.max() == stats["reserved_bytes.all.peak"]
    assert history.allocated[-1] == stats["allocated_bytes.all.current"]
    if INDEX[name]["knobs"]["steps"] > 5:
        last = history.allocated[len(history) // 3 :].max()
        if not INDEX[name]["out_of_memory"]:
            assert last == pytest.approx(stats["allocated_bytes.all.peak"], rel=0.01)


@pytest.mark.parametrize("name", CASES)
def test_segments_are_what_is_allocated_and_what_is_free(name: str) -> None:
    (device,) = recorded_snapshot(name).devices
    history = history_of(device)
    for event in np.linspace(0, len(history) - 1, 7).astype(int).tolist():
        found = layout(history, event)
        held = int(history.allocations.size[history.allocations.occupying(event)].sum())
        assert held + int(found.holes.sum() + found.empty.sum()) == history.reserved[event]


@pytest.mark.parametrize("name", CASES)
def test_a_finding_where_something_was_planted_and_nowhere_else(name: str) -> None:
    found = recorded(name)
    label = INDEX[name]["label"]
    titles = [finding.title for finding in diagnose_source(found).findings]
    assert [finding.rule for finding in diagnose_source(found).findings] == [
        "memory-pressure"
    ] * len(titles)
    if label in ("healthy", "retries"):
        assert not titles
    else:
        (title,) = titles
        words = {
            "leak": "more after each step",
            "fragmentation": "free in fragments",
            "oom": "ran out of memory",
        }
        assert words[label] in title
        assert diagnose_source(found).findings[0].account == "host"


@pytest.mark.parametrize(
    ("name", "size"), [("leak-outputs", 4 * MIB), ("leak-small", MIB // 4), ("leak-lengths", MIB)]
)
def test_a_leak_is_measured_and_its_place_named(name: str, size: int) -> None:
    found = recorded(name)
    creep = only(found).creep
    assert creep is not None
    assert creep.bytes_per_step == pytest.approx(size)
    assert creep.low <= size <= creep.high
    assert creep.sites[0].where.startswith("keep_output (benchmarks/record_memory.py")
    remedy = diagnose_source(found).findings[0].remedy
    assert remedy is not None and "keep_output" in remedy.change


@pytest.mark.parametrize("name", [name for name in CASES if INDEX[name]["label"] == "oom"])
def test_running_out_says_what_expandable_segments_would_have_done(name: str) -> None:
    """The same run was made again with them."""
    found = recorded(name)
    (oom,) = only(found).out_of_memory
    tried = float(INDEX[name]["message"].partition("Tried to allocate ")[2].split()[0])
    assert oom.asked_bytes == tried * MIB
    assert oom.limited  # by set_per_process_memory_fraction
    survived = not INDEX[name]["expandable"]["out_of_memory"]
    assert oom.expandable == ("yes" if survived else "no")
    free = float(INDEX[name]["message"].partition("and ")[2].split()[0])
    unit = 1024 if "GiB is reserved by PyTorch" in INDEX[name]["message"] else 1
    assert oom.split_bytes == pytest.approx(free * unit * MIB, rel=0.02, abs=10 * MIB)
    (happening,) = found.happenings
    assert happening.fault and happening.what == "out of memory"
    assert happening.seconds is not None and happening.seconds > 1.7e9


def test_retries_are_counted_and_timed() -> None:
    retries = only(recorded("retries")).retries
    assert retries.count == INDEX["retries"]["stats"]["num_alloc_retries"] == 1
    assert retries.seconds is not None and 1e-5 < retries.seconds < 0.1


@pytest.mark.parametrize("name", [name for name in CASES if INDEX[name]["label"] == "healthy"])
def test_owners_at_the_peak_are_the_programs_own(name: str) -> None:
    """Blocks are larger than their tensors by up to 1 MiB."""
    owners, sizes = only(recorded(name)).peak.owners, INDEX[name]["sizes"]
    assert owners["weights"] == pytest.approx(sizes["parameter_bytes"], rel=0.05)
    assert owners["optimizer state"] == pytest.approx(sizes["optimizer_bytes"], rel=0.06)
    assert owners["activations"] > 0.2 * sum(owners.values())
    assert owners.get("unknown", 0) < 66 * MIB  # two workspaces of cuBLAS


@pytest.mark.parametrize("name", [name for name in CASES if INDEX[name]["label"] == "healthy"])
def test_gradients_before_an_update_are_as_large_as_the_weights(name: str) -> None:
    snapshot = recorded_snapshot(name)
    history, kinds = history_of(snapshot.devices[0]), [stack_kind(s) for s in snapshot.stacks]
    steps = find_steps(snapshot, history, kinds)
    held = history.allocations.at(int(steps.optimizer[-1]) - 1)
    owned = held & (owners_of(history, steps, kinds) == OWNERS.index("gradients"))
    found = int(history.allocations.size[owned].sum())
    assert found == pytest.approx(INDEX[name]["sizes"]["parameter_bytes"], rel=1e-3)


def test_stacks_with_native_frames_tell_workspaces() -> None:
    peak = only(recorded("healthy-native")).peak
    assert peak.owners["unknown"] < MIB
    assert any(site.owner == "workspaces" for site in peak.sites)


# --- made ones


@dataclass
class Made:
    """A device's allocator that never reuses an address."""

    events: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    time: int = 1_790_000_000_000_000
    address: int = 1 << 40

    def event(self, action: str, **more: Any) -> None:
        self.time += 10
        self.events.append({"action": action, "time_us": self.time, "stream": 0, **more})

    def segment(self, size: int) -> int:
        place, self.address = self.address, self.address + 4 * size
        self.event("segment_alloc", addr=place, size=size, frames=[])
        self.segments.append({"device": 0, "address": place, "total_size": size, "blocks": []})
        return place

    def alloc(self, size: int, *names: str, at: int | None = None) -> int:
        place = self.segment(size) if at is None else at
        frames = [_frame(name) for name in names]
        self.event("alloc", addr=place, size=size, frames=frames)
        self.live[place] = size, frames
        return place

    def free(self, place: int) -> None:
        size, _ = self.live.pop(place)
        self.event("free_requested", addr=place, size=size, frames=[])
        self.event("free_completed", addr=place, size=size, frames=[])

    def data(self) -> dict[str, Any]:
        for segment in self.segments:
            inside = range(segment["address"], segment["address"] + segment["total_size"])
            segment["blocks"] = [
                {
                    "address": place,
                    "size": size,
                    "requested_size": size,
                    "frames": frames,
                    "state": "active_allocated",
                }
                for place, (size, frames) in sorted(self.live.items())
                if place in inside
            ]
        return {"segments": self.segments, "device_traces": [[], self.events][1:]}

    def write(self, path: Path, **more: Any) -> Path:
        path.write_bytes(pickle.dumps(self.data() | more))
        return path


def _frame(name: str) -> dict[str, Any]:
    function, _, file = name.partition("@")
    return {"name": function, "filename": file or "train.py", "line": 3}


OPTIMIZER = ("_init_group@torch/optim/adam.py", "main")
FORWARD = ("forward@model.py", "_call_impl@torch/nn/modules/module.py")


def training(made: Made, steps: int, *, grows: float = 0.0, jitter: float = 0.0) -> Made:
    draw = random.Random(5)
    made.alloc(100 * MIB, "__init__@torch/nn/modules/linear.py")
    for step in range(steps):
        activation = made.alloc(80 * MIB, *FORWARD)
        gradient = made.alloc(100 * MIB)
        made.free(activation)
        if step == 0:
            made.alloc(200 * MIB, *OPTIMIZER)
        scratch = made.alloc(2 * MIB, *OPTIMIZER)
        made.free(scratch)
        if grows:
            made.alloc(int(grows * (1 + jitter * draw.uniform(-1, 1))), "log@train.py")
        made.free(gradient)
    return made


def test_without_annotations_steps_are_found_by_stacks(tmp_path: Path) -> None:
    device = only(observe(training(Made(), 10).write(tmp_path / "made.pickle")))
    assert (device.steps, device.steps_from) == (10, "stacks inside the optimizer")
    assert device.peak.allocated_bytes == 480 * MIB
    assert device.peak.owners == {
        "weights": 100 * MIB,
        "gradients": 100 * MIB,
        "optimizer state": 200 * MIB,
        "activations": 80 * MIB,
    }


def test_without_stacks_steps_are_waves(tmp_path: Path) -> None:
    made = training(Made(), 12)
    for event in made.events:
        event["frames"] = []
    made.live = {place: (size, []) for place, (size, _) in made.live.items()}
    found = observe(made.write(tmp_path / "made.pickle"))
    assert only(found).steps_from == "the rise and fall of memory"
    assert any("no stacks" in note for note in found.notes)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 64), st.floats(0, 0.8), st.integers(9, 30))
def test_creep_is_found_at_any_size_with_noise(
    tmp_path_factory: pytest.TempPathFactory, size: float, jitter: float, steps: int
) -> None:
    path = tmp_path_factory.mktemp("made") / "made.pickle"
    found = observe(training(Made(), steps, grows=size * MIB, jitter=jitter).write(path))
    creep = only(found).creep
    assert creep is not None
    assert creep.bytes_per_step == pytest.approx(size * MIB, rel=jitter + 0.01)
    assert "more after each step" in diagnose_source(found).findings[0].title


def test_growth_that_stops_or_is_too_small_is_no_finding(tmp_path: Path) -> None:
    made = training(Made(), 5, grows=MIB)
    for _ in range(20):
        activation = made.alloc(80 * MIB, *FORWARD)
        made.free(activation)
        made.free(made.alloc(2 * MIB, *OPTIMIZER))
    assert not diagnose_source(observe(made.write(tmp_path / "stops.pickle"))).findings
    assert not diagnose_source(
        observe(training(Made(), 20, grows=1024).write(tmp_path / "little.pickle"))
    ).findings


def test_a_trend_is_that_of_most_values() -> None:
    line = np.arange(50.0) * 3
    line[[7, 20, 33]] += 1000
    slope, low, high = trend(line)
    assert slope == pytest.approx(3) and low <= 3 <= high
    noise = np.random.default_rng(1).normal(size=200)
    _, low, high = trend(noise)
    assert low < 0 < high
    assert trend(np.zeros(5000)) == (0.0, 0.0, 0.0)


def test_a_device_that_is_full_is_told_from_a_limit(tmp_path: Path) -> None:
    made = training(Made(), 2)
    made.event("oom", size=500 * MIB, device_free=30 * MIB, frames=[_frame("forward@model.py")])
    found = observe(made.write(tmp_path / "rank3_oom.pickle"))
    (oom,) = only(found).out_of_memory
    assert not oom.limited
    free = only(found).reserved_bytes - only(found).allocated_bytes
    assert oom.missing_bytes == max(500 * MIB - 30 * MIB - free, 0)
    assert diagnose_source(found).findings[0].ranks == (3,)
    on = observe(
        made.write(tmp_path / "on.pickle", allocator_settings={"expandable_segments": True})
    )
    assert only(on).out_of_memory[0].expandable == "already on"


def test_a_history_that_begins_late_is_counted_back(tmp_path: Path) -> None:
    made = training(Made(), 10)
    whole = only(observe(made.write(tmp_path / "whole.pickle")))
    data = made.data()
    data["device_traces"] = [data["device_traces"][0][-40:]]
    late = tmp_path / "late.pickle"
    late.write_bytes(pickle.dumps(data))
    found = observe(late)
    device = only(found)
    assert not device.whole and whole.whole
    assert device.allocated_bytes == whole.allocated_bytes
    assert device.peak.allocated_bytes == whole.peak.allocated_bytes
    assert device.peak.owners["weights"] == 100 * MIB
    assert any("earlier peaks are unknown" in note for note in found.notes)


def test_segments_alone_and_json_are_read(tmp_path: Path) -> None:
    data = training(Made(), 3).data()
    alone = tmp_path / "segments.pickle"
    alone.write_bytes(pickle.dumps(data["segments"]))
    found = observe(alone)
    assert MemorySnapshots().recognises(alone, head_of(alone))
    assert only(found).peak.allocated_bytes == 300 * MIB
    assert any("no history" in note for note in found.notes)
    text = tmp_path / "snapshot.json"
    text.write_text(json.dumps(data))
    assert MemorySnapshots().recognises(text, head_of(text))
    assert only(observe(text)).peak.allocated_bytes == 480 * MIB


def test_expandable_segments_of_several_pieces_are_one(tmp_path: Path) -> None:
    made = Made()
    base = 1 << 44
    for place in (0, 20, 40):
        made.event("segment_map", addr=base + place * MIB, size=20 * MIB, frames=[])
    made.alloc(5 * MIB, "x", at=base)
    made.alloc(5 * MIB, "x", at=base + 55 * MIB)
    made.event("segment_unmap", addr=base + 20 * MIB, size=20 * MIB, frames=[])
    made.segments = [
        {"device": 0, "address": base + place * MIB, "total_size": 20 * MIB, "is_expandable": True}
        for place in (0, 40)
    ]
    (device,) = read_snapshot(made.write(tmp_path / "made.pickle")).devices
    history = history_of(device)
    assert history.reserved.tolist() == [20 * MIB, 40 * MIB, 60 * MIB, 60 * MIB, 60 * MIB, 40 * MIB]
    before, after = layout(history, 4), layout(history, 5)
    assert before.holes.tolist() == [50 * MIB] and before.pages == 20 * MIB
    assert sorted(after.holes.tolist()) == [15 * MIB, 15 * MIB]


def test_many_devices_and_ranks_are_kept_apart(tmp_path: Path) -> None:
    data = training(Made(), 3).data()
    data["device_traces"] = [[], [], data["device_traces"][0]]
    for segment in data["segments"]:
        segment["device"] = 2
    path = tmp_path / "rank_5.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(data)))
    found = observe(path)
    assert isinstance(found.facts, ProcessMemory) and found.facts.rank == 5
    assert [device.device for device in found.facts.devices] == [2]


# --- files that are none, or worse


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    data = training(Made(), 3).data() | {"allocator_settings": Evil()}
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps(data, protocol))
    with pytest.raises(InputError, match="not read"):
        observe(path)
    assert [one.name for one in tmp_path.iterdir()] == ["evil.pickle"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"segments": 3},
        {"segments": [{"address": "x", "total_size": 1}]},
        {"segments": [3]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 2**70}]]},
        {"segments": [], "device_traces": [[{"noaction": 1}]]},
        {"device_traces": [[3]]},
        {"device_traces": [[{"action": "alloc", "frames": [3]}]]},
        {"segments": [{"address": 1, "total_size": 5, "blocks": [{"size": None}]}]},
        {"segments": [], "device_traces": []},
        {"device_traces": [[{"action": "alloc", "frames": 7}]]},
    ],
)
def test_what_is_no_snapshot_is_one_line(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "strange.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(InputError) as error:
        observe(path)
    assert "\n" not in str(error.value) and "strange.pickle" in str(error.value)


def test_odd_histories_are_read(tmp_path: Path) -> None:
    """Frees without an allocation, the same address twice, unknown actions, no times."""
    made = Made()
    made.event("free_completed", addr=77, size=5)
    made.event("alloc", addr=77, size=0, frames=None)
    made.event("alloc", addr=77, size=10**15)
    made.event("worker_thread", addr=1, size=1)
    made.event("oom", size=10)
    for event in made.events:
        del event["time_us"]
    found = observe(made.write(tmp_path / "odd.pickle", external_annotations=[3, {"name": "x"}]))
    assert "1 events 'worker_thread'" in found.left_out
    assert only(found).seconds is None
    assert observed_tables(found)


def test_large_files_and_cut_ones_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (FOLDER / "oom-too-big.pickle.gz").read_bytes()
    cut = tmp_path / "cut.pickle.gz"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"cut\.pickle\.gz"):
        observe(cut)
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES", 1000)
    with pytest.raises(InputError, match="max_entries"):
        observe(FOLDER / "oom-too-big.pickle.gz")


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_spoiled_bytes_are_an_answer_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    content = bytearray(gzip.decompress((FOLDER / "oom-too-big.pickle.gz").read_bytes()))
    draw = random.Random(seed)
    for _ in range(count):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path = tmp_path_factory.mktemp("spoiled") / "spoiled.pickle"
    path.write_bytes(content)
    try:
        found = observe(path)
        assert observed_tables(found)
        codec.to_json(codec.encode(found.facts))
    except InputError as error:
        assert "\n" not in str(error)
