"""Lottery tickets: global magnitude pruning by masks as buffers, rewinding, gradual schedules, structured slimming by norms' weights, ADMM."""

import copy

import torch
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters


class Masked(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, w):
        return w * self.mask


model = begin(
    torch, nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 3))
)
start = copy.deepcopy(model.state_dict())
x, y = torch.tensor(normal(16, 6)), torch.tensor(numbers.integers(0, 3, 16))
losses = []


def train(net, steps, l1=0.0):
    optimizer = torch.optim.SGD(
        filter(lambda p: p.requires_grad, net.parameters()), lr=0.1, momentum=0.9
    )
    for _ in range(steps):
        loss = F.cross_entropy(net(x), y)
        if l1:
            loss = loss + l1 * sum(
                m.weight.abs().sum() for m in net.modules() if isinstance(m, nn.BatchNorm1d)
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


train(model, 3, l1=1e-3)
linears = [m for m in model if isinstance(m, nn.Linear)]
flat = torch.cat([m.weight.detach().abs().flatten() for m in linears])
threshold = torch.kthvalue(flat, int(0.5 * flat.numel())).values
masks = [(m.weight.detach().abs() > threshold).float() for m in linears]
model.load_state_dict(start)
for m, mask in zip(linears, masks):
    parametrize.register_parametrization(m, "weight", Masked(mask))
losses += [1 - sum(mask.sum().item() for mask in masks) / flat.numel()]
train(model, 3)
for m in linears:
    assert parametrize.is_parametrized(m, "weight")
    parametrize.remove_parametrizations(m, "weight", leave_parametrized=True)
    losses.append((m.weight == 0).float().mean().item())
vector = parameters_to_vector(model.parameters())
vector_to_parameters(vector * 0.9, model.parameters())
losses += [vector.norm().item(), F.cross_entropy(model.eval()(x), y).item()]

# slimming: channels with the greatest weights of the norm stay
norm = model[1]
keep = norm.weight.detach().abs().argsort(descending=True)[:8].sort().values
thin = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
with torch.no_grad():
    thin[0].weight.copy_(model[0].weight[keep])
    thin[0].bias.copy_(model[0].bias[keep])
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(thin[1], name).copy_(getattr(norm, name)[keep])
    thin[3].weight.copy_(model[3].weight[:, keep])
    thin[3].bias.copy_(model[3].bias)
losses.append(F.cross_entropy(thin.eval()(x), y).item())
train(thin.train(), 2)

# ADMM: a dense weight, a sparse copy and their difference
w = torch.nn.Parameter(torch.tensor(normal(3, 6)))
z, u = w.detach().clone(), torch.zeros_like(w)
optimizer = torch.optim.Adam([w], lr=0.05)
for _ in range(3):
    loss = F.cross_entropy(x @ w.T, y) + 0.5 * (w - z + u).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    z = w.detach() + u
    z = torch.where(z.abs() >= z.abs().flatten().topk(9).values[-1], z, torch.zeros_like(z))
    u += w.detach() - z
    losses += [loss.item(), (w - z).norm("fro").item()]
