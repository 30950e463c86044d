"""DDP with gradient accumulation, as in nanoGPT: the sync flag is set by hand per micro-step.

The profiler is a context around the last steps, with no step marks.
"""

import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.profiler import ProfilerActivity, profile

from benchmarks.ranks_by_others.compute import sleep_function
from benchmarks.ranks_by_others.drill import Drill

gradient_accumulation_steps = 4
n_embd = 128
block_size = 32
vocab_size = 512
eval_iters = 6
attention = sleep_function("CausalSelfAttention")


class Block(nn.Module):
    """Attention that sleeps by the length of the sequences, then a wide MLP."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.c_fc = nn.Linear(n_embd, hidden, bias=False)
        self.c_proj = nn.Linear(hidden, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block; 3 ms per 32 tokens."""
        x = attention.apply(self.ln(x), 0.003 * x.shape[1] / block_size)
        out: Tensor = x + self.c_proj(F.gelu(self.c_fc(x)))
        return out


class GPT(nn.Module):
    """A small language model."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block(hidden) for _ in range(2)])
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


def get_batch(drill: Drill) -> tuple[Tensor, Tensor]:
    """Return tokens and their successors."""
    length = int(block_size * drill.stretch("long-sequences"))
    data = torch.randint(vocab_size, (1, length + 1))
    return data[:, :-1], data[:, 1:]


@torch.no_grad()
def estimate_loss(model: nn.Module, drill: Drill) -> float:
    """Return the mean loss over some batches."""
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        losses[k] = model(*get_batch(drill)).item()
    model.train()
    return losses.mean().item()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
    model = DDP(GPT(hidden=2_500 if drill.case.ranks == 2 else 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    X, Y = get_batch(drill)  # noqa: N806
    prof = profile(activities=[ProfilerActivity.CPU])
    for iter_num in range(drill.steps):
        if iter_num == drill.first_profiled:
            prof.start()
        if master_process and drill.hits("evaluate"):
            estimate_loss(model.module, drill)
        for micro_step in range(gradient_accumulation_steps):
            last = micro_step == gradient_accumulation_steps - 1
            with nullcontext() if last or drill.hits("reduced") else model.no_sync():
                loss = model(X, Y) / gradient_accumulation_steps
                X, Y = get_batch(drill)  # noqa: N806
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        drill.tick()
    prof.stop()
    prof.export_chrome_trace(str(out / f"trace_{ddp_rank}.json.gz"))
