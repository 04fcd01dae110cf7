"""Messages along edges: rows by index, sums by index_add, degrees."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal

edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0], [1, 0, 2, 1, 4, 3, 0, 4]])
x, y = torch.tensor(normal(5, 4)), torch.tensor([0, 1, 0, 1, 1])


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.message = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        source, target = edges
        messages = self.message(x)[source]
        total = torch.zeros(x.size(0), messages.size(1)).index_add(0, target, messages)
        degree = torch.zeros(x.size(0)).index_add(0, target, torch.ones(target.size(0)))
        return self.own(x) + total / degree.clamp(min=1).unsqueeze(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GraphConv(4, 8), GraphConv(8, 2)

    def forward(self, x, edges):
        return self.conv2(F.relu(self.conv1(x, edges)), edges)


model = begin(torch, Net())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
mask = torch.tensor([True, True, False, True, True])
losses = []
for step in range(4):
    out = model(x, edges)
    loss = F.cross_entropy(out[mask], y[mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
