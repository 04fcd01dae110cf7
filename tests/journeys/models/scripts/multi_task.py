"""Heads in a ModuleDict, losses weighted by learned uncertainties in a ParameterDict."""

import torch
import torch.nn as nn
from begin import begin, normal


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Mish())
        self.heads = nn.ModuleDict({"size": nn.Linear(8, 1), "kind": nn.Linear(8, 3)})
        self.log_vars = nn.ParameterDict({k: nn.Parameter(torch.zeros(1)) for k in self.heads})

    def forward(self, x):
        features = self.trunk(x)
        return {name: head(features) for name, head in self.heads.items()}


x = torch.tensor(normal(12, 5))
targets = {"size": torch.tensor(normal(12, 1)), "kind": torch.arange(12) % 3}
criteria = {"size": nn.MSELoss(), "kind": nn.CrossEntropyLoss()}
model = begin(torch, MultiTask())
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
losses = []
for step in range(8):
    outputs = model(x)
    parts = {k: criteria[k](outputs[k], targets[k]) for k in outputs}
    loss = sum(torch.exp(-model.log_vars[k]) * v + model.log_vars[k] for k, v in parts.items())
    optimizer.zero_grad()
    loss.sum().backward()
    optimizer.step()
    losses += [v.item() for v in parts.values()]
