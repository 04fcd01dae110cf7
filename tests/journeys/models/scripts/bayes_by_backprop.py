"""Weights as distributions: reparameterised layers, a KL term, a scale mixture, and losses of several draws."""

import math

import torch
import torch.distributions as dist
import torch.nn as nn
import torch.nn.functional as F
from begin import normal, numbers


class BayesLinear(nn.Module):
    def __init__(self, in_features, out_features, prior_std=0.5):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight_mu = nn.Parameter(torch.empty(out_features, in_features))
        self.weight_rho = nn.Parameter(torch.empty_like(self.weight_mu))
        self.bias_mu = nn.Parameter(torch.zeros(out_features))
        self.bias_rho = nn.Parameter(torch.full((out_features,), -3.0))
        self.register_buffer("prior_std", torch.tensor(prior_std))
        self.reset_parameters()

    def reset_parameters(self):
        with torch.no_grad():
            self.weight_mu.copy_(
                torch.from_numpy(normal(*self.weight_mu.shape)) / math.sqrt(self.in_features)
            )
        nn.init.constant_(self.weight_rho, -3.0)

    def posterior(self):
        w = dist.Normal(self.weight_mu, F.softplus(self.weight_rho))
        b = dist.Normal(self.bias_mu, F.softplus(self.bias_rho))
        return w, b

    def forward(self, x):
        w, b = self.posterior()
        if self.training:
            weight = w.mean + w.stddev * torch.from_numpy(normal(*w.loc.size()))
            bias = b.loc + b.scale * torch.from_numpy(normal(*b.loc.size()))
        else:
            weight, bias = w.mean, b.mean
        return F.linear(x, weight, bias)

    def kl(self):
        prior = dist.Normal(torch.zeros_like(self.prior_std), self.prior_std)
        return sum(dist.kl_divergence(q, prior).sum() for q in self.posterior())

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}"


class BNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = BayesLinear(3, 16), BayesLinear(16, 2)

    def forward(self, x):
        mean, raw = self.l2(torch.tanh(self.l1(x))).chunk(2, dim=-1)
        return dist.Independent(dist.Normal(mean, F.softplus(raw) + 1e-3), 1)

    def kl(self):
        return sum(m.kl() for m in self.modules() if hasattr(m, "kl") and m is not self)


model = BNN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(3):
    x = torch.from_numpy(normal(16, 3))
    y = x[:, :1] ** 2 + 0.1 * torch.from_numpy(normal(16, 1))
    optimizer.zero_grad()
    nll = torch.stack([-model(x).log_prob(y).mean() for _ in range(2)]).mean()
    beta = min(1.0, (step + 1) / 3)
    loss = nll + beta * model.kl() / 100
    loss.backward()
    optimizer.step()
    losses += [nll.item(), loss.item()]
model.eval()
with torch.no_grad():
    predictive = model(x)
    losses += [predictive.mean.mean().item(), predictive.entropy().mean().item()]
mixture = dist.MixtureSameFamily(
    dist.Categorical(logits=torch.tensor([0.2, -0.1, 0.4])),
    dist.Normal(torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.5, 1.0, 0.3])),
)
losses.append(mixture.log_prob(y.squeeze(-1)).mean().item())
squashed = dist.TransformedDistribution(
    dist.Normal(torch.zeros(2), torch.ones(2)),
    [dist.transforms.AffineTransform(0.5, 2.0), dist.transforms.TanhTransform()],
)
losses.append(squashed.log_prob(torch.tensor([0.3, -0.6])).sum().item())
counts = torch.from_numpy(numbers.poisson(2.0, 8).astype("float32"))
losses.append(dist.Poisson(torch.full((8,), 2.0)).log_prob(counts).sum().item())
losses.append(dist.Beta(torch.tensor(2.0), torch.tensor(3.0)).log_prob(torch.tensor(0.4)).item())
losses.append(dist.kl_divergence(dist.Gamma(2.0, 1.0), dist.Gamma(torch.tensor(3.0), 2.0)).item())
losses.append(dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])).entropy().item())
TOLERANCE = 2e-4
