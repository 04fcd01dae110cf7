"""A mixture of experts as Mixtral routes it: top-k, one_hot, where, index_add_."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal


class MoE(nn.Module):
    def __init__(self, dim=6, experts=4, top_k=2):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 12), nn.SiLU(), nn.Linear(12, dim)) for _ in range(experts)
        )
        self.top_k, self.num_experts = top_k, experts

    def forward(self, x):
        logits = self.gate(x)
        weights = F.softmax(logits, dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        final = torch.zeros_like(x)
        mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for i in range(self.num_experts):
            idx, top_x = torch.where(mask[i])
            current = self.experts[i](x[top_x]) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(x.dtype))
        load = F.one_hot(selected[:, 0], self.num_experts).float().mean(0)
        balance = self.num_experts * (load * F.softmax(logits, dim=1).mean(0)).sum()
        return final, balance


x, y = torch.tensor(normal(10, 6)), torch.tensor(normal(10, 6))
model = begin(torch, MoE())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(3):
    out, balance = model(x)
    loss = F.mse_loss(out, y) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
