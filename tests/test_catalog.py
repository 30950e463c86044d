"""User files over ours, names and their misspellings, and what a damaged file says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.catalog.loading import KINDS, Catalog, normalise
from computeflow.catalog.lookup import GROUPS, find_model, find_names, find_offers, find_rows
from computeflow.errors import InputError, UnknownNameError

ROW = """
[[accelerator]]
name = "h100-lab"
like = "h100-sxm"
tdp_watts = 550
source = "nvidia-smi on our nodes"
as_of = "2026-10-01"
"""


OFFER = """
[[offer]]
name = "aws/p5.48xlarge"
provider = "aws"
instance = "p5.48xlarge"
accelerator = "h100-sxm"
count = 8
region = "us-east-1"
term = "on-demand"
usd_per_hour = 40.0
source = "our contract"
as_of = "2026-10"
"""
MODEL = """
[[model]]
name = "llama-wide"
like = "llama-3.1-8b"
vocab = 256000
source = "our repository"
as_of = "2026"
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


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_found_without_decoding_the_rows(kind: str) -> None:
    facts = load_catalog()
    decoded = {row.name: row.aliases for row in facts.rows(KINDS[kind])}
    assert dict(facts.names(kind)) == decoded


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "offer"])
def test_a_row_read_alone_is_the_one_read_with_all_others(kind: str) -> None:
    for row in load_catalog().rows(KINDS[kind]):
        alone = Catalog().rows(KINDS[kind])
        assert [alone[name] for name in (row.name, *row.aliases)] == [row] * (1 + len(row.aliases))


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


def test_a_replaced_row_keeps_our_aliases_and_a_new_one_does_not_take_them(tmp_path: Path) -> None:
    same = load_catalog([user_file(tmp_path, ROW.replace('"h100-lab"', '"h100-sxm"'))])
    assert same.accelerators["H100"].tdp_watts == 550
    assert find_names(same, "H100") == [("accelerator", "h100-sxm")]
    other = load_catalog([user_file(tmp_path, ROW, "other.toml")])
    assert other.accelerators["H100"].tdp_watts == 700
    assert other.accelerators["h100-lab"].aliases == ()


def test_a_row_may_start_from_an_alias(tmp_path: Path) -> None:
    path = user_file(tmp_path, ROW.replace('like = "h100-sxm"', 'like = "NVIDIA H100 80GB HBM3"'))
    assert load_catalog([path]).accelerators["h100-lab"].hbm_bytes == 80e9


@pytest.mark.parametrize("field", ["source", "as_of"])
def test_a_row_that_starts_from_ours_does_not_borrow_its_source(tmp_path: Path, field: str) -> None:
    text = "\n".join(line for line in ROW.splitlines() if not line.startswith(field))
    with pytest.raises(InputError, match=f"states its own {field}"):
        load_catalog([user_file(tmp_path, text)])


def test_a_price_of_the_user_goes_over_ours_and_leaves_the_others(tmp_path: Path) -> None:
    ours, mine = load_catalog(), load_catalog([user_file(tmp_path, OFFER)])
    assert len(mine.offers) == len(ours.offers)
    found = find_offers(mine, name="aws/p5.48xlarge", region="us-east-1", term="on-demand")
    assert [offer.usd_per_hour for offer in found] == [40.0]
    reserved = OFFER.replace('"on-demand"', '"reserved"\ncommitment = "2y"')
    more = load_catalog([user_file(tmp_path, reserved, "more.toml")])
    assert len(more.offers) == len(ours.offers) + 1


