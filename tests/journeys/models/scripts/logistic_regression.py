"""One linear layer, BCEWithLogitsLoss, accuracy."""

import torch
from begin import begin, normal
from torch import nn, optim

x = torch.tensor(normal(50, 4))
y = (x[:, 0] + x[:, 1] > 0).float()
model = begin(torch, nn.Linear(4, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
losses = []
for epoch in range(6):
    optimizer.zero_grad()
    logits = model(x).squeeze(-1)
    loss = criterion(logits, y)
    loss.backward()
    optimizer.step()
    accuracy = ((logits > 0).float() == y).float().mean()
    losses += [loss.item(), accuracy.item()]
