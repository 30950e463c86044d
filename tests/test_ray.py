"""Ray clusters, one after the other: a driver without an address joins any cluster of the machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import computeflow as cf
from computeflow.simulation.simulate import play_many
from test_probe import PROGRAM, probe
from test_simulation import a_run, by_time

RUN_FOLDERS = Path(__file__).parent / "data" / "run_folders"


@pytest.mark.live
def test_ray_gives_the_same_bytes() -> None:
    pytest.importorskip("ray")
    run = by_time(a_run(gpus=512), 20)
    here = play_many([run], replicas=2100, seed=3)[0]
    there = play_many([run], replicas=2100, seed=3, engine="ray")[0]
    assert here.seconds.tobytes() == there.seconds.tobytes()
    for name, values in here.accounts.items():
        assert values.tobytes() == there.accounts[name].tobytes()
    assert here.causes.tobytes() == there.causes.tobytes()


@pytest.mark.live
def test_recorded_runs_are_audited_by_ray_workers_with_the_same_result(tmp_path: Path) -> None:
    """One folder with several runs, each read by a worker; one that is damaged costs no other."""
    pytest.importorskip("ray")
    shutil.copytree(RUN_FOLDERS, tmp_path / "runs")
    here = cf.audit(tmp_path / "runs").to_dict()
    there = cf.audit(tmp_path / "runs", engine="ray").to_dict()
    assert there == here
    assert len({Path(source["path"]).parent for source in there["sources"]}) == 7
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "rank-00000.attempt-0.cfr").write_bytes(b"CFREC\x01\r\n" + b"x" * 100)
    damaged = cf.audit(tmp_path / "runs", engine="ray").to_dict()
    assert damaged["findings"] == here["findings"]
    assert any("broken" in text for text in damaged["left_out"])


@pytest.mark.live
def test_a_ray_cluster_is_probed_node_by_node_and_its_absence_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install ray")
    from ray.cluster_utils import Cluster

    for address in ("auto", "127.0.0.1:1"):
        absent = subprocess.run(
            [*PROGRAM, "--ray", address],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=300,
        )
        assert (absent.returncode, absent.stderr.count("\n")) == (1, 1), absent.stderr
        assert "no Ray cluster" in absent.stderr
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        cluster.add_node(num_cpus=1, num_gpus=0)
        found = probe("--storage", str(tmp_path), "--ray", cluster.address, alone=True)
    finally:
        cluster.shutdown()
    assert [p["rank"] for p in found["probes"]] == [0, 1]
    assert "all-reduce x2" in {item["name"] for item in found["probes"][0]["items"]}
