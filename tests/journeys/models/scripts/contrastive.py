"""SimCLR's loss: a similarity matrix without its diagonal, a temperature that is learned."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.Linear(8, 4))
        self.logit_scale = nn.Parameter(torch.ones([]) * 0.5)

    def forward(self, x):
        return F.normalize(self.net(x), p=2, dim=1)


a, b = torch.tensor(normal(4, 6)), torch.tensor(normal(4, 6))
model = begin(torch, Encoder())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    z = torch.cat([model(a), model(b)])
    similarity = z @ z.t() * model.logit_scale.exp()
    similarity.fill_diagonal_(-1e9)
    targets = torch.arange(8).roll(4)
    loss = F.cross_entropy(similarity, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
