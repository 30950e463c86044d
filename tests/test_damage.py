"""Files that end too early or are empty do not change what is said about the ranks that are intact."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from kineto_maker import Maker, data_parallel_job

FACTS = load_catalog(())
GLOO = Path(__file__).parent / "data" / "gloo_traces"
WAITS = ("comm", "straggler", "imbalance")
POINT = 0.01


def damaged(source: Path, folder: Path, rank: int, part: float) -> Path:
    """A copy of a job's traces in which one rank's file ends after a part of its text."""
    for number, file in enumerate(sorted(source.iterdir())):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        end = int(part * len(text)) if number == rank else len(text)
        (folder / file.name.removesuffix(".gz")).write_bytes(text[:end])
    return folder


def two_folders(folder: Path) -> tuple[Path, Path]:
    whole, cut = folder / "whole", folder / "cut"
    whole.mkdir()
    cut.mkdir()
    return whole, cut


def read(folder: Path, first: int | None = None, last: int | None = None) -> TracedJob:
    options = TraceOptions(first_step=first, last_step=last, replay=False)
    return audit([folder], FACTS, cache=False, options=options)


def shares(job: TracedJob, rank: int, *, waits_apart: bool) -> dict[str, float]:
    (ledger,) = (part.ledger for part in job.job.ranks if part.rank == rank)
    booked: dict[str, float] = {}
    for name, seconds in ledger.accounts.items():
        key = name if waits_apart or not name.startswith(WAITS) else "waits and transfers"
        booked[key] = booked.get(key, 0.0) + seconds / ledger.gpu_seconds
    return booked


@pytest.mark.parametrize("part", [0.03, 0.2, 0.5, 0.8, 0.97, 0.999])
@pytest.mark.parametrize("name", ["slow-rank-0.3", "healthy-long", "slow-rank-fsdp"])
def test_a_cut_rank_leaves_the_shares_of_the_others(name: str, part: float, tmp_path: Path) -> None:
    """Over the same steps the shares are those of the intact job; where the rank is left out, waits for
    it are communication.
    """
    found = read(damaged(GLOO / name, tmp_path, 1, part))
    window = found.job.ledger.window
    intact = read(GLOO / name, window.first_step, window.last_step)
    apart = len(found.ranks) == len(intact.ranks)
    own, expected = (shares(job, 0, waits_apart=apart) for job in (found, intact))
    assert own == pytest.approx(expected, abs=2 * POINT)
    assert len({rank.steps for rank in found.ranks}) == 1
    texts = [text for text in found.left_out if "not whole in" in text or "without it" in text]
    assert len(texts) == 1 and "rank_1.json" in texts[0]


@pytest.mark.parametrize("part", [0.5, 0.75, 0.9])
def test_ranks_of_devices_are_measured_over_the_steps_that_all_have(
    part: float, tmp_path: Path
) -> None:
    whole, cut = two_folders(tmp_path)
    data_parallel_job(whole, 4, slow={2: 1.4}, steps=8)
    found = read(damaged(whole, cut, 3, part))
    intact = read(whole)
    steps = found.ranks[0].steps
    assert steps == tuple(range(1, len(steps) + 1)) and 3 <= len(steps) < 8
    assert {rank.steps for rank in found.ranks} == {steps}
    for rank in range(3):
        expected = shares(intact, rank, waits_apart=True)
        assert shares(found, rank, waits_apart=True) == pytest.approx(expected, abs=POINT)
    text = next(text for text in found.left_out if "not whole" in text)
    assert f"audited: steps 1 to {len(steps)}, which every rank has" in text


def test_a_rank_without_a_whole_step_is_left_out_and_named(tmp_path: Path) -> None:
    whole, cut = two_folders(tmp_path)
    data_parallel_job(whole, 4, slow={2: 1.4}, steps=3)
    found = read(damaged(whole, cut, 1, 0.1))
    assert [rank.rank for rank in found.ranks] == [0, 2, 3]
    intact = read(whole)
    for rank in (0, 2, 3):
        expected = shares(intact, rank, waits_apart=True)
        assert shares(found, rank, waits_apart=True) == pytest.approx(expected, abs=POINT)
    (text,) = (text for text in found.left_out if "without it" in text)
    assert "rank_1.json" in text and "waits for rank 1 count as communication" in text


def test_a_trace_that_lost_its_kernels_is_no_run_on_the_host(tmp_path: Path) -> None:
    """Files of GPUs have all operators before the first kernel."""
    whole, cut = two_folders(tmp_path)
    for path in data_parallel_job(whole, 3):
        data = json.loads(path.read_text())
        data["traceEvents"].sort(key=lambda event: event["cat"] in ("kernel", "cuda_runtime"))
        path.write_text(json.dumps(data))
    text = (whole / "rank_2.json").read_text()
    found = read(damaged(whole, cut, 2, text.index('"kernel"') / len(text)))
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert any("rank_2.json" in text and "without it" in text for text in found.left_out)


def test_ranks_with_other_steps_are_measured_over_the_common_ones(tmp_path: Path) -> None:
    for rank, first in ((0, 1), (1, 1), (2, 3)):
        maker = Maker(rank=rank, world=3)
        for number in range(first, first + 4):
            start = maker.host
            maker.product(512, 512, 512, 500.0)
            maker.host = maker.device - 10.0
            maker.step(number, start)
        maker.write(tmp_path)
    found = read(tmp_path)
    assert [rank.steps for rank in found.ranks] == [(3, 4)] * 3
    (text,) = found.left_out
    assert text.startswith("steps 1, 2, 5, 6: not whole in rank_0.json, rank_1.json, rank_2.json")


def test_a_cut_trace_alone_is_measured_over_its_whole_steps(tmp_path: Path) -> None:
    whole, cut = two_folders(tmp_path)
    (path,) = data_parallel_job(whole, 1, steps=4)
    data = json.loads(path.read_text())
    data["traceEvents"].sort(key=lambda event: event["ts"])
    path.write_text(json.dumps(data))
    found = read(damaged(whole, cut, 0, 0.7))
    assert found.ranks[0].steps == (1, 2)
    assert any(text.endswith("audited: steps 1 to 2") for text in found.left_out)


EMPTY = {
    "no bytes": b"",
    "blank": b" \n",
    "object": b"{}",
    "array": b"[]",
    "no events": b'{"schemaVersion": 1, "traceEvents": []}',
    "only metadata": b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", EMPTY.values(), ids=EMPTY.keys())
def test_an_empty_trace_is_called_empty(content: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("rank_7.json.gz" if packed else "rank_7.json")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=r"rank_7.*empty.*never came to `active`"):
        audit([path], FACTS, cache=False)
    data_parallel_job(tmp_path, 2)
    (text,) = audit([tmp_path], FACTS, cache=False).left_out
    assert "rank_7" in text and "empty" in text
