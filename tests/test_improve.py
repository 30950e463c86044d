"""`improve`: a path of changes, each written into the user's own file and predicted from it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.corpus import Recording, recordings
from benchmarks.improve_gains import held_share, measured_gains
from benchmarks.public_configs import PUBLIC_CONFIGS, PublicConfig

import computeflow as cf
from computeflow.cli import run
from computeflow.files import edits
from computeflow.files.limits import CONFIG_BYTES
from computeflow.files.parsing import parse_json, parse_toml, parse_yaml
from computeflow.planning.exports.frameworks.shell.flag_edits import drop_flag, set_flag
from computeflow.planning.improvement import UNDESCRIBED

DATA = Path(__file__).parent / "data"
EXPORTS = DATA / "exports"
RECORDINGS = DATA / "h200_traces"
every = pytest.mark.parametrize("config", PUBLIC_CONFIGS, ids=lambda config: config.file)
NOTHING = {
    "torchtitan_llama3_405b.toml", "megatron_gpt_76b.sh", "megatron_bloom_176b.slurm",
    "megatron_pai_qwen3.sh", "accelerate_fsdp.yaml", "deepspeed_bing_bert_lamb.json",
}  # fmt: skip
"""Public files for which no change is found that they can say."""


@every
def test_the_changed_file_takes_the_promised_step(config: PublicConfig, tmp_path: Path) -> None:
    """Every difference is taken by `patch`, and the file then says what was promised."""
    file = tmp_path / config.file
    file.write_text(config.text)
    path = cf.improve(file, on=config.on, **config.given).to_dict()
    steps = path["steps"]
    assert (config.file in NOTHING) == (not steps)
    sizes = {key: value for key, value in config.given.items() if key != "model"}
    for step in steps:
        before = file.read_text()
        subprocess.run(["patch", "-s", str(file)], input=step["diff"], text=True, check=True)
        assert file.read_text() != before
        told = cf.predict(config.given.get("model"), on=config.on, from_=file, **sizes).to_dict()
        assert told["step_seconds"] == pytest.approx(step["step_seconds"], rel=0.01)
        assert told["memory"]["fits"]
    if steps:
        assert path["end"]["step_seconds"] == steps[-1]["step_seconds"]


def test_every_public_configuration_is_improved() -> None:
    files = {path.name for path in EXPORTS.iterdir()} - {"README.md"}
    assert {config.file for config in PUBLIC_CONFIGS} - {"fsdp2.py"} == files


def changed(name: str) -> str:
    """All differences of a public file, without their context."""
    config = next(each for each in PUBLIC_CONFIGS if each.file == name)
    steps = cf.improve(EXPORTS / name, on=config.on, **config.given).to_dict()["steps"]
    lines = "\n".join(step["diff"] for step in steps).split("\n")
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def test_keys_of_an_older_release_have_its_names() -> None:
    text = changed("torchtitan_llama3_8b_v0.1.toml")
    assert "+compile = true" in text
    assert "components" not in text


def test_an_older_megatron_gets_no_flag_that_it_may_not_know() -> None:
    """Megatron-DeepSpeed has no --recompute-granularity and no --pipeline-model-parallel-layout."""
    assert "+    --" not in changed("megatron_bloom_176b.slurm")


def test_a_size_in_a_variable_is_changed_where_the_script_sets_it() -> None:
    text = changed("megatron_fsdp_deepseek_v3.sh")
    assert "-MBS=${MBS:-4}\n+MBS=${MBS:-1}" in text
    assert "-EP=${EP:-8}" in text


def test_what_the_trainer_fills_stays_its_own() -> None:
    """transformers refuses a value that its arguments do not have."""
    text = changed("deepspeed_transformers_zero3.json")
    assert '"stage": 1' in text
    assert "train_micro_batch_size_per_gpu" not in text


def test_a_section_that_the_new_plan_has_not_goes_whole() -> None:
    lines = changed("deepspeed_axolotl_zero3_offload.json").split("\n")
    assert not any("offload" in line for line in lines if line.startswith("+"))


def test_sharding_that_stands_in_another_file_is_not_changed() -> None:
    assert "fsdp" not in changed("trainer_llama_factory_qwen3_4b.yaml")


def test_fully_sharded_megatron_starts_without_the_variable_that_it_refuses(tmp_path: Path) -> None:
    text = (EXPORTS / "megatron_llama3_8b.sh").read_text()
    file = tmp_path / "train.sh"
    file.write_text(text.replace("GPUS_PER", "export CUDA_DEVICE_MAX_CONNECTIONS=1\nGPUS_PER", 1))
    (first,) = cf.improve(file, on="h100-sxm:8").to_dict()["steps"]
    assert "+    --use-megatron-fsdp" in first["diff"]
    assert "-export CUDA_DEVICE_MAX_CONNECTIONS=1" in first["diff"]


def test_a_saved_prediction_is_improved(tmp_path: Path) -> None:
    """Its options with the changes give the promised steps."""
    options: dict[str, Any] = {"global_batch": 256, "seq_len": 8192, "sharding": "fsdp"}
    options |= {"recompute": "full", "stack": "torchtitan"}
    saved = cf.predict("llama-3.1-8b", on="h100-sxm:64", **options).to_dict()
    file = tmp_path / "prediction.json"
    file.write_text(json.dumps(saved))
    path = cf.improve(file, on="h100-sxm:64").to_dict()
    assert path["start"]["step_seconds"] == saved["step_seconds"]
    for step in path["steps"]:
        added = [line.split() for line in step["diff"].split("\n") if line.startswith("+")]
        options |= {name.removeprefix("--").replace("-", "_"): value for _, name, value in added}
        told = cf.predict("llama-3.1-8b", on="h100-sxm:64", **options).to_dict()
        assert told["step_seconds"] == pytest.approx(step["step_seconds"], rel=0.01)
    assert path["steps"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved.pop("job"), "without its job"),
        (lambda saved: saved["layout"].update(gpus=8), "predicted on 8 GPUs, --on names 64"),
        (lambda saved: saved.update(stack="llm.c"), "not known what can be changed"),
        (lambda saved: saved["layout"].update(sparkle=1), "layout.sparkle"),
    ],
)
def test_a_saved_prediction_that_cannot_be_improved_says_why(
    change: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = cf.predict("llama-3.1-8b", on="h100-sxm:64", global_batch=64, seq_len=2048).to_dict()
    change(saved)
    file = tmp_path / "prediction.json"
    file.write_text(json.dumps(saved))
    assert run(["improve", str(file), "--on", "h100-sxm:64"]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_a_huge_configuration_names_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "huge.toml"
    file.write_text("[training]\nlocal_batch_size = 1\n" + "#" * CONFIG_BYTES)
    assert run(["improve", str(file), "--on", "h100-sxm:8"]) == 2
    assert f"larger than {CONFIG_BYTES:,} bytes" in capsys.readouterr().err


def test_a_file_that_may_not_be_read_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.toml"
    file.write_text("[training]\n")

    real = os.open

    def refuse(path: Any, *flags: Any) -> int:
        if Path(path) == file:
            raise PermissionError(13, "Permission denied", str(file))
        return real(path, *flags)

    monkeypatch.setattr("computeflow.files.reading.os.open", refuse)
    assert run(["improve", str(file), "--on", "h100-sxm:8"]) == 2
    message = capsys.readouterr().err
    assert "Permission denied" in message
    assert message.count("\n") == 1


def test_the_same_mathematics_come_first_and_gains_are_worth_it() -> None:
    file = EXPORTS / "torchtitan_llama3_8b.toml"
    steps = cf.improve(file, on="h100-sxm:64").to_dict()["steps"]
    assert {"uncompiled", "recompute-excess"} <= {step["rule"] for step in steps}
    same = [step["same_mathematics"] for step in steps]
    assert same == sorted(same, reverse=True)
    for step in steps:
        low, high = step["gain_range"]
        assert step["gain"] >= 0.02
        assert low < step["gain"] < high
    keys = "change rule gain gain_range step_seconds mfu memory_bytes risk same_mathematics diff"
    assert set(keys.split()) <= steps[0].keys()


def test_ranges_hold_the_gains_that_were_measured() -> None:
    """Published runs that differ in one option; by the figures alone, a quarter lay in them."""
    gains = measured_gains()
    assert len(gains) > 200
    assert 0.75 < held_share(gains, UNDESCRIBED) < 0.9
    assert sum(gain.measured > 0 for gain in gains) > 0.8 * len(gains)


def test_a_measured_mfu_anchors_the_path_and_widens_its_gains() -> None:
    file = EXPORTS / "torchtitan_llama3_8b.toml"
    free = cf.improve(file, on="h100-sxm:64").to_dict()
    anchored = cf.improve(file, on="h100-sxm:64", measured_mfu=0.24).to_dict()
    assert anchored["start"]["mfu"] == pytest.approx(0.24)
    seconds = anchored["start"]["step_seconds"]
    assert seconds > free["start"]["step_seconds"]
    by_step = cf.improve(file, on="h100-sxm:64", step_seconds=seconds).to_dict()
    assert by_step["steps"] == anchored["steps"]
    for one, other in zip(free["steps"], anchored["steps"], strict=True):
        assert one["gain"] == pytest.approx(other["gain"])
        low = one["gain_range"][0]
        assert other["gain_range"][0] < low if low > 0 else other["gain_range"][0] == low
    assert anchored["steps"][-1]["gain_range"][0] > 0
    assert "no setting of this file explains them" in anchored["notes"][0]


def test_what_does_not_fit_is_made_to_fit_first() -> None:
    path = cf.improve(EXPORTS / "megatron_llama3_8b.sh", on="h100-sxm:8").to_dict()
    first = path["steps"][0]
    assert not path["start"]["runs"]
    assert (first["rule"], first["gain"]) == ("does-not-fit", None)


SILENT = {"host-sync-8", "host-sync-deep", "launch-bound-wide"}
"""Planted faults with an empty path: they cost little in a step that is not recorded
(benchmarks/reports/improve.md, tests/test_replay.py)."""
LABELLED = list(
    {one.rule: one for one in recordings() if one.rule and one.name not in SILENT}.values()
)
"""The last recording of every label; all of them take minutes."""


@pytest.mark.parametrize("one", LABELLED, ids=lambda one: one.name)
def test_the_first_change_of_a_recording_is_the_faults_remedy(one: Recording) -> None:
    first = cf.improve(one.path).to_dict()["steps"][0]
    assert first["rule"] == one.rule
    assert first["change"]
    assert first["same_mathematics"] == (one.rule != "matmul-precision")


def test_a_sound_recording_has_nothing_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(RECORDINGS / "healthy-base.json.gz")
    assert run(["improve", file, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["steps"] == []
    assert run(["improve", file]) == 0
    assert "Nothing to change" in capsys.readouterr().out


OTHERS = {
    "hf_eager_attention": "unfused-attention",
    "hf_tiny_batch": "launch-bound",
    "hf_slow_dataset": "input-stall",
    "pl_sync": "host-sync",
    "gpt_python": "host-stall",
}


@pytest.mark.shared
@pytest.mark.parametrize(("name", "rule"), OTHERS.items(), ids=OTHERS)
def test_the_first_change_of_others_recordings_is_the_faults_remedy(
    name: str, rule: str, data_folder: Path
) -> None:
    file = data_folder / "recordings" / "foreign" / f"{name}.json.gz"
    assert cf.improve(file).to_dict()["steps"][0]["rule"] == rule


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["torchtitan_llama3_8b.toml"], "give --on"),
        (["torchtitan_llama3_8b.toml", "--on", "h100-sxm:64", "--measured-mfu", "24"], "0.24"),
    ],
)
def test_what_cannot_be_improved_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["improve", str(EXPORTS / arguments[0]), *arguments[1:]]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message


def test_the_answer_comes_first_and_keeps_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["improve", str(EXPORTS / "torchtitan_llama3_8b.toml"), "--on", "h100-sxm:64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Stands at 37.9 % MFU")
    assert max(map(len, lines)) <= 80


TOML = "[a]\nx = 1  # one\nlist = [\n  1,\n]\n\n[b]\ny = 2\n"


def test_a_key_of_toml_is_set_where_it_stands() -> None:
    text = edits.set_toml(TOML, "a.x", 3)
    assert "x = 3  # one" in text
    text = edits.set_toml(edits.set_toml(text, "a.list", [2]), "a.new", "z")
    text = edits.drop_toml(edits.set_toml(text, "c.d", True), "b.y")
    tree = {"a": {"x": 3, "list": [2], "new": "z"}, "b": {}, "c": {"d": True}}
    assert parse_toml(text, "f") == tree


def test_a_key_of_yaml_is_set_where_it_stands() -> None:
    text = "a: 1  # one\nb:\n  c: 2\n  d:\n  - 1\ne: 5\n"
    text = edits.set_yaml(edits.set_yaml(text, "a", 3), "b.c", "x")
    text = edits.set_yaml(edits.drop_yaml(text, "b.d"), "f.g", True)
    assert "a: 3  # one" in text
    assert parse_yaml(text, "f") == {"a": 3, "b": {"c": "x"}, "e": 5, "f": {"g": True}}


def test_a_key_of_json_is_set_where_it_stands() -> None:
    text = '{\n  "a": 1,\n  "b": {\n    "c": "x"\n  },\n  "d": 4\n}\n'
    text = edits.set_json(edits.set_json(text, "a", 2), "b.e", True)
    text = edits.drop_json(edits.set_json(text, "f.g.h", 1), "d")
    tree = {"a": 2, "b": {"c": "x", "e": True}, "f": {"g": {"h": 1}}}
    assert parse_json(text, "f") == tree
    assert '\n    "e": true\n' in text


def test_a_flag_is_set_where_it_stands() -> None:
    text = "torchrun x.py \\\n    --tp-size 8 \\\n    --bf16 \\\n    --lr 1\n"
    assert set_flag(text, "tp-size", "4", "lr") == text.replace("8", "4")
    added = set_flag(text, "pp", "2", "tp-size")
    assert added == text.replace("--tp-size 8 \\\n", "--tp-size 8 \\\n    --pp 2 \\\n")
    assert drop_flag(text, "bf16", has_value=False) == text.replace("    --bf16 \\\n", "")
