"""An average of the weights over training, by deepcopy and lerp_."""

from copy import deepcopy

import torch
import torch.nn as nn
from begin import begin, normal


class EMA:
    def __init__(self, model, decay):
        self.module = deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.parameters(), model.parameters()):
            ours.lerp_(theirs.detach(), 1 - self.decay)
        for ours, theirs in zip(self.module.buffers(), model.buffers()):
            ours.copy_(theirs)


x, y = torch.tensor(normal(12, 4)), torch.tensor(normal(12, 1))
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
begin(torch, model)
ema = EMA(model, 0.9)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    losses += [loss.item(), ((ema.module(x) - y) ** 2).mean().item()]
