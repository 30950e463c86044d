"""The head first, then all of it: a second optimizer follows on the first."""

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

model = Net()
head = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
body = torch.optim.AdamW(model.parameters(), lr=1e-4)
updates = 0
for optimizer in (head, body):
    for x, y in DataLoader(Numbers(), batch_size=32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        updates += 1
tell(updates)