def test_a_provider_that_only_an_offer_names_can_be_asked_for(tmp_path: Path) -> None:
    path = user_file(tmp_path, OFFER.replace("aws", "me"))
    found = find_offers(load_catalog([path]), provider="me")
    assert [offer.name for offer in found] == ["me/p5.48xlarge"]
    with pytest.raises(UnknownNameError, match="unknown provider"):
        find_offers(load_catalog(), provider="me")


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
    ("name", "meant"),
    [
        ("vast", [("provider", "vast"), ("storage", "vast-nfs-rdma")]),
        ("GB200 NVL72", [("node", "gb200-nvl72"), ("accelerator", "gb200")]),
        ("H100", [("accelerator", "h100-sxm")]),
    ],
)
def test_a_row_of_that_very_name_comes_before_an_alias_of_any_kind(
    name: str, meant: list[tuple[str, str]]
) -> None:
    assert find_names(load_catalog(), name) == meant
    (row,) = find_rows(load_catalog(), name)
    assert (row.kind, row.name) == meant[0]


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
        ('as_of = "2026-10-01"', 'as_of = "2026-99-99"', "is not a date"),
        ('as_of = "2026-10-01"', 'as_of = "2026-02-30"', "is not a date"),
        ('like = "h100-sxm"', 'like = "h100-sxx"', "unknown accelerator 'h100-sxx'; nearest: h100"),
        ("tdp_watts = 550", 'link = "nvlink44"', "unknown fabric 'nvlink44'; nearest: nvlink4"),
        ("tdp_watts = 550", 'node = "dgx-h10"', "unknown node 'dgx-h10'; nearest: dgx-h100"),
        ("tdp_watts = 550", 'grade = "D"', "unknown grade 'D'.*choose one of A, B, C"),
        ("tdp_watts = 550", "dense_flops = {}", "needs its dense peak"),
        ("tdp_watts = 550", "tdp_watts = nan", "not a finite number"),
        ("tdp_watts = 550", f"domain = {'9' * 4000}", "too large a number"),
        ("tdp_watts = 550", f"domain = {'9' * 10_000}", "too large a number"),
        ("tdp_watts = 550", f"domain = {'[' * 100_000}", "nested too deeply"),
        ("[[accelerator]]", f"[[{'x' * 5000}]]", "5,000 characters; at most 256"),
        ("tdp_watts = 550", f"{'x' * 5000} = 1", "5,000 characters; at most 256"),
        ("tdp_watts = 550", f"grade = '{'D' * 5000}'", "unknown grade 'DDD"),
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
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROW + ROW, "accelerator h100-lab: there is a second one in this file"),
        (OFFER + OFFER, "offer aws/p5.48xlarge: there is a second one in this file"),
        (ROW + OFFER.replace("40.0", "-1.0"), "usd_per_hour = -1.0 is outside"),
        (OFFER.replace("h100-sxm", "h100-smx"), "unknown accelerator 'h100-smx'; nearest: h100"),
        (OFFER.replace("on-demand", "on demand"), "choose one of on-demand, spot, reserved"),
        (MODEL + 'norm = "rns"', "unknown norm 'rns'; nearest: rms"),
    ],
)
def test_a_file_that_is_named_is_checked_whole(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_catalog([user_file(tmp_path, text)])


def test_a_nested_choice_is_listed_too(tmp_path: Path) -> None:
    attention = "attention = { heads = 4, kv_heads = 2, head_dim = 16, qk_norm = 'heads' }"
    block = f"[[model.blocks]]\ncount = 2\n{attention}\n"
    with pytest.raises(InputError, match=r"unknown .*qk_norm 'heads'; nearest: head"):
        load_catalog([user_file(tmp_path, MODEL + block)])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.toml", None, "No such file"),
        ("binary.toml", b"\x80\x00", "not UTF-8"),
        ("wide.csv", "name,source".encode("utf-16"), "UTF-16, not UTF-8 text: save it as UTF-8"),
        ("empty.csv", b"", "empty"),
        ("EMPTY.CSV", b"", "empty"),
        ("header.csv", b"name,provider,source,as_of\n", "a header and no rows"),
        (
            "cell.csv",
            b"name,scope,usd_per_kwh,source,as_of\nx,world,1;2,s,2026\n",
            "line 2: usd_per_kwh '1;2' is not a finite number",
        ),
        (
            "row.csv",
            b"name,scope,usd_per_kwh,source,as_of\nx,world,1,s,2026\ny,world,9,s,2026\n",
            "line 3: grid y: usd_per_kwh = 9.0 is outside",
        ),
        (
            "choice.csv",
            b"name,scope,source,as_of\nx,wrld,s,2026\n",
            "line 2: grid x: choose one of",
        ),
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


@pytest.mark.parametrize("what", ["a folder", "a pipe"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, what: str) -> None:
    path = tmp_path / "mine.toml"
    if what == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(InputError, match=f"{what}, not a file"):
        load_catalog([path])


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(InputError, match="not a file"):
        load_catalog(["/dev/zero"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything; run as another user")
def test_a_file_one_may_not_read_is_one_line(tmp_path: Path) -> None:
    path = user_file(tmp_path, ROW)
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        load_catalog([path])


def test_an_upper_case_suffix_is_a_csv_too(tmp_path: Path) -> None:
    path = user_file(
        tmp_path, "name,scope,usd_per_kwh,source,as_of\nlab,world,0.3,bill,2026\n", "A.CSV"
    )
    assert load_catalog([path]).grids["lab"].usd_per_kwh == 0.3


def test_a_model_in_a_file_may_start_from_one_of_ours(tmp_path: Path) -> None:
    model = find_model(load_catalog(), str(user_file(tmp_path, MODEL)))
    assert (model.vocab, model.layers) == (256_000, 32)


def test_a_file_with_two_models_is_not_one_model(tmp_path: Path) -> None:
    path = user_file(tmp_path, MODEL + MODEL.replace("llama-wide", "llama-wider"))
    with pytest.raises(InputError, match="holds 2 models; one is needed here"):
        find_model(load_catalog(), str(path))


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
