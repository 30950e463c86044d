"""Models that people train, small enough to record in seconds: `JOBS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

Sample = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    loop: str
    """plain, accelerate, trainer or lightning."""
    build: Callable[[dict[str, Any]], nn.Module]
    sample: Callable[[int], Sample]
    batch: int
    judged: bool
    """It only judges: nothing is fitted to its recordings."""
    loss: Callable[[nn.Module, Sample], torch.Tensor]
    kind: str
    compiled: bool = False


class Samples(Dataset[Sample]):
    """As many samples as a run needs, made when they are asked for."""

    def __init__(self, make: Callable[[int], Sample], count: int = 100_000) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        return self.make(index)


def tokens(length: int, vocab: int, labels: bool = True) -> Callable[[int], Sample]:
    def make(index: int) -> Sample:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, vocab, (length,), generator=generator)
        return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}

    return make


def images(size: int) -> Callable[[int], Sample]:
    pool = torch.randn(64, 3, size, size)

    def make(index: int) -> Sample:
        return {"pixel_values": pool[index % 64], "labels": torch.tensor(index % 1000)}

    return make


def own_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def class_loss(model: nn.Module, batch: Sample) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["pixel_values"]), batch["labels"])


def _gpt2(options: dict[str, Any]) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=1280, n_head=20, **options))


def _llama(options: dict[str, Any], layers: int = 6, hidden: int = 2048) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=hidden,
            intermediate_size=hidden * 11 // 4,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 128,
            vocab_size=32000,
            max_position_embeddings=4096,
            **options,
        )
    )


def _qwen(options: dict[str, Any]) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            num_hidden_layers=6,
            hidden_size=1792,
            intermediate_size=4864,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=32000,
            **options,
        )
    )


def _mixtral(options: dict[str, Any]) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            num_hidden_layers=4,
            hidden_size=1536,
            intermediate_size=4096,
            num_attention_heads=12,
            num_key_value_heads=4,
            num_local_experts=8,
            num_experts_per_tok=2,
            vocab_size=32000,
            **options,
        )
    )


def _bert(options: dict[str, Any]) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**options))


def _t5(options: dict[str, Any]) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    options = {k: v for k, v in options.items() if k != "attn_implementation"}
    return T5ForConditionalGeneration(
        T5Config(
            d_model=1024,
            d_ff=4096,
            num_layers=4,
            num_heads=16,
            decoder_start_token_id=0,
            pad_token_id=0,
            **options,
        )
    )


def _vit(options: dict[str, Any]) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000, **options))


def _resnet(options: dict[str, Any]) -> nn.Module:
    from torchvision.models import resnet50

    return resnet50()


def _convnext(options: dict[str, Any]) -> nn.Module:
    from torchvision.models import convnext_tiny

    return convnext_tiny()


class LoraLinear(nn.Module):
    """A frozen linear layer and a trained update of low rank beside it."""

    def __init__(self, frozen: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def _replace_linears(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], within: str
) -> nn.Module:
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and within in f"{name}.{child_name}":
                setattr(module, child_name, make(child))
    return model


def _lora(options: dict[str, Any]) -> nn.Module:
    model = _llama(options, layers=6).requires_grad_(False)
    return _replace_linears(model, LoraLinear, "layers")


class _Fp8Product(torch.autograd.Function):
    """x @ w.T in fp8 with a scale for each tensor; gradients in bf16."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        flat = x.reshape(-1, x.shape[-1])
        x8, x_scale = _to_fp8(flat)
        w8, w_scale = _to_fp8(w)
        y = torch._scaled_mm(x8, w8.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=torch.bfloat16)
        return y.reshape(*x.shape[:-1], w.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1]).to(torch.bfloat16)
        flat = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        return (grad @ w.to(torch.bfloat16)).reshape(x.shape).to(x.dtype), (grad.t() @ flat).to(
            w.dtype
        )


def _to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax().float().clamp(min=1e-12) / 448.0
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


class Fp8Linear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Fp8Product.apply(x.to(torch.bfloat16), self.weight)
        return y


def _fp8(options: dict[str, Any]) -> nn.Module:
    return _replace_linears(_llama(options), Fp8Linear, "layers")


def _job(name: str, loop: str, build: Any, sample: Any, batch: int, kind: str, **more: Any) -> Job:
    more.setdefault("loss", own_loss)
    more.setdefault("judged", False)
    return Job(name=name, loop=loop, build=build, sample=sample, batch=batch, kind=kind, **more)


JOBS = {
    job.name: job
    for job in (
        _job("gpt2", "plain", _gpt2, tokens(1024, 50257), 16, "decoder"),
        _job("llama", "trainer", _llama, tokens(1024, 32000), 16, "decoder"),
        _job("resnet", "lightning", _resnet, images(224), 128, "vision", loss=class_loss),
        _job("bert", "accelerate", _bert, tokens(512, 30522), 64, "encoder"),
        _job("lora", "plain", _lora, tokens(1024, 32000), 24, "lora"),
        _job("llama-compiled", "plain", _llama, tokens(1024, 32000), 16, "compiled", compiled=True),
        _job("qwen", "accelerate", _qwen, tokens(1024, 32000), 16, "decoder", judged=True),
        _job("mixtral", "plain", _mixtral, tokens(512, 32000), 24, "experts", judged=True),
        _job("vit", "lightning", _vit, images(224), 256, "vision", judged=True),
        _job("t5", "trainer", _t5, tokens(512, 32000), 32, "encoder-decoder", judged=True),
        _job("fp8", "plain", _fp8, tokens(1024, 32000), 16, "fp8", judged=True),
        _job(
            "convnext", "plain", _convnext, images(224), 128, "vision", loss=class_loss, judged=True
        ),
        _job(
            "gpt2-compiled",
            "plain",
            _gpt2,
            tokens(1024, 50257),
            16,
            "compiled",
            compiled=True,
            judged=True,
        ),
    )
}
