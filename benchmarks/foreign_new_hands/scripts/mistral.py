"""Mistral under Lightning's Fabric: packed tokens, accumulation, a warm-up."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="mistral_ordinary"),
    Case(name="mistral_item-each-step", wrong="item"),
    Case(
        name="mistral_eight-pieces",
        cause="small-micro-batch",
        wrong="few,eight,pieces",
        right="few,eight",
    ),
    Case(name="mistral_checkpointing", cause="recompute-excess", wrong="again"),
    Case(name="mistral_32-true", cause="matmul-precision", wrong="few,fp32", right="few"),
    Case(
        name="mistral_fabric-saves",
        cause="checkpoint-stall",
        wrong="few,saves",
        right="few",
        cycle=3,
    ),
    Case(name="mistral_eager", cause="unfused-attention", wrong="eager"),
)


def make_model(fault):
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=pick(32000, 100),
        hidden_size=pick(1024, 32),
        intermediate_size=pick(3584, 64),
        num_hidden_layers=pick(4 if "few" in fault else 8, 2),
        num_attention_heads=pick(16, 2),
        num_key_value_heads=pick(4, 1),
        sliding_window=None,
        use_cache=False,
    )
    with torch.device(device()):
        model = MistralForCausalLM(config)
    if "eager" in fault:
        model.set_attn_implementation("eager")
    if "again" in fault:
        model.gradient_checkpointing_enable()
    return model.train()


def packed(batch):
    stream = torch.randint(0, pick(32000, 100), (512 * pick(1024, 16),))
    return DataLoader(
        list(stream.view(512, -1)) * 200, batch_size=batch, drop_last=True, pin_memory=not is_tiny()
    )


def train(watch, fault):
    from lightning_fabric import Fabric

    torch.set_float32_matmul_precision("highest")
    fabric = Fabric(
        accelerator="cpu" if is_tiny() else "cuda",
        devices=1,
        precision="32-true" if "fp32" in fault else "bf16-mixed",
    )
    fabric.launch()
    total = pick(8 if "eight" in fault else 16, 4)
    micro = 1 if "pieces" in fault else total
    pieces = total // micro
    model = make_model(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(packed(micro))
    file, losses = Path(tempfile.mkdtemp()) / "state.ckpt", []
    for number, ids in enumerate(loader):
        ready = (number + 1) % pieces == 0
        with fabric.no_backward_sync(model, enabled=not ready):
            loss = model(input_ids=ids, labels=ids).loss
            fabric.backward(loss / pieces)
        if not ready:
            continue
        step = number // pieces
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * min(1.0, (step + 1) / 200)
        optimizer.step()
        optimizer.zero_grad()
        finish_step(fabric, model, loss, step, file, losses, fault)
        watch.step()


def finish_step(fabric, model, loss, step, file, losses, fault):
    if "saves" in fault and step % 3 == 0:
        fabric.save(str(file), {"model": model, "step": step})
    if "item" in fault or step % 25 == 0:
        losses.append(loss.item())
