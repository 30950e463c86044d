import sys

import deepspeed
from small import Net, Numbers, tell
from torch import nn

stage = int(sys.argv[1])
config = {
    "train_micro_batch_size_per_gpu": 32,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": stage},
    "bf16": {"enabled": True},
}
model = Net()
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), training_data=Numbers(1280), config=config
)
for x, y in loader:
    loss = nn.functional.cross_entropy(engine(x.bfloat16()), y)
    engine.backward(loss)
    engine.step()
tell(engine.global_steps)
