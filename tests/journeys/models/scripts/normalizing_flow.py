"""Coupling layers with masks as buffers, a standard normal base."""

import torch
import torch.nn as nn
from begin import begin, normal
from torch.distributions import Normal


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x):
        log_scale, shift = self.net(x * self.mask).chunk(2, dim=-1)
        log_scale = torch.tanh(log_scale) * (1 - self.mask)
        y = x * self.mask + (1 - self.mask) * (x * log_scale.exp() + shift)
        return y, log_scale.sum(dim=-1)


layers = nn.ModuleList([Coupling(torch.tensor([1.0, 0.0])), Coupling(torch.tensor([0.0, 1.0]))])
begin(torch, layers)
prior = Normal(torch.zeros(2), torch.ones(2))
optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
data = torch.tensor(normal(20, 2)) * torch.tensor([1.0, 0.3]) + 0.5
losses = []
for step in range(4):
    z, log_det = data, torch.zeros(data.shape[0])
    for layer in layers:
        z, one = layer(z)
        log_det = log_det + one
    loss = -(prior.log_prob(z).sum(-1) + log_det).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
