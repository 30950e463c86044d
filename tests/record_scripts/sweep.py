"""Three models one after the other; each is gone before the next is made."""

import gc
import weakref

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

gc.disable()
updates = 0
for rate in (1e-2, 1e-3, 1e-4):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for x, y in DataLoader(Numbers(384), batch_size=32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        updates += 1
    gone = weakref.ref(model)
    del model, optimizer
    assert gone() is None, "something keeps the model alive"
tell(updates)
