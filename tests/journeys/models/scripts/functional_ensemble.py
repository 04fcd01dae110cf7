"""Models as functions: an ensemble under vmap, gradients for each sample, a hypernetwork, and a Hessian."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacrev,
    stack_module_state,
    vjp,
    vmap,
)


class MLP(nn.Module):
    def __init__(self, n=4, h=6, c=3):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(n, h), nn.Linear(h, c)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


models = [begin(torch, MLP(), i) for i in range(3)]
params, buffers = stack_module_state(models)
base_model = copy.deepcopy(models[0])


def fmodel(params, buffers, x):
    return functional_call(base_model, (params, buffers), (x,))


x, y = torch.tensor(normal(8, 4)), torch.tensor(numbers.integers(0, 3, 8))
losses = []
each = vmap(fmodel, in_dims=(0, 0, None))(params, buffers, x)
losses += [each.mean(0).softmax(-1).max().item(), each.std(0).mean().item()]


def compute_loss(params, buffers, sample, target):
    predictions = functional_call(base_model, (params, buffers), (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))


one = {k: v.detach() for k, v in base_model.named_parameters()}
ft_compute_sample_grad = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))
per_sample = ft_compute_sample_grad(one, {}, x, y)
norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
clip = (1.0 / (norms + 1e-6)).clamp(max=1.0)
private = {k: torch.einsum("n,n...->...", clip, g) / len(x) for k, g in per_sample.items()}
losses += [norms.sum().item(), sum(g.abs().sum() for g in private.values()).item()]
one = {k: v - 0.1 * private[k] for k, v in one.items()}
losses.append(vmap(compute_loss, (None, None, 0, 0))(one, {}, x, y).mean().item())

# training of the ensemble at once
opt_state = {k: torch.zeros_like(v) for k, v in params.items()}
params = {k: v.detach() for k, v in params.items()}
both = vmap(
    grad_and_value(lambda p, b, x, y: F.cross_entropy(fmodel(p, b, x), y)), (0, 0, None, None)
)
for step in range(2):
    g, value = both(params, buffers, x, y)
    opt_state = {k: 0.9 * opt_state[k] + g[k] for k in g}
    params = {k: params[k] - 0.1 * opt_state[k] for k in g}
    losses += value.tolist()


class HyperNet(nn.Module):
    def __init__(self, target, z=5):
        super().__init__()
        self.shapes = {k: v.shape for k, v in target.named_parameters()}
        total = sum(s.numel() for s in self.shapes.values())
        self.net = nn.Sequential(nn.Linear(z, 8), nn.Tanh(), nn.Linear(8, total))

    def forward(self, z):
        flat, out, i = self.net(z), {}, 0
        for k, s in self.shapes.items():
            out[k] = flat[i : i + s.numel()].view(s)
            i += s.numel()
        return out


target = MLP()
hyper = begin(torch, HyperNet(target))
optimizer = torch.optim.AdamW(hyper.parameters(), lr=1e-2)
for step in range(2):
    z = torch.tensor(normal(5))
    optimizer.zero_grad()
    loss = F.cross_entropy(functional_call(target, hyper(z), x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
H = hessian(lambda v: functional_call(target, {**one, "fc2.bias": v}, x).logsumexp(-1).sum())(
    one["fc2.bias"]
)
losses += [H.diagonal().sum().item(), torch.linalg.eigvalsh(H).max().item()]
J = vmap(jacrev(lambda v: functional_call(target, one, v[None])[0]))(x)
losses.append(J.square().sum().item())
out, pull = vjp(lambda v: functional_call(target, one, v), x)
losses.append(pull(torch.ones_like(out))[0].sum().item())
TOLERANCE = 2e-4
