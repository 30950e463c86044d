"""A variational autoencoder in the functional style of torch.func."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value

from benchmarks.foreign_more_styles.common import Case, device, pick

CASES = (
    Case(name="vae_ordinary"),
    Case(name="vae_tree-map-adam", cause="unfused-optimizer", wrong="tree", stack=True),
    Case(name="vae_checks-held-out", cause="evaluation", wrong="held-out"),
)


class VAE(nn.Module):
    def __init__(self, features, hidden, latent):
        super().__init__()

        def deep(a, b):
            return nn.Sequential(
                nn.Linear(a, hidden),
                nn.SiLU(),
                nn.Linear(hidden, hidden),
                nn.SiLU(),
                nn.Linear(hidden, hidden),
                nn.SiLU(),
                nn.Linear(hidden, b),
            )

        self.encoder, self.decoder = deep(features, 2 * latent), deep(latent, features)

    def forward(self, x, eps):
        mean, log_var = self.encoder(x).chunk(2, -1)
        z = mean + eps * torch.exp(0.5 * log_var)
        return self.decoder(z), mean, log_var


def elbo(model, params, x, eps):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        recon, mean, log_var = functional_call(model, params, (x, eps))
    recon, mean, log_var = recon.float(), mean.float(), log_var.float()
    kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
    return F.mse_loss(recon, x, reduction="sum") / len(x) + kl, kl


def tree_map(f, *trees):
    return {k: f(*(tree[k] for tree in trees)) for k in trees[0]}


class TreeAdam:
    """Adam as a chain of maps over a dict of tensors."""

    def __init__(self, params, lr=1e-4):
        self.lr, self.t = lr, 0
        self.mu, self.nu = tree_map(torch.zeros_like, params), tree_map(torch.zeros_like, params)

    def __call__(self, params, grads):
        self.t += 1
        self.mu = tree_map(lambda m, g: 0.9 * m + 0.1 * g, self.mu, grads)
        self.nu = tree_map(lambda n, g: 0.999 * n + 0.001 * g * g, self.nu, grads)
        m_hat = tree_map(lambda m: m / (1 - 0.9**self.t), self.mu)
        n_hat = tree_map(lambda n: n / (1 - 0.999**self.t), self.nu)
        steps = tree_map(lambda m, n: -self.lr * m / (n.sqrt() + 1e-8), m_hat, n_hat)
        return tree_map(torch.add, params, steps)


class FusedAdam:
    """The library's fused Adam, given the gradients of the dict."""

    def __init__(self, params, lr=1e-4):
        self.optimizer = torch.optim.Adam(list(params.values()), lr=lr, fused=True)

    def __call__(self, params, grads):
        for key, param in params.items():
            param.grad = grads[key]
        self.optimizer.step()
        return params


def train(watch, fault):
    dev = device()
    features, hidden, latent, batch = pick((3072, 5120, 256, 8192), (24, 16, 4, 8))
    with torch.device(dev):
        model = VAE(features, hidden, latent)
    params = {k: v.detach() for k, v in model.named_parameters()}
    update = (TreeAdam if "tree" in fault else FusedAdam)(params)
    data = torch.rand(batch * 4, features, device=dev)
    held_out = torch.rand(pick(2048, 8), features, device=dev)

    def loss_fn(params, x, eps):
        return elbo(model, params, x, eps)

    value_and_grad = grad_and_value(loss_fn, has_aux=True)
    step, best = 0, float("inf")
    while True:
        x = data[(step % 4) * batch : (step % 4 + 1) * batch]
        eps = torch.randn(batch, latent, device=dev)
        grads, (loss, kl) = value_and_grad(params, x, eps)
        params = update(params, grads)
        if "held-out" in fault:
            model.eval()
            with torch.no_grad():
                held, _ = loss_fn(params, held_out, eps[: len(held_out)])
            model.train()
            best = min(best, held.item())
        if step % 10 == 0:
            print(f"{step}: loss {loss.item():.2f} kl {kl.item():.2f} best {best:.2f}")
        step += 1
        watch.step()
