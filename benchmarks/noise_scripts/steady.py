"""Healthy training on the CPU over gloo: `torchrun ... steady.py mlp|transformer|trainer STEPS`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

KIND, STEPS = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)


class Vectors(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        return torch.randn(512), at % 10


class Tokens(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        ids = torch.randint(0, 512, (64,))
        return {"input_ids": ids, "labels": ids}


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(128, 512)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids)))


def train(model, loader, loss_of):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        if step == STEPS:
            break
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def vectors_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def tokens_loss(model, batch):
    logits = model(batch["input_ids"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


if KIND == "mlp":
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]
    train(nn.Sequential(*blocks, nn.Linear(512, 10)), DataLoader(Vectors(), 64), vectors_loss)
elif KIND == "transformer":
    loader = DataLoader(Tokens(), 16, num_workers=1)
    train(Transformer(), loader, tokens_loss)
else:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    shape = GPT2Config(vocab_size=512, n_embd=128, n_layer=2, n_head=4, n_positions=64)
    Trainer(
        model=GPT2LMHeadModel(shape),
        train_dataset=Tokens(),
        args=TrainingArguments(
            output_dir="out",
            max_steps=STEPS,
            per_device_train_batch_size=8,
            save_strategy="no",
            logging_steps=50,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
    ).train()
    if dist.is_initialized():
        dist.destroy_process_group()
