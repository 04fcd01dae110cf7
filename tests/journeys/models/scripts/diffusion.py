"""DDPM on points: a schedule of buffers read at random steps, sinusoidal time, then sampling."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers

T = 20
betas = torch.linspace(1e-4, 0.2, T)
alphas = 1.0 - betas
alphas_cumprod = torch.cumprod(alphas, dim=0)


def extract(a, t, shape):
    return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(shape) - 1)))


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.inp, self.mid, self.out = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.time(timestep_embedding(t, 8)))
        return self.out(F.silu(self.mid(h)))


model = begin(torch, Denoiser())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
losses = []
for step in range(4):
    x = torch.tensor(normal(16, 2))
    noise = torch.tensor(normal(16, 2))
    t = torch.tensor(numbers.integers(0, T, 16))
    a = extract(alphas_cumprod, t, x.shape)
    noised = a.sqrt() * x + (1 - a).sqrt() * noise
    loss = F.mse_loss(model(noised, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

x = torch.tensor(normal(4, 2))
with torch.no_grad():
    for i in reversed(range(T - 3, T)):
        t = torch.full((4,), i, dtype=torch.long)
        eps = model(x, t)
        x = (x - betas[i] / (1 - alphas_cumprod[i]).sqrt() * eps) / alphas[i].sqrt()
losses.append(x.pow(2).mean().item())
