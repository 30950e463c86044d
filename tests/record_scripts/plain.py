import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

data = Numbers()
loader = DataLoader(data, batch_size=32, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates = 0
for _epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
tell(updates)
