"""A neural ODE by hand: RK4 steps, an adjoint as autograd.Function, an orthogonal layer."""

import torch
import torch.nn as nn
from begin import begin, normal
from torch.nn.utils import parametrizations


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 10), nn.Softplus(), nn.Linear(10, 2))
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        tt = torch.ones_like(y[:, :1]) * t
        return self.net(torch.cat([y, tt], 1))


def rk4(func, y0, t):
    ys = [y0]
    for i in range(len(t) - 1):
        t0, t1 = t[i], t[i + 1]
        dt = t1 - t0
        y = ys[-1]
        k1 = func(t0, y)
        k2 = func(t0 + dt / 2, y + dt * k1 / 2)
        k3 = func(t0 + dt / 2, y + dt * k2 / 2)
        k4 = func(t1, y + dt * k3)
        ys.append(y + dt * (k1 + 2 * k2 + 2 * k3 + k4) / 6)
    return torch.stack(ys)


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, t, y0, *params):
        ctx.func = func
        with torch.no_grad():
            ys = rk4(func, y0, t)
        ctx.save_for_backward(t, ys, *params)
        return ys[-1]

    @staticmethod
    def backward(ctx, grad):
        func = ctx.func
        t, ys, *params = ctx.saved_tensors
        a = grad
        grads = [torch.zeros_like(p) for p in params]
        for i in range(len(t) - 1, 0, -1):
            with torch.enable_grad():
                y = ys[i].detach().requires_grad_(True)
                f = func(t[i], y)
                found = torch.autograd.grad(f, (y, *params), a, allow_unused=True)
            dt = t[i] - t[i - 1]
            a = a + dt * found[0]
            grads = [g if d is None else g + dt * d for g, d in zip(grads, found[1:])]
        return None, None, a, *grads


func = begin(torch, ODEFunc())
mix = parametrizations.orthogonal(nn.Linear(2, 2, bias=False))
with torch.no_grad():
    mix.weight = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
optimizer = torch.optim.RMSprop([*func.parameters(), *mix.parameters()], lr=1e-2)
t = torch.linspace(0.0, 1.0, 5)
losses = []
for step in range(3):
    y0 = torch.tensor(normal(6, 2))
    goal = torch.stack([y0[:, 0] * 0.5, y0[:, 1].abs()], dim=-1)
    optimizer.zero_grad()
    if step < 2:
        pred = rk4(func, y0, t)[-1]
    else:
        pred = Adjoint.apply(func, t, y0, *func.parameters())
    loss = torch.mean(torch.abs(mix(pred) - goal))
    loss.backward()
    optimizer.step()
    losses += [loss.item(), func.nfe, mix.weight.norm().item()]
value, tangent = torch.func.jvp(lambda y: func(t[0], y), (y0,), (torch.ones_like(y0),))
losses += [value.sum().item(), tangent.sum().item()]
jac = torch.autograd.functional.jacobian(lambda y: func(t[0], y).sum(0), y0)
losses.append(jac.abs().sum().item())
TOLERANCE = 2e-4
