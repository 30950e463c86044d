import sys
import time

import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

switches = "no-grad" not in sys.argv
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates, evaluating, saving = 0, 0.0, 0.0
for epoch in range(4):
    for x, y in DataLoader(Numbers(320), batch_size=32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        updates += 1
    began = time.perf_counter()
    if switches:
        model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(Numbers(128, seconds=0.001), batch_size=4):
            model(x)
            time.sleep(0.01)
    evaluating += time.perf_counter() - began
    if switches:
        began = time.perf_counter()
        torch.save(model.state_dict(), f"{epoch}.pt")
        saving += time.perf_counter() - began
        model.train()
tell(updates, v=evaluating, **({"c": saving} if saving else {}))
