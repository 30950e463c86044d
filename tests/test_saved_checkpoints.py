"""Checkpoints that a job can go on from, and those that it cannot: cut off, empty, unfinished."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from computeflow.actions.saved_checkpoints import fault_of, latest_checkpoint

torch = pytest.importorskip("torch")


def save(path: Path, at: float = 1000.0) -> Path:
    torch.save({"model": {"w": torch.arange(4096.0)}, "step": 7}, path)
    os.utime(path, (at, at))
    return path


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def test_the_newest_that_is_whole_is_taken(tmp_path: Path) -> None:
    save(tmp_path / "step-1.pt", 1000.0)
    save(tmp_path / "step-2.pt", 2000.0)
    os.utime(cut(save(tmp_path / "step-3.pt"), 0.6), (3000.0, 3000.0))
    (tmp_path / ".step-4.pt").write_bytes(b"being written")
    (tmp_path / "step-4.pt.tmp").write_bytes(b"being written")
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (Path(found.path).name, found.saved, found.fault) == ("step-2.pt", 2000.0, "")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_of_torch_that_is_cut_off_is_none(tmp_path: Path, share: float) -> None:
    assert fault_of(cut(save(tmp_path / "step.pt"), share))


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    path = save(tmp_path / "step.pt")
    content = bytearray(path.read_bytes())
    middle = content.index(struct.pack("<f", 2000.0))
    content[middle] ^= 255
    path.write_bytes(bytes(content))
    assert "damaged" in fault_of(path)


def test_safetensors_are_as_long_as_their_header_says(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    assert fault_of(path) == ""
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert "75 bytes of 79" in fault_of(path)


def test_a_distributed_checkpoint_has_all_files_that_its_metadata_names(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    folder = tmp_path / "step-5"
    checkpoint.save({"w": torch.arange(8.0)}, checkpoint_id=folder, no_dist=True)
    assert fault_of(folder) == ""
    (part,) = folder.glob("*.distcp")
    part.unlink()
    assert part.name in fault_of(folder)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None
