"""A gradient penalty: torch.autograd.grad with create_graph, then backward through it."""

import torch
import torch.nn as nn
from begin import begin, normal, numbers
from torch import autograd

critic = begin(torch, nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
losses = []
for step in range(4):
    real, fake = torch.tensor(normal(6, 3)), torch.tensor(normal(6, 3)) + 1.0
    alpha = torch.tensor(numbers.random((6, 1)).astype("float32")).expand_as(real)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    gradients = autograd.grad(
        outputs=score,
        inputs=mixed,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
    )[0]
    penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [loss.item(), penalty.item()]
