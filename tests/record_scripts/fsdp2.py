import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small import Net, Numbers, tell
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = Net()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Numbers(1280)
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
updates, saving = 0, 0.0
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    updates += 1
    if updates == 10:
        weights, moments = get_state_dict(model, optimizer)
        began = time.perf_counter()
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="checkpoint")
        saving += time.perf_counter() - began
tell(updates, c=saving)
dist.destroy_process_group()
