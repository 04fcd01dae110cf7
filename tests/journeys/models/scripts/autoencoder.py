"""A Sequential from an OrderedDict; noise that is removed."""

from collections import OrderedDict

import torch
from begin import begin, normal
from torch import nn

model = nn.Sequential(
    OrderedDict(
        [
            ("encode", nn.Sequential(nn.Linear(12, 6), nn.ELU(), nn.Linear(6, 2))),
            ("decode", nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(0.2), nn.Linear(6, 12))),
        ]
    )
)
begin(torch, model)
clean = torch.tensor(normal(20, 12))
noisy = clean + 0.1 * torch.tensor(normal(20, 12))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
losses = []
for step in range(5):
    loss = nn.functional.mse_loss(model(noisy), clean, reduction="sum") / len(clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
losses.append(model.encode(clean).abs().mean().item())
