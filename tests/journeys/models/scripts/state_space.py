"""A selective state space by hand, a mixture of experts with a balancing loss, z-loss, Muon-like steps."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, numbers


class Mamba(nn.Module):
    def __init__(self, d=8, n=4, k=3):
        super().__init__()
        self.in_proj = nn.Linear(d, 2 * d, bias=False)
        self.conv1d = nn.Conv1d(d, d, k, groups=d, padding=k - 1)
        self.x_proj = nn.Linear(d, 1 + 2 * n, bias=False)
        self.dt_proj = nn.Linear(1, d)
        A = torch.arange(1, n + 1, dtype=torch.float32).repeat(d, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.A_log._no_weight_decay = True
        self.D = nn.Parameter(torch.ones(d))
        self.out_proj = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, l, d = x.shape
        x, res = self.in_proj(x).split([d, d], dim=-1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[:, :, :l].transpose(1, 2))
        A = -torch.exp(self.A_log.float())
        delta, B, C = self.x_proj(x).split([1, 4, 4], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        deltaA = torch.exp(torch.einsum("b l d, d n -> b l d n", delta, A))
        deltaB_u = torch.einsum("b l d, b l n, b l d -> b l d n", delta, B, x)
        state = torch.zeros((b, d, 4), device=x.device)
        ys = []
        for i in range(l):
            state = deltaA[:, i] * state + deltaB_u[:, i]
            ys.append(torch.einsum("b d n, b n -> b d", state, C[:, i, :]))
        y = torch.stack(ys, dim=1) + x * self.D
        return self.out_proj(y * F.silu(res))


class MoE(nn.Module):
    def __init__(self, d=8, e=4, k=2):
        super().__init__()
        self.k, self.e = k, e
        self.gate = nn.Linear(d, e, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(e)
        )

    def forward(self, x):
        shape = x.shape
        x = x.view(-1, shape[-1])
        logits = self.gate(x)
        weights, chosen = torch.topk(F.softmax(logits, dim=1, dtype=torch.float), self.k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=self.e).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            idx, top_x = torch.where(mask[i])
            if top_x.numel() == 0:
                continue
            out.index_add_(0, top_x, expert(x[top_x]) * weights[top_x, idx, None])
        tokens = F.one_hot(chosen, self.e).float().mean(dim=(0, 1))
        balance = self.e * torch.sum(tokens * logits.softmax(-1).mean(0))
        z = torch.logsumexp(logits, dim=-1).square().mean()
        return out.view(shape), balance, z


class Model(nn.Module):
    def __init__(self, v=9):
        super().__init__()
        self.embed = nn.Embedding(v, 8)
        self.mamba, self.moe = Mamba(), MoE()
        self.norm1, self.norm2 = nn.RMSNorm(8), nn.RMSNorm(8)
        self.head = nn.Linear(8, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, idx):
        x = self.embed(idx)
        x = x + self.mamba(self.norm1(x))
        y, balance, z = self.moe(self.norm2(x))
        return self.head(x + y), balance, z


@torch.no_grad()
def newton_schulz(G, steps=3, eps=1e-7):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G / (G.norm() + eps)
    if G.size(0) > G.size(1):
        X = X.T
    for _ in range(steps):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if G.size(0) > G.size(1) else X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                buf = state["momentum_buffer"]
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp_(buf, group["momentum"])
                p.add_(newton_schulz(g), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


model = begin(torch, Model())
with torch.no_grad():
    model.mamba.A_log.copy_(torch.log(torch.arange(1.0, 5.0).repeat(8, 1)))
hidden = [
    p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "A_log" not in n
]
ids = {id(p) for p in hidden}
rest = [p for p in model.parameters() if id(p) not in ids]
optimizers = [torch.optim.Adam(rest, lr=5e-3, betas=(0.8, 0.95), eps=1e-10), Muon(hidden, lr=0.02)]
losses = []
for step in range(3):
    idx = torch.tensor(numbers.integers(0, 9, (2, 7)))
    logits, balance, z = model(idx[:, :-1])
    ce = F.cross_entropy(logits.reshape(-1, 9), idx[:, 1:].reshape(-1))
    loss = ce + 0.01 * balance + 0.001 * z
    loss.backward()
    for opt in optimizers:
        opt.step()
    model.zero_grad(set_to_none=True)
    losses += [ce.item(), balance.item(), z.item()]
TOLERANCE = 5e-4
