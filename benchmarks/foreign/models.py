"""Models whose steps show what the profiler costs, at three sizes: `MODELS`.

None of them is judged on in `jobs`. A size changes the batch and the length, not the model: the host
has the same work at each of them, the device more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.foreign.jobs import Job, Sample, class_loss, images, own_loss, tokens

Build = Callable[[dict[str, Any]], nn.Module]
MakeSample = Callable[[int], Sample]
VOCAB = 32000


@dataclass(frozen=True, kw_only=True)
class Model:
    build: Build
    samples: Callable[[int], MakeSample]
    """The samples of one length (tokens, pixels of a side, frames)."""
    sizes: dict[str, tuple[int, int]]
    """Batch and length by size: small, middle, large."""
    loss: Callable[[nn.Module, Sample], torch.Tensor] = own_loss
    kind: str = "text"
    library_class: str | None = None
    """Its class in transformers, where it has one."""

    def job(self, name: str, size: str, loop: str, compiled: bool = False) -> Job:
        batch, length = self.sizes[size]
        return Job(
            name=name,
            loop=loop,
            build=self.build,
            sample=self.samples(length),
            batch=batch,
            judged=False,
            loss=self.loss,
            kind=self.kind,
            compiled=compiled,
        )


TEXT_SIZES = {"small": (2, 128), "middle": (12, 512), "large": (48, 512)}
"""`bert` in `truth.csv`, of 12 layers of this width, takes 99 ms for 32,768 tokens.

In proportion the middle size keeps the device busy for 19 ms; the host was assumed to need as much.
"""
IMAGE_SIZES = {"small": (2, 160), "middle": (48, 224), "large": (192, 224)}


def _token_ids(length: int) -> MakeSample:
    return tokens(length, VOCAB)


def _labelled(length: int) -> MakeSample:
    ids = tokens(length, VOCAB, labels=False)
    return lambda index: dict(ids(index), labels=torch.tensor(index % 2))


def _drawn(name: str, *shape: int) -> MakeSample:
    pool = torch.randn(64, *shape)
    return lambda index: {name: pool[index % 64], "labels": torch.tensor(index % 2)}


def _speech(length: int) -> MakeSample:
    features, ids = _drawn("input_features", 80, length), tokens(length // 8, VOCAB)
    return lambda index: {
        "input_features": features(index)["input_features"],
        "labels": ids(index)["labels"],
    }


def _pictures_and_words(length: int) -> MakeSample:
    pictures, ids = images(length), tokens(64, VOCAB, labels=False)
    return lambda index: dict(ids(index), pixel_values=pictures(index)["pixel_values"])


def _clicks(width: int) -> MakeSample:
    def make(index: int) -> Sample:
        generator = torch.Generator().manual_seed(index)
        return {
            "numbers": torch.randn(width, generator=generator),
            "ids": torch.randint(0, VOCAB, (Recommender.TABLES,), generator=generator),
        }

    return make


def square_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    loss: torch.Tensor = model(batch["x"]).float().square().mean()
    return loss


def token_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    scores = model(batch["input_ids"])
    return nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())


def click_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    loss: torch.Tensor = model(batch["numbers"], batch["ids"]).float().square().mean()
    return loss


def contrastive_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    loss: torch.Tensor = model(**batch, return_loss=True).loss
    return loss


class LstmModel(nn.Module):
    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.lstm = nn.LSTM(width, width, num_layers=3, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return scores


class EncoderModel(nn.Module):
    """torch's own transformer layers between an embedding and a head."""

    def __init__(self, width: int = 768, layers: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.encoder(self.embedding(ids)))
        return scores


