"""Proximal policy optimization: a world on the host, pictures of it, rollouts and updates."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.foreign_more_styles.common import Case, device, pick, pinned

CASES = (
    Case(name="ppo_ordinary"),
    Case(name="ppo_world-by-world", cause="host-stall", wrong="worlds"),
    Case(name="ppo_action-by-action", cause="host-sync", wrong="actions"),
    Case(name="ppo_returns-in-loops", cause="launch-bound", wrong="fewer,loops", right="fewer"),
    Case(
        name="ppo_pageable-pictures",
        cause="pageable-copy",
        wrong="pictures,unpinned",
        right="pictures",
    ),
    Case(name="ppo_small-pieces", cause="small-micro-batch", wrong="pieces"),
)
SIDE, ACTIONS = 84, 6


class Worlds:
    """Balls to be caught, all of them moved at once, or one after another."""

    def __init__(self, count, in_turn):
        self.rng = np.random.default_rng(0)
        self.count, self.in_turn = count, in_turn
        self.ball = self.rng.integers(8, SIDE - 8, (count, 2))
        self.paddle = np.full(count, SIDE // 2)
        self.frames = np.zeros((count, 4, SIDE, SIDE), dtype=np.uint8)

    def step(self, actions):
        if self.in_turn:
            results = [self.step_one(k, int(action)) for k, action in enumerate(actions)]
            return self.frames, np.array(results, dtype=np.float32)
        self.paddle = np.clip(self.paddle + 2 * (actions - ACTIONS // 2), 4, SIDE - 5)
        self.ball[:, 0] = (self.ball[:, 0] + 3) % (SIDE - 4)
        reward = (np.abs(self.paddle - self.ball[:, 1]) < 8).astype(np.float32)
        self.frames[:, :3] = self.frames[:, 1:]
        self.frames[:, 3] = 0
        self.frames[np.arange(self.count), 3, self.ball[:, 0], self.ball[:, 1]] = 255
        self.frames[np.arange(self.count), 3, SIDE - 2, self.paddle] = 255
        return self.frames, reward

    def step_one(self, k, action):
        self.paddle[k] = min(max(self.paddle[k] + 2 * (action - ACTIONS // 2), 4), SIDE - 5)
        self.ball[k, 0] = (self.ball[k, 0] + 3) % (SIDE - 4)
        frames = np.roll(self.frames[k], -1, axis=0)
        frames[3] = 0
        for row in range(2):
            for column in range(2):
                frames[3, self.ball[k, 0] + row, min(self.ball[k, 1] + column, SIDE - 1)] = 255
        frames[3, SIDE - 2, self.paddle[k]] = 255
        self.frames[k] = frames
        return 1.0 if abs(self.paddle[k] - self.ball[k, 1]) < 8 else 0.0


class Policy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, width, 8, 4),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 49, 512),
            nn.ReLU(),
        )
        self.act, self.value = nn.Linear(512, ACTIONS), nn.Linear(512, 1)

    def forward(self, pictures):
        h = self.body(pictures.float() / 255)
        return self.act(h), self.value(h).squeeze(-1)


@torch.no_grad()
def rollout(policy, worlds, steps, pictures, fault):
    """Play for some steps: pictures on the host, all else on the device."""
    seen, rewards = worlds.frames, []
    logits, values, taken = [], [], []
    for t in range(steps):
        pictures[t] = torch.from_numpy(seen)
        out, value = policy(pictures[t].to(device(), non_blocking=True))
        action = torch.distributions.Categorical(logits=out, validate_args=False).sample()
        if "actions" in fault:
            chosen = np.array([action[k].item() for k in range(len(action))])
        else:
            chosen = action.cpu().numpy()
        seen, reward = worlds.step(chosen)
        logits.append(out)
        values.append(value)
        taken.append(action)
        rewards.append(reward)
    rewards = torch.from_numpy(np.stack(rewards)).to(device())
    return torch.stack(logits), torch.stack(values), torch.stack(taken), rewards


def advantages(values, rewards, fault, gamma=0.99, smooth=0.95):
    steps, count = rewards.shape
    result = torch.zeros_like(rewards)
    columns = range(count) if "loops" in fault else [slice(None)]
    for column in columns:
        last = torch.zeros_like(rewards[0, column])
        for t in reversed(range(steps)):
            after = values[t + 1, column] if t + 1 < steps else values[t, column]
            delta = rewards[t, column] + gamma * after - values[t, column]
            last = delta + gamma * smooth * last
            result[t, column] = last
    return result


def clipped_loss(policy, pictures, old, action, advantage, wanted):
    logits, value = policy(pictures)
    chosen = F.log_softmax(logits, -1).gather(1, action[:, None])[:, 0]
    ratio = (chosen - F.log_softmax(old, -1).gather(1, action[:, None])[:, 0]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
    entropy = torch.distributions.Categorical(logits=logits, validate_args=False).entropy().mean()
    return -gain + 0.5 * F.mse_loss(value, wanted) - 0.01 * entropy


class Pictures:
    """All on the device, or on the host with each mini-batch sent on its own."""

    def __init__(self, rows, fault):
        self.fault, self.turn = fault, 0
        self.rows = self.all = rows
        if "pictures" in fault and "unpinned" not in fault:
            self.buffers = [pinned(torch.empty_like(rows[: len(rows) // 2])) for _ in range(4)]

    def played(self):
        """A rollout has filled the rows."""
        if "pictures" not in self.fault:
            self.all = self.rows.to(device(), non_blocking=True)

    def of(self, chosen):
        if "pictures" not in self.fault:
            return self.all[chosen.to(device(), non_blocking=True)]
        if "unpinned" in self.fault:
            return self.all[chosen].to(device())
        self.turn = (self.turn + 1) % 4
        rows = self.buffers[self.turn][: len(chosen)]
        torch.index_select(self.all, 0, chosen, out=rows)
        return rows.to(device(), non_blocking=True)


def update(policy, optimizer, pictures, rest, fault):
    """Two epochs of mini-batches; each may be worked through in pieces."""
    count = len(rest[0])
    pieces = 16 if "pieces" in fault else 1
    for _ in range(2):
        for rows in torch.randperm(count).split(count // 2):
            for part in rows.chunk(pieces):
                there = part.to(device(), non_blocking=True)
                images = pictures.of(part)
                loss = clipped_loss(policy, images, *(t[there] for t in rest)) / pieces
                loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return loss.detach()


def train(watch, fault):
    torch.backends.cuda.matmul.allow_tf32 = True
    count, steps = pick(24 if "fewer" in fault else 64, 4), pick(32, 3)
    worlds = Worlds(count, "worlds" in fault)
    policy = Policy(pick(64, 4)).to(device())
    optimizer = torch.optim.Adam(policy.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    pictures = pinned(torch.zeros(steps, count, 4, SIDE, SIDE, dtype=torch.uint8))
    sent = Pictures(pictures.flatten(0, 1), fault)
    for number in range(10**9):
        logits, values, taken, rewards = rollout(policy, worlds, steps, pictures, fault)
        sent.played()
        advantage = advantages(values, rewards, fault)
        wanted = advantage + values
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rest = [t.flatten(0, 1) for t in (logits, taken, scaled, wanted)]
        loss = update(policy, optimizer, sent, rest, fault)
        if number % 10 == 0:
            print(number, loss.item(), rewards.mean().item())
        watch.step()
