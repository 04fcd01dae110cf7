"""Sharpness-aware steps by an optimizer of one's own, attacks on inputs, and averaged weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        assert rho >= 0.0, f"Invalid rho, should be non-negative: {rho}"
        defaults = dict(rho=rho, adaptive=adaptive, **kwargs)
        super(SAM, self).__init__(params, defaults)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                e_w = (torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p)
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "Sharpness Aware Minimization requires closure"
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def _grad_norm(self):
        shared_device = self.param_groups[0]["params"][0].device
        return torch.norm(
            torch.stack(
                [
                    ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad)
                    .norm(p=2)
                    .to(shared_device)
                    for group in self.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


def disable_running_stats(model):
    def _disable(module):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.backup_momentum = module.momentum
            module.momentum = 0

    model.apply(_disable)


def enable_running_stats(model):
    def _enable(module):
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and hasattr(
            module, "backup_momentum"
        ):
            module.momentum = module.backup_momentum

    model.apply(_enable)


def fgsm_attack(image, epsilon, data_grad):
    return torch.clamp(image + epsilon * data_grad.sign(), -2, 2)


def pgd(model, x, y, eps=0.2, alpha=0.1, iters=2):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(iters):
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        delta.data = (delta + alpha * delta.grad.detach().sign()).clamp(-eps, eps)
        delta.grad.zero_()
    return (x + delta).detach()


model = begin(
    torch, nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
)
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, adaptive=True, lr=0.1, momentum=0.9)
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer.base_optimizer, swa_lr=0.05, anneal_epochs=2)
x, y = torch.tensor(normal(24, 6)), torch.tensor(numbers.integers(0, 3, 24))
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=False, drop_last=True)
losses = []
for epoch in range(2):
    for inputs, targets in loader:
        enable_running_stats(model)
        loss = F.cross_entropy(model(inputs), targets, label_smoothing=0.1)
        loss.mean().backward()
        optimizer.first_step(zero_grad=True)
        disable_running_stats(model)
        F.cross_entropy(model(inputs), targets, label_smoothing=0.1).mean().backward()
        optimizer.second_step(zero_grad=True)
        losses.append(loss.item())
    swa_model.update_parameters(model)
    swa_scheduler.step()
update_bn(loader, swa_model)
swa_model.eval()
model.eval()
losses += [F.cross_entropy(swa_model(x), y).item(), float(swa_model.n_averaged)]
data = x.clone()
data.requires_grad = True
loss = F.cross_entropy(model(data), y)
model.zero_grad()
loss.backward()
perturbed = fgsm_attack(data, 0.1, data.grad.data)
losses += [loss.item(), F.cross_entropy(model(perturbed), y).item()]
losses.append(F.cross_entropy(model(pgd(model, x, y)), y).item())
losses.append(optimizer.param_groups[0]["lr"])
TOLERANCE = 3e-4
