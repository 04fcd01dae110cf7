"""Odds and ends: a spiking net with a surrogate gradient, evolution by vmap, MAML by functional_call, hooks."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch.func import functional_call, grad, stack_module_state, vmap


class SurrogateSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (10.0 * torch.abs(x) + 1.0) ** 2


spike = SurrogateSpike.apply


class SNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x):
        mem1 = torch.zeros(x.size(1), 12, device=x.device)
        mem2 = torch.zeros(x.size(1), 3, device=x.device)
        record = []
        for t in range(x.size(0)):
            spk = spike(mem1 - 1.0)
            mem1 = 0.9 * mem1 * (1.0 - spk.detach()) + self.fc1(x[t])
            mem2 = 0.8 * mem2 + self.fc2(spk)
            record.append(mem2)
        return torch.stack(record).max(dim=0)[0]


net = begin(torch, SNN())
acts = {}
handle = net.fc1.register_forward_hook(
    lambda m, i, o: acts.setdefault("fc1", []).append(o.detach().abs().mean())
)
opt = torch.optim.Adamax(net.parameters(), lr=1e-2)
losses = []
for step in range(3):
    x, y = torch.tensor(normal(6, 4, 5)) * 2, torch.tensor(numbers.integers(0, 3, 4))
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses += [loss.item(), torch.stack(acts.pop("fc1")).mean().item()]
handle.remove()

model = begin(torch, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
meta = torch.optim.Adam(model.parameters(), lr=1e-2)


def task_loss(params, x, y):
    return F.mse_loss(functional_call(model, params, (x,)), y)


for it in range(2):
    meta.zero_grad()
    total = 0.0
    for task in range(2):
        amp = float(numbers.uniform(0.5, 2.0))
        xs = torch.tensor(normal(6, 1))
        params = dict(model.named_parameters())
        inner = task_loss(params, xs[:3], amp * torch.sin(xs[:3]))
        grads = torch.autograd.grad(inner, params.values(), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
        total = total + task_loss(fast, xs[3:], amp * torch.sin(xs[3:]))
    total.backward()
    meta.step()
    losses.append(total.item())

members = [begin(torch, nn.Linear(3, 2), i) for i in range(3)]
params, buffers = stack_module_state(members)
base = members[0]
x = torch.tensor(normal(5, 3))
out = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)
losses += [out.std(0).mean().item()]
per_sample = vmap(
    grad(lambda p, a: functional_call(base, p, (a[None],)).pow(2).sum()), in_dims=(None, 0)
)({k: v.detach() for k, v in base.named_parameters()}, x)
losses.append(per_sample["weight"].flatten(1).norm(dim=1).max().item())
grid = torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0, 4.0]))
losses.append((grid[:, 0] * grid[:, 1]).sum().item())
with (
    torch.autograd.set_detect_anomaly(False),
    torch.profiler.record_function("block")
    if hasattr(torch, "profiler") and hasattr(torch.profiler, "record_function")
    else torch.no_grad(),
):
    v = torch.nn.utils.parameters_to_vector(model.parameters())
torch.nn.utils.vector_to_parameters(v * 0.5, model.parameters())
losses.append(sum(p.abs().sum().item() for p in model.parameters()))
TOLERANCE = 5e-4
