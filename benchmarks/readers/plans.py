"""Configurations of training frameworks, for `--from`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.readers.calling import shown, text_of, written
from benchmarks.readers.reader import (
    DATA,
    Build,
    Reader,
    files,
    json_shapes,
    line_shapes,
    records,
    repeated,
    toml_shapes,
    yaml_shapes,
)
from computeflow import answers
from computeflow.errors import InputError
from computeflow.planning.exports.config_reader import read_file


def _plan(content: bytes, folder: Path, format_name: str, name: str) -> object:
    path = written(content, folder, name)
    text = text_of(content, folder)
    with suppress(InputError):
        read_file(text, name)  # by its content
    reading = read_file(text, name, format_name)
    gpus = reading.layout.get("gpus")
    known = isinstance(gpus, int) and 0 < gpus <= 4096
    given: dict[str, Any] = {} if "model" in reading.job else {"model": "llama-3.1-8b"}
    given |= {} if "global_batch" in reading.job else {"global_batch": 1024}
    given |= {} if "seq_len" in reading.job else {"seq_len": 2048}
    model = given.pop("model", None)
    return shown(
        answers.predict(
            model, on=f"h100-sxm:{gpus if known else 64}", from_=path, format=format_name, **given
        )
    )


_SHELL = b"torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 "


def readers() -> list[Reader]:
    titan = toml_shapes(b'[model]\nname = "llama3"\nflavor = "8B"\n')
    shell: dict[str, Build] = {
        "many options": records(lambda n: b"--option-%d %d" % (n, n), _SHELL, b"\n", b" \\\n "),
        "variables": records(lambda n: b"A%d=%d" % (n, n), b"", b"\n" + _SHELL + b"\n"),
        "chained": records(
            lambda n: b"A%d=$A%d$A%d" % (n + 1, n, n), b"A0=xx\n", b"\n" + _SHELL + b"$A9\n"
        ),
        "growing": records(lambda n: b"A=$A$A", b"A=xx\n", b"\n" + _SHELL + b"$A\n"),
        "open quote": repeated(b"x ", b"A='", b""),
        "continued": repeated(b"\\\n", _SHELL),
        "expansions": repeated(b"${A:-", _SHELL, b"}" * 9),
        "substitutions": repeated(b"$((1+", _SHELL, b""),
        "ifs": repeated(b"if true; then\n", b"", _SHELL + b"\n", b"fi\n"),
        "loops": repeated(b"for i in 1 2; do\n", b"", _SHELL + b"\n", b"done\n"),
        **line_shapes(_SHELL + b"\n", [_SHELL]),
    }
    zero = b'{"train_micro_batch_size_per_gpu":1,"zero_optimization":'
    deepspeed = json_shapes(zero, b"}")
    deepspeed = {"natural": deepspeed["many keys"], **deepspeed}
    kinds: list[tuple[str, str, dict[str, Build], str]] = [
        ("torchtitan", "toml", _titled("torchtitan_llama3_8b.toml", titan), "torchtitan_*"),
        ("deepspeed", "json", deepspeed, "deepspeed_*"),
        ("megatron", "sh", _titled("megatron_llama3_8b.sh", shell), "megatron_*.s*"),
        ("nemo", "sh", _titled("nemo_llama3_70b.sh", shell), "nemo_*"),
        *_yaml_kinds(),
    ]
    return [
        Reader(
            name=f"plan-{name}",
            read=partial(_plan, format_name=name, name=f"plan.{ending}"),
            shapes=shapes,
            recorded=files(f"exports/{pattern}"),
        )
        for name, ending, shapes, pattern in kinds
    ]


def _yaml_kinds() -> Iterator[tuple[str, str, dict[str, Build], str]]:
    for name, head, file in (
        ("megatron-bridge", b"model:\n  num_layers: 4\n", "megatron_bridge_llama3_70b.yaml"),
        ("accelerate", b"compute_environment: LOCAL_MACHINE\n", "accelerate_fsdp.yaml"),
        ("trainer", b"per_device_train_batch_size: 1\n", "trainer_zephyr_7b.yaml"),
        ("maxtext", b"base_num_decoder_layers: 4\n", "maxtext_llama3_405b_v6e.yml"),
    ):
        pattern = f"{name.replace('-', '_')}_*"
        yield name, "yaml", _titled(file, yaml_shapes(head)), pattern


def _titled(file: str, shapes: dict[str, Build]) -> dict[str, Build]:
    """A real configuration below many comments, beside the hostile shapes."""
    content = (DATA / "exports" / file).read_bytes()
    return {"natural": records(lambda n: b"# line %d" % n, b"", b"\n" + content), **shapes}
