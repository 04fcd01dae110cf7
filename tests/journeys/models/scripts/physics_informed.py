"""A network that solves u'' = -u: two derivatives by its input, LBFGS with a closure."""

import torch
import torch.nn as nn
from begin import begin

net = begin(torch, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
t = torch.linspace(0, 2, 12).view(-1, 1).requires_grad_(True)
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3)
losses = []


def closure():
    optimizer.zero_grad()
    u = net(t)
    du = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
    ddu = torch.autograd.grad(du, t, torch.ones_like(du), create_graph=True)[0]
    start = torch.zeros(1, 1)
    loss = ((ddu + u) ** 2).mean() + (net(start) - 1.0).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    return loss


for step in range(2):
    optimizer.step(closure)
