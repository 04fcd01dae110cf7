"""Time series: temporal convolutions with weight norm, quantile losses, a GRU that forecasts by itself, Hawkes intensities, series decomposed."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal
from torch.nn.utils import weight_norm


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation, dropout=0.0):
        super().__init__()
        padding = (kernel_size - 1) * dilation
        self.conv1 = weight_norm(
            nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=padding, dilation=dilation)
        )
        self.net = nn.Sequential(self.conv1, Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout))
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


class QuantileLoss(nn.Module):
    def __init__(self, quantiles):
        super().__init__()
        self.quantiles = quantiles

    def forward(self, preds, target):
        assert not target.requires_grad
        losses = []
        for i, q in enumerate(self.quantiles):
            errors = target - preds[:, i]
            losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(1))
        return torch.mean(torch.sum(torch.cat(losses, dim=1), dim=1))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            *[TemporalBlock(1 if i == 0 else 4, 4, 3, 2**i) for i in range(3)]
        )
        self.gru = nn.GRUCell(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x, steps=2):
        last = self.blocks(x)[:, :, -1]
        h = torch.zeros(x.size(0), 6, device=x.device)
        outs = []
        for _ in range(steps):
            h = self.gru(last, h)
            outs.append(self.head(h))
            last = F.pad(outs[-1], (0, 1))
        return torch.stack(outs, dim=1)


class SeriesDecomposition(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=1, padding=0)

    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        padded = torch.cat([front, x, end], dim=1)
        mean = self.avg(padded.permute(0, 2, 1)).permute(0, 2, 1)
        return x - mean, mean


series = torch.tensor(normal(40)).cumsum(0)
windows = series.unfold(0, 18, 2)
windows = (windows - windows.mean(-1, keepdim=True)) / windows.std(-1, keepdim=True).clamp_min(1e-6)
seasonal, trend = SeriesDecomposition(5)(windows.unsqueeze(-1))
model = begin(torch, Forecaster())
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
criterion = QuantileLoss([0.1, 0.5, 0.9])
losses = [seasonal.abs().mean().item(), trend[..., 0].diff(dim=1).abs().max().item()]
for step in range(3):
    preds = model(windows[:, None, :16])
    loss = sum(criterion(preds[:, s], windows[:, 16 + s]) for s in range(2))
    optimizer.zero_grad()
    loss.backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 0.5, error_if_nonfinite=True)
    optimizer.step()
    losses += [loss.item(), total.item()]

times = torch.tensor(normal(10)).abs().cumsum(0)
raw = nn.ParameterDict(
    {k: nn.Parameter(torch.tensor(v)) for k, v in (("mu", 0.1), ("alpha", -0.5), ("beta", 0.3))}
)
optimizer = torch.optim.Rprop(raw.parameters(), lr=0.05)
for step in range(3):
    mu, alpha, beta = (F.softplus(raw[k]) for k in ("mu", "alpha", "beta"))
    gaps = times[:, None] - times[None, :]
    kernel = torch.tril(alpha * beta * torch.exp(-beta * gaps.clamp(min=0)), diagonal=-1)
    ll = (
        torch.log(mu + kernel.sum(1)).sum()
        - mu * times[-1]
        - (alpha * (1 - torch.exp(-beta * (times[-1] - times)))).sum()
    )
    optimizer.zero_grad()
    (-ll).backward()
    optimizer.step()
    losses.append(ll.item())
