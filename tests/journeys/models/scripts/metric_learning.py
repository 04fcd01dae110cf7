"""Triplets by the hardest example of a batch: distances of all pairs, masks."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal

labels = torch.tensor([0, 0, 1, 1, 2, 2])
x = torch.tensor(normal(6, 5))
model = begin(torch, nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.TripletMarginLoss(margin=0.5)
losses = []
for step in range(4):
    z = F.normalize(model(x), dim=-1)
    with torch.no_grad():
        distance = torch.cdist(z, z)
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        farthest = distance.masked_fill(~same, -1.0).argmax(dim=1)
        nearest = distance.masked_fill(same, 10.0).argmin(dim=1)
    loss = criterion(z, z[farthest], z[nearest])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
