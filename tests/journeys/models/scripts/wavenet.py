"""Causal convolutions by padding, dilations, gates, skips added up."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal


class Layer(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size=2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, kernel_size=1)
        self.skip = nn.Conv1d(channels, channels, kernel_size=1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        h = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(h), self.skip(h)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Conv1d(1, 4, 1)
        self.layers = nn.ModuleList([Layer(4, 2**i) for i in range(3)])
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(4, 1, 1))

    def forward(self, x):
        x, total = self.start(x), 0
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return self.end(total)


wave = torch.tensor(normal(2, 1, 20)).cumsum(-1) * 0.2
model = begin(torch, WaveNet())
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(4):
    loss = F.l1_loss(model(wave[..., :-1]), wave[..., 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
