"""A student learns from a frozen teacher in every step; averaged weights are evaluated now and then."""

import copy
import sys

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

model, teacher = Net(), Net()
averaged = copy.deepcopy(model)
kept = model
if "held" in sys.argv[1:]:  # as modules of Lightning hold them: the whole is never called

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = model, teacher

    kept = Both()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates = evaluations = 0
for x, y in DataLoader(Numbers(1280), batch_size=32):
    with torch.no_grad():
        taught = teacher(x.repeat(20, 1))[: len(x)]
    optimizer.zero_grad()
    (nn.functional.cross_entropy(model(x), y) + (model(x) - taught).square().mean()).backward()
    optimizer.step()
    updates += 1
    if updates % 10 == 0:
        with torch.no_grad():
            averaged(x)
        evaluations += 1
tell(updates, evaluations=evaluations)
