"""A frozen backbone in evaluation, a new head, parameters by filter, other rates by add_param_group."""

import torch
import torch.nn as nn
from begin import begin, normal


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU6())
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.features(x)), 1))


model = begin(torch, Backbone())
for param in model.parameters():
    param.requires_grad = False
model.fc = begin(torch, nn.Linear(model.fc.in_features, 2), seed=5)
x, y = torch.tensor(normal(8, 1, 6, 6)), torch.arange(8) % 2
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
model.features.eval()
losses = []
for step in range(5):
    if step == 3:
        model.features[0].requires_grad_(True)
        optimizer.add_param_group({"params": model.features[0].parameters(), "lr": 0.01})
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
