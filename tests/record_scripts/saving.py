"""Saves in all the ways that there are; what each takes is measured."""

import copy
import pickle
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

model = Net(16)
other = GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=256, n_layer=4, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates, saving, futures = 0, 0.0, []
for x, y in DataLoader(Numbers(), batch_size=32):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    updates += 1
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    began = time.perf_counter()
    if updates == 6:
        torch.save(model, "whole.pt")
    elif updates == 8:
        torch.save({"model": weights, "optimizer": optimizer.state_dict()}, "parts.pt")
    elif updates == 10:
        save_file(weights, "weights.safetensors")
    elif updates == 12:
        other.save_pretrained("pretrained")
    elif updates == 14:
        dcp.save(weights, checkpoint_id="dcp", no_dist=True)
    elif updates == 16:
        futures.append(dcp.async_save(weights, checkpoint_id="async", no_dist=True))
        time.sleep(0.0)
        futures[0].result()
    else:
        continue
    saving += time.perf_counter() - began
copy.deepcopy(model)(x)
pickle.loads(pickle.dumps(model))(x)
torch.jit.script(model)(x)
tell(updates, c=saving)
