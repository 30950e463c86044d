"""An optimizer for each parameter, stepped inside of backward as soon as its gradient is there."""

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

model = Net()
optimizers = {p: torch.optim.SGD([p], lr=1e-2, foreach=False) for p in model.parameters()}


def step_and_free(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_free)
updates = 0
for x, y in DataLoader(Numbers(), batch_size=32):
    nn.functional.cross_entropy(model(x), y).backward()
    updates += 1
tell(updates)
