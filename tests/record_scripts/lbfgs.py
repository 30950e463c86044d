import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

model = Net()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
updates = 0
for x, y in DataLoader(Numbers(), batch_size=32):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    updates += 1
tell(updates)
