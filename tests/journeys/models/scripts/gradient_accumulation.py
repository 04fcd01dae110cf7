"""Several small batches for one step."""

import torch
import torch.nn as nn
from begin import begin, normal

x, y = torch.tensor(normal(24, 5)), torch.tensor(normal(24, 1))
model = begin(torch, nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.HuberLoss(delta=0.5)
accumulate = 3
losses = []
optimizer.zero_grad()
for i, (xs, ys) in enumerate(zip(x.split(4), y.split(4))):
    loss = criterion(model(xs), ys) / accumulate
    loss.backward()
    losses.append(loss.item())
    if (i + 1) % accumulate == 0:
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        losses.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