class Recommender(nn.Module):
    """Tables of embeddings beside numbers, and a perceptron over both."""

    TABLES = 26

    def __init__(self, numbers: int = 64, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(VOCAB, width) for _ in range(self.TABLES))
        inputs = numbers + self.TABLES * width
        self.top = nn.Sequential(
            nn.Linear(inputs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        found = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        scores: torch.Tensor = self.top(torch.cat([numbers, *found], dim=1))
        return scores


def _perceptron(_: dict[str, Any]) -> nn.Module:
    layers = [part for _ in range(12) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 1000))


def _from_transformers(name: str, config: dict[str, Any], **more: Any) -> Model:
    def build(_: dict[str, Any]) -> nn.Module:
        made = getattr(import_module("transformers"), name)
        model: nn.Module = made(made.config_class(**config))
        return model

    text: dict[str, Any] = {"samples": _token_ids, "sizes": TEXT_SIZES, "library_class": name}
    return Model(build=build, **(text | more))


def _from_torchvision(name: str) -> Model:
    def build(_: dict[str, Any]) -> nn.Module:
        model: nn.Module = getattr(import_module("torchvision.models"), name)()
        return model

    return Model(build=build, samples=images, sizes=IMAGE_SIZES, loss=class_loss, kind="vision")


_WIDTHS = {
    "vocab_size": VOCAB,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
_DENSE = _WIDTHS | {"intermediate_size": 3072}
_SOUND_SIZES = {"small": (2, 16000), "middle": (16, 48000), "large": (48, 80000)}

MODELS = {
    "opt": _from_transformers("OPTForCausalLM", _WIDTHS | {"ffn_dim": 3072}),
    "gpt-neox": _from_transformers("GPTNeoXForCausalLM", _DENSE),
    "bloom": _from_transformers(
        "BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 768, "n_layer": 12, "n_head": 12}
    ),
    "falcon": _from_transformers("FalconForCausalLM", _WIDTHS),
    "phi": _from_transformers("PhiForCausalLM", _DENSE),
    "gemma": _from_transformers(
        "GemmaForCausalLM", _DENSE | {"head_dim": 64, "num_key_value_heads": 4}
    ),
    "stablelm": _from_transformers("StableLmForCausalLM", _DENSE | {"num_key_value_heads": 12}),
    "starcoder": _from_transformers("Starcoder2ForCausalLM", _DENSE | {"num_key_value_heads": 2}),
    "gptj": _from_transformers(
        "GPTJForCausalLM",
        {"vocab_size": VOCAB, "n_embd": 768, "n_layer": 12, "n_head": 12, "rotary_dim": 32},
    ),
    "mamba": _from_transformers(
        "MambaForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 512, "num_hidden_layers": 4},
        sizes={"small": (2, 32)},
    ),
    "distilbert": _from_transformers("DistilBertForMaskedLM", {"vocab_size": VOCAB}),
    "roberta": _from_transformers(
        "RobertaForMaskedLM", {"vocab_size": VOCAB, "max_position_embeddings": 1026}
    ),
    "albert": _from_transformers(
        "AlbertForSequenceClassification", _DENSE | {"num_labels": 2}, samples=_labelled
    ),
    "electra": _from_transformers(
        "ElectraForSequenceClassification",
        _DENSE | {"embedding_size": 768, "num_labels": 2},
        samples=_labelled,
    ),
    "deberta": _from_transformers("DebertaV2ForMaskedLM", _DENSE | {"num_hidden_layers": 6}),
    "bart": _from_transformers(
        "BartForConditionalGeneration",
        {"vocab_size": VOCAB, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6}
        | {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
        | {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
    ),
    "whisper": _from_transformers(
        "WhisperForConditionalGeneration",
        {"vocab_size": VOCAB, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
        | {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_source_positions": 500}
        | {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        samples=_speech,
        sizes={"small": (1, 1000), "middle": (16, 1000)},
    ),
    "wav2vec": _from_transformers(
        "Wav2Vec2ForSequenceClassification",
        {"layerdrop": 0.0, "apply_spec_augment": False, "num_labels": 2},
        samples=lambda length: _drawn("input_values", length),
        sizes=_SOUND_SIZES,
    ),
    "swin-library": _from_transformers(
        "SwinForImageClassification",
        {"num_labels": 1000},
        samples=images,
        sizes=IMAGE_SIZES | {"small": (2, 224)},
    ),
    "clip": _from_transformers(
        "CLIPModel",
        {"text_config": {"vocab_size": VOCAB, "hidden_size": 512}},
        samples=_pictures_and_words,
        sizes={"small": (4, 224), "middle": (64, 224)},
        loss=contrastive_loss,
    ),
    "dinov2": _from_transformers(
        "Dinov2ForImageClassification",
        {"num_labels": 1000},
        samples=images,
        sizes={"small": (2, 224), "middle": (32, 224)},
    ),
    "mobilenet": _from_torchvision("mobilenet_v3_large"),
    "efficientnet": _from_torchvision("efficientnet_b0"),
    "densenet": _from_torchvision("densenet121"),
    "regnet": _from_torchvision("regnet_y_1_6gf"),
    "swin": _from_torchvision("swin_t"),
    "shufflenet": _from_torchvision("shufflenet_v2_x1_0"),
    "perceptron": Model(
        build=_perceptron,
        samples=lambda length: _drawn("x", length, 2048),
        sizes={"small": (4, 1), "middle": (16, 64)},
        loss=square_loss,
    ),
    "encoder": Model(
        build=lambda _: EncoderModel(), samples=_token_ids, sizes=TEXT_SIZES, loss=token_loss
    ),
    "lstm": Model(
        build=lambda _: LstmModel(), samples=_token_ids, sizes=TEXT_SIZES, loss=token_loss
    ),
    "recommender": Model(
        build=lambda _: Recommender(),
        samples=_clicks,
        sizes={"small": (64, 64)},
        loss=click_loss,
    ),
}
