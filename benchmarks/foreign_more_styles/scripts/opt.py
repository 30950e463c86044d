"""OPT under Accelerate, with an average of the weights, a schedule and a progress bar."""

from __future__ import annotations

import random
import sys
import tempfile

import torch
from torch.utils.data import DataLoader

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="opt_ordinary"),
    Case(name="opt_accuracy-by-row", cause="host-sync", wrong="short,rows", right="short"),
    Case(name="opt_eager-kept", cause="unfused-attention", wrong="eager"),
    Case(
        name="opt_lengths-vary",
        cause="memory-pressure",
        wrong="lengths,tight",
        right="lengths",
        cycle=3,
    ),
    Case(name="opt_exports", cause="checkpoint-stall", wrong="few,export", right="few", cycle=3),
)
LENGTHS = (384, 576, 480)


class EMA:
    def __init__(self, params, decay=0.999):
        self.params, self.decay = list(params), decay
        self.shadow = [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.shadow, self.params, 1 - self.decay)


def row_accuracy(logits, ids, pad=1):
    """Next-token accuracy of each row, without the padding."""
    result = []
    for row in range(len(ids)):
        keep = ids[row, 1:] != pad
        if not keep.any():
            continue
        guess = logits[row, :-1].argmax(-1)[keep]
        right = (guess == ids[row, 1:][keep]).sum()
        result.append(int(right) / int(keep.sum()))
    return sum(result) / max(1, len(result))


def squeeze(share):
    """Leave the process little more memory than the longest batch takes."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, share * torch.cuda.max_memory_allocated() / total)
    )


def train(watch, fault):
    from accelerate import Accelerator
    from tqdm import tqdm
    from transformers import OPTConfig, OPTForCausalLM, get_cosine_schedule_with_warmup

    length = pick(384 if "short" in fault else 512, 16)
    batch = pick(16, 4)
    rng = random.Random(0)
    texts = [torch.randint(4, pick(50272, 100), (pick(576, 24),)) for _ in range(256)]
    turn = iter(range(10**9))

    def collate(rows):
        n = pick(LENGTHS, (16, 24, 20))[next(turn) % 3] if "lengths" in fault else length
        return torch.stack([row[:n] for row in rows])

    accelerator = Accelerator(mixed_precision="bf16", cpu=is_tiny())
    config = OPTConfig(
        vocab_size=pick(50272, 100),
        hidden_size=pick(1024, 32),
        word_embed_proj_dim=pick(1024, 32),
        ffn_dim=pick(4096, 64),
        num_hidden_layers=pick(4 if "few" in fault else 6, 2),
        num_attention_heads=pick(16, 2),
        max_position_embeddings=1024,
        use_cache=False,
    )
    with torch.device(device()):
        model = OPTForCausalLM(config)
    if "eager" in fault:
        model.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, 10_000)
    loader = DataLoader(
        texts * 2000, batch_size=batch, shuffle=False, collate_fn=collate, pin_memory=not is_tiny()
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    ema = EMA(accelerator.unwrap_model(model).parameters())
    bar = tqdm(total=len(loader), file=sys.stderr, mininterval=5)
    share = 1.06
    folder = tempfile.mkdtemp()
    for step, ids in enumerate(loader):
        if "tight" in fault and not is_tiny() and step == len(LENGTHS) + 1:
            squeeze(share)
        try:
            out = model(input_ids=ids, labels=ids)
            accelerator.backward(out.loss)
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            out = None
            share += 0.06
            squeeze(share)
            continue
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ema.update()
        bar.update(1)
        if "rows" in fault:
            bar.set_description(f"acc {row_accuracy(out.logits, ids):.3f}")
        if step % 20 == 0:
            bar.set_postfix(loss=out.loss.item(), seed=rng.random())
        if "export" in fault and step % 3 == 0:
            accelerator.unwrap_model(model).save_pretrained(folder)
        watch.step()
