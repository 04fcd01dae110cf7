"""A Fourier neural operator: spectral convolutions by rfft, weights kept as real pairs, relative errors as losses."""

import torch
import torch.nn.functional as F
from begin import begin, normal
from torch import nn


class SpectralConv1d(nn.Module):
    def __init__(self, in_channels, out_channels, modes):
        super().__init__()
        self.out_channels, self.modes = out_channels, modes
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels, modes, 2))

    def forward(self, x):
        x_ft = torch.fft.rfft(x)
        weight = torch.view_as_complex(self.weight)
        kept = torch.einsum("bix,iox->box", x_ft[:, :, : self.modes], weight)
        out = torch.zeros(
            x.shape[0], self.out_channels, x.shape[-1] // 2 + 1, dtype=torch.cfloat, device=x.device
        )
        out[:, :, : self.modes] = kept
        return torch.fft.irfft(out, n=x.size(-1))


class FNO(nn.Module):
    def __init__(self, width=6, modes=4):
        super().__init__()
        self.lift = nn.Linear(2, width)
        self.spectral = nn.ModuleList(SpectralConv1d(width, width, modes) for _ in range(1))
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(1))
        self.drop = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, u):
        grid = (
            torch.linspace(0, 1, u.shape[1], device=u.device)
            .reshape(1, -1, 1)
            .expand(u.shape[0], -1, -1)
        )
        x = self.lift(torch.cat((u, grid), dim=-1)).permute(0, 2, 1)
        for spectral, local in zip(self.spectral, self.local):
            x = F.gelu(spectral(x) + local(x))
        return self.drop(x.permute(0, 2, 1))


def relative(x, y):
    size = x.size()[0]
    differences = torch.norm(x.reshape(size, -1) - y.reshape(size, -1), 2, 1)
    return (differences / torch.norm(y.reshape(size, -1), 2, 1)).mean()


model = begin(torch, FNO())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
u = torch.tensor(normal(4, 16, 1))
target = u.cumsum(1) / 4
losses = []
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    loss = relative(model(u), target)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
