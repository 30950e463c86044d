"""A small GPT-NeoX on short texts; compiled into graphs, or not."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="neox_short-texts", cause="launch-bound", right="graphs", limit_seconds=120),
    Case(name="neox_in-graphs", wrong="graphs,large", limit_seconds=100),
    Case(name="neox_asks-nan", cause="host-sync", wrong="large,nan", right="large"),
)


def train(watch, fault):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    dev = device()
    graphs = "graphs" in fault and not is_tiny()
    large = "large" in fault
    config = GPTNeoXConfig(
        vocab_size=pick(16000, 64),
        hidden_size=pick(1024 if large else 512, 16),
        intermediate_size=pick(4096 if large else 2048, 32),
        num_hidden_layers=pick(4 if large else 6, 2),
        num_attention_heads=pick(8, 2),
        max_position_embeddings=512,
        use_cache=False,
    )
    with torch.device(dev):
        model = GPTNeoXForCausalLM(config)
    batch, length = pick((32, 512) if large else (8, 128), (2, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    texts = torch.randint(0, config.vocab_size, (64, length), device=dev)

    def loss_of(ids):
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    if graphs:
        loss_of = torch.compile(loss_of, mode="reduce-overhead")
    if "nan" in fault:
        for name, module in model.named_modules():
            if name.endswith(("dense", "dense_4h_to_h", "query_key_value", "layernorm")):
                module.register_forward_hook(stop_at_nan)
    step = 0
    while True:
        ids = texts[(step * batch) % (64 - batch + 1) :][:batch]
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = loss_of(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(step, loss.item())
        step += 1
        watch.step()


def stop_at_nan(module, inputs, out):
    if bool(torch.isnan(out).any()) or bool(torch.isinf(out).any()):
        raise FloatingPointError(type(module).__name__)
