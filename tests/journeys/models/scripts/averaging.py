"""Weights averaged, with batch norms anew and a schedule of their own; Lion by hand, weights by parametrisation."""

import torch
from begin import begin, normal
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.optim.optimizer import Optimizer
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                grad, state = p.grad, self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                exp_avg = state["exp_avg"]
                beta1, beta2 = group["betas"]
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
        return loss


class Symmetric(nn.Module):
    def forward(self, X):
        return X.triu() + X.triu(1).transpose(-1, -2)

    def right_inverse(self, A):
        return A.triu()


x, y = torch.tensor(normal(12, 5)), torch.tensor(normal(12, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=4)
losses = []
for kind in ("ema", "lion"):
    net = begin(
        torch,
        nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1)
        ),
    )
    if kind == "lion":
        parametrize.register_parametrization(net[3], "weight", Symmetric())
        net[4] = parametrizations.weight_norm(net[4])
        assert parametrize.is_parametrized(net[3])
        assert "parametrizations.weight.original" in dict(net[3].named_parameters())
        optimizer = Lion(net.parameters(), lr=1e-3, weight_decay=1e-2)
    else:
        averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    swa_scheduler = SWALR(optimizer, anneal_strategy="linear", anneal_epochs=2, swa_lr=0.05)
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.smooth_l1_loss(net(a), b)
            loss.backward()
            optimizer.step()
        if kind == "ema":
            averaged.update_parameters(net)
            swa_scheduler.step()
        losses.append(loss.item())
    if kind == "ema":
        update_bn(loader, averaged)
        averaged.eval()
        losses += [
            F.mse_loss(averaged(x), y).item(),
            float(averaged.n_averaged),
            optimizer.param_groups[0]["lr"],
        ]
