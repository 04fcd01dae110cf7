"""Down, up by a transposed convolution, joined by cat; a Dice loss."""

import torch
import torch.nn as nn
from begin import begin, normal


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(2, outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = double_conv(1, 4)
        self.pool = nn.MaxPool2d(2)
        self.middle = double_conv(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, kernel_size=2, stride=2)
        self.out = double_conv(8, 4)
        self.head = nn.Conv2d(4, 1, kernel_size=1)

    def forward(self, x):
        a = self.down(x)
        b = self.up(self.middle(self.pool(a)))
        return self.head(self.out(torch.cat([a, b], dim=1)))


x = torch.tensor(normal(2, 1, 8, 8))
target = (x > 0).float()
model = begin(torch, UNet())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(3):
    p = torch.sigmoid(model(x))
    dice = 1 - (2 * (p * target).sum(dim=(1, 2, 3)) + 1) / (p + target).sum(dim=(1, 2, 3)).add(1)
    loss = dice.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
