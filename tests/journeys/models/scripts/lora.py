"""Low-rank adapters put over frozen linear layers by name, then merged."""

import math

import torch
from begin import begin, normal
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.lora_B @ self.lora_A * self.scaling
        return self.base


model = begin(torch, nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)))
for p in model.parameters():
    p.requires_grad = False
for name, module in list(model.named_modules()):
    if isinstance(module, nn.Linear):
        adapter = LoRALinear(module)
        with torch.no_grad():
            adapter.lora_A.copy_(torch.tensor(normal(2, module.in_features)))
        model.set_submodule(name, adapter)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
x, y = torch.tensor(normal(12, 5)), torch.tensor(normal(12, 2))
losses = [float(sum(p.numel() for p in trained))]
for step in range(4):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
for name, module in list(model.named_modules()):
    if isinstance(module, LoRALinear):
        model.set_submodule(name, module.merge())
losses.append(nn.functional.mse_loss(model(x), y).item())
