"""Hooks before and after modules: features read, an output scaled, hooks taken off."""

import torch
import torch.nn as nn
from begin import begin, normal

x, y = torch.tensor(normal(10, 4)), torch.tensor(normal(10, 2))
model = begin(torch, nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)))
features = {}


def keep(name):
    def hook(module, args, output):
        features[name] = output.detach()

    return hook


handles = [m.register_forward_hook(keep(n)) for n, m in model.named_children()]
model[2].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
halve = model[0].register_forward_hook(lambda module, args, output: output / 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(4):
    loss = (model(x) - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [loss.item(), features["0"].mean().item(), features["1"].std().item()]
    if step == 1:
        halve.remove()
for handle in handles:
    handle.remove()
features.clear()
model(x)
losses.append(float(len(features)))
