import sys

import torch
from small import WIDTH, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

critic_steps = int(sys.argv[1])
generator = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
updates = 0
for real, _ in DataLoader(Numbers(1280), batch_size=64):
    generator_optimizer.zero_grad()
    (-critic(generator(torch.randn(64, 64))).mean()).backward()
    generator_optimizer.step()
    for _ in range(critic_steps):
        fake = generator(torch.randn(64, 64)).detach()
        critic_optimizer.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward()
        critic_optimizer.step()
        updates += 1
tell(updates)
