"""Warm-up then decay by SequentialLR, clipping by norm, a plateau."""

import torch
from begin import begin, normal
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR, LinearLR, ReduceLROnPlateau, SequentialLR

x, y = torch.tensor(normal(16, 4)), torch.tensor(normal(16, 2))
model = begin(torch, nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 2)))
optimizer = optim.SGD(
    [
        {"params": model[0].parameters(), "lr": 0.05},
        {"params": model[2].parameters()},
    ],
    lr=0.2,
    momentum=0.9,
)
warmup, decay = LinearLR(optimizer, 0.1, total_iters=3), ExponentialLR(optimizer, gamma=0.9)
scheduler = SequentialLR(optimizer, schedulers=[warmup, decay], milestones=[3])
plateau = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=0)
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = nn.SmoothL1Loss(beta=0.5)(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1, norm_type=2.0)
    optimizer.step()
    scheduler.step()
    losses += [loss.item(), norm.item(), scheduler.get_last_lr()[0], scheduler.get_last_lr()[1]]
plateau.step(1.0)
plateau.step(2.0)
losses.append(optimizer.param_groups[1]["lr"])
