"""A mixture density network, refined by LBFGS with a line search; a pinball loss beside it."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal


class MDN(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 12), nn.Tanh())
        self.pi, self.mu, self.sigma = nn.Linear(12, k), nn.Linear(12, k), nn.Linear(12, k)
        self.quantiles = nn.Linear(12, 3)

    def forward(self, x):
        h = self.body(x)
        return (
            F.log_softmax(self.pi(h), dim=-1),
            self.mu(h),
            F.softplus(self.sigma(h)) + 1e-3,
            self.quantiles(h),
        )


model = begin(torch, MDN())
x = torch.linspace(-2, 2, 24).view(-1, 1)
y = torch.sin(2 * x) + 0.1 * torch.tensor(normal(24, 1))
quantiles = torch.tensor([0.1, 0.5, 0.9])


def objective():
    log_pi, mu, sigma, q = model(x)
    log_prob = -0.5 * ((y - mu) / sigma) ** 2 - torch.log(sigma) - 0.5 * math.log(2 * math.pi)
    nll = -torch.logsumexp(log_pi + log_prob, dim=-1).mean()
    errors = y - q
    pinball = torch.max((quantiles - 1) * errors, quantiles * errors).sum(dim=1).mean()
    return nll, pinball


optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    optimizer.zero_grad()
    nll, pinball = objective()
    (nll + pinball).backward()
    optimizer.step()
    losses += [nll.item(), pinball.item()]
lbfgs = torch.optim.LBFGS(
    model.parameters(), lr=1, max_iter=4, line_search_fn="strong_wolfe", history_size=5
)


def closure():
    lbfgs.zero_grad()
    nll, _ = objective()
    nll.backward()
    return nll


for _ in range(2):
    losses.append(lbfgs.step(closure).item())
with torch.no_grad():
    log_pi, mu, sigma, _ = model(x)
    gmm = MixtureSameFamily(
        Categorical(logits=log_pi), Independent(Normal(mu.unsqueeze(-1), sigma.unsqueeze(-1)), 1)
    )
    losses += [-gmm.log_prob(y).mean().item(), gmm.mean.abs().mean().item()]
TOLERANCE = 1e-3
