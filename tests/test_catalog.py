"""User files over ours, names and their misspellings, and what a damaged file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.catalog.loading import KINDS, normalise
from computeflow.catalog.lookup import GROUPS, find_model, find_rows
from computeflow.errors import InputError, UnknownNameError

ROW = """
[[accelerator]]
name = "h100-lab"
like = "h100-sxm"
tdp_watts = 550
source = "nvidia-smi on our nodes"
as_of = "2026-10-01"
"""


def user_file(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_packaged_row_loads_with_source_and_date() -> None:
    facts = load_catalog()
    for kind in KINDS.values():
        rows = list(facts.rows(kind))
        assert rows, kind.kind
        assert all(row.source and row.as_of for row in rows)


def test_names_are_lower_case_and_no_spelling_means_two_rows() -> None:
    facts = load_catalog()
    for kind in KINDS.values():
        owners: dict[str, str] = {}
        for row in facts.rows(kind):
            if kind.kind != "offer":
                assert row.name == row.name.lower(), row.name
            for spelling in {normalise(name) for name in (row.name, *row.aliases)}:
                assert owners.setdefault(spelling, row.name) == row.name, spelling


def test_every_kind_of_row_is_listed_under_one_word() -> None:
    assert sorted(kind for kinds in GROUPS.values() for kind in kinds) == sorted(KINDS)


def test_a_row_of_the_user_starts_from_ours_and_states_what_differs(tmp_path: Path) -> None:
    facts = load_catalog([user_file(tmp_path, ROW)])
    mine, ours = facts.accelerators["H100 Lab"], facts.accelerators["h100-sxm"]
    assert (mine.tdp_watts, mine.dense_flops) == (550, ours.dense_flops)
    assert ours.tdp_watts == 700


def test_a_row_of_the_user_replaces_ours_of_the_same_name(tmp_path: Path) -> None:
    path = user_file(tmp_path, ROW.replace('"h100-lab"', '"h100-sxm"'))
    assert load_catalog([path]).accelerators["h100-sxm"].tdp_watts == 550


def test_the_users_folder_is_read_without_being_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path))
    (tmp_path / "catalog").mkdir()
    user_file(tmp_path / "catalog", ROW)
    assert "h100-lab" in load_catalog().accelerators


@pytest.mark.parametrize("name", ["h100-sxn", "H100sxm", "llama-3.1-70", "deepseekv3x"])
def test_a_misspelling_is_refused_with_near_names(name: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        find_rows(load_catalog(), name)
    assert error.value.near
    assert "nearest" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "nvidia-smi on our nodes"', 'source = ""', "needs a name and a source"),
        ("tdp_watts = 550", 'tdp_watts = "550 W"', "tdp_watts: Expected"),
        ("tdp_watts = 550", "tdp_wats = 550", "unknown field 'tdp_wats'; nearest: tdp_watts"),
        ("tdp_watts = 550", "hbm_bytes = 80", "is the unit SI"),
        ("tdp_watts = 550", "dense_flops = { bf16 = 989 }", "is the unit FLOP/s"),
        ("tdp_watts = 550", "dense_flops = { bf15 = 989e12 }", "unknown precision 'bf15'"),
        ("tdp_watts = 550", "sparse_flops = { bf16 = 989e12 }", "not above the dense"),
        ('as_of = "2026-10-01"', 'as_of = "last week"', "is not a date"),
        ('like = "h100-sxm"', 'like = "h100-sxx"', "names no row before it"),
        ("[[accelerator]]", "[[accelerators]]", "unknown kind of row 'accelerators'"),
        ("[[accelerator]]", "[accelerator]", r"write rows as \[\[accelerator\]\]"),
        ("[[accelerator]]", "[[accelerator", "not TOML"),
    ],
)
def test_a_bad_row_is_one_line_that_names_the_file(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = user_file(tmp_path, ROW.replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        _ = load_catalog([path]).accelerators
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.toml", None, "No such file"),
        ("binary.toml", b"\xff\xfe\x00", "not UTF-8"),
        ("empty.csv", b"", "empty"),
        ("cut.csv", b"name,provider,instance\nx,aws", "line 2 has 2 of 3 columns"),
        ("other.csv", b"a,b\n1,2\n", "fit no kind of row"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        _ = load_catalog([path]).accelerators


def test_a_model_may_be_a_toml_file(tmp_path: Path) -> None:
    path = user_file(
        tmp_path,
        """
        [[model]]
        name = "mine"
        family = "llama"
        hidden = 64
        vocab = 100
        source = "our repository"
        as_of = "2026"
        [[model.blocks]]
        count = 2
        attention = { heads = 4, kv_heads = 2, head_dim = 16 }
        dense = { width = 256 }
        """,
    )
    assert find_model(load_catalog(), str(path)).layers == 2
