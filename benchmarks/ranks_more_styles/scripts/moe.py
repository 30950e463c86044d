"""Expert parallel: one expert per rank, tokens go there and back by two all-to-alls."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor, nn
from torch.profiler import record_function

from .. import work
from ..harness import Block, Run, start, timed, timed_op

expert_op = timed_op("moe::grouped_gemm")
dense = timed("DenseAttention")
WIDTH, TOKENS = 32, 48


class Experts(nn.Module):
    """The expert of this rank; its time follows the number of tokens it gets."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.expert = nn.Linear(WIDTH, WIDTH)

    def counts(self) -> list[int]:
        """Tokens this rank sends to each expert; with the fault one expert is hot."""
        even = TOKENS // self.run.ranks
        counts = [even] * self.run.ranks
        if self.run.on("hot-expert"):
            extra = int(even * self.run.size) // (self.run.ranks - 1)
            counts = [even - extra] * self.run.ranks
            counts[self.run.culprits[0]] = TOKENS - sum(counts) + counts[0]
        return counts

    def forward(self, x: Tensor) -> Tensor:
        sent = torch.tensor(self.counts())
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        there, back = sent.tolist(), got.tolist()
        with record_function("dispatch"):
            tokens = dist_nn.all_to_all_single(x.new_empty(sum(back), WIDTH), x, back, there)
        with record_function("experts"):
            seconds = 0.012 * len(tokens) / TOKENS * self.run.pace()
            tokens = expert_op(torch.relu(self.expert(tokens)), seconds)
        with record_function("combine"):
            return dist_nn.all_to_all_single(torch.empty_like(x), tokens, there, back)


def main(run: Run) -> None:
    run.init()
    shared = nn.ModuleList(Block(run, WIDTH, 0.005, dense) for _ in range(2))
    experts = nn.ModuleList(Experts(run) for _ in range(2))
    optimizer = torch.optim.SGD([*shared.parameters(), *experts.parameters()], lr=0.01)
    for step in run.steps():
        x = torch.randn(TOKENS, WIDTH)
        for block, expert in zip(shared, experts, strict=True):
            x = x + expert(block(x))
        x.square().mean().backward()
        with record_function("sync dense"):
            for p in shared.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("log"):
            work.log_json(run.size, step, run.scratch / "router.jsonl")


if __name__ == "__main__":
    start(main)
