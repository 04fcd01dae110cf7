"""Plain tensors, a gradient step by hand."""

import torch
from begin import normal

x = torch.tensor(normal(64, 3))
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.tensor(normal(64))
w = torch.zeros(3, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
losses = []
for step in range(8):
    loss = ((x @ w + b - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        b -= 0.1 * b.grad
        w.grad.zero_()
        b.grad.zero_()
    losses.append(loss.item())
