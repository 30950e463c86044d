"""FLOPs agree with what the field publishes; impossible layouts are refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.errors import InputError
from computeflow.workload import Job, Layout, Layouts, check_layout, flops_per_token, refusals
from computeflow.workload.flops import mean_context

MODELS = load_catalog().models


@pytest.mark.parametrize(
    ("name", "seq_len", "gigaflops", "convention"),
    [  # implied by published (TFLOP/s or MFU x peak) / (tokens/s)
        ("llama-3-8b", 8192, 51.5, "total"),  # Megatron-Bridge performance summary
        ("llama-3-8b", 8192, 57.9, "palm"),  # NeMo 2024 and llm-foundry
        ("llama-3-70b", 8192, 449, "total"),
        ("llama-3-70b", 8192, 481, "palm"),
        ("llama-3.1-405b", 8192, 2520, "total"),
        ("gpt3-175b", 2048, 1075, "palm"),
        ("deepseek-v3", 4096, 250, "total"),  # without the prediction module, 25.11
        ("gpt-oss-120b", 4096, 32.6, "total"),  # 26.06 and later
        ("nemotron-4-340b", 4096, 2103, "palm"),
    ],
)
def test_flops_per_token_are_the_published_ones(
    name: str, seq_len: int, gigaflops: float, convention: str
) -> None:
    flops = getattr(flops_per_token(MODELS[name], seq_len), convention)
    assert flops / 1e9 == pytest.approx(gigaflops, rel=0.005)


@pytest.mark.parametrize("model", list(MODELS), ids=lambda m: m.name)
def test_every_model_of_the_catalog_can_be_counted(model: object) -> None:
    flops = flops_per_token(model, 4096)  # type: ignore[arg-type]
    assert 0 < flops.attention <= flops.attention_full
    assert flops.total < flops.palm * 1.0001


def test_the_trainers_count_is_the_catalogs() -> None:
    from computeflow.lab.trainer import TrainerSettings

    shape = TrainerSettings(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq_len=4096
    )
    assert shape.flops_per_token == flops_per_token(MODELS["llama-3.1-8b"], 4096).total


def test_a_window_halves_nothing_until_it_is_shorter_than_the_sequence() -> None:
    assert mean_context(4096, None) == mean_context(4096, 8192) == 2048
    assert mean_context(4096, 128) == 128 - 128**2 / 8192


JOB = Job(model=MODELS["llama-3.1-8b"], global_batch=512, seq_len=8192)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tp": 3}, "tp x pp x cp does not divide the GPUs"),
        ({"tp": 64}, "tp does not divide 32 attention heads"),
        ({"micro_batch": 3}, "micro-batch x dp does not divide"),
        ({"pp": 64}, "more pipeline chunks than layers"),
        ({"vp": 2}, "without a pipeline"),
        ({"pp": 8, "vp": 4, "micro_batch": 16}, "multiples of pp"),
        ({"cp": 64, "gpus": 64 * 3, "tp": 1}, "micro-batch"),
        ({"replicas": 2, "sharding": "ddp"}, "replicas without groups"),
    ],
)
def test_an_impossible_layout_says_why(change: dict[str, int], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_layout(JOB, Layout(**({"gpus": 64} | change)))  # type: ignore[arg-type]


def test_a_possible_layout_passes() -> None:
    check_layout(JOB, Layout(gpus=64, tp=4, pp=2, vp=2, micro_batch=2))


@given(
    st.lists(
        st.builds(
            Layout,
            gpus=st.sampled_from([1, 8, 64, 96, 512]),
            tp=st.integers(1, 16),
            pp=st.integers(1, 16),
            vp=st.integers(1, 4),
            cp=st.integers(1, 8),
            micro_batch=st.integers(1, 8),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_passes_the_gate_divides_without_rest(rows: list[Layout]) -> None:
    layouts = Layouts.of(rows)
    refused = np.zeros(len(layouts), bool)
    for mask in refusals(JOB, layouts).values():
        refused |= mask
    good = layouts.where(~refused)
    assert (good.dp * good.tp * good.pp * good.cp == good.gpus).all()
    assert (good.micro_batches(JOB) * good.micro_batch * good.dp == JOB.global_batch).all()
    assert [layouts[i] for i in range(len(layouts))] == rows
