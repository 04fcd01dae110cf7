"""Classes for each pixel, some ignored, classes weighted; transposed padding modes."""

import torch
import torch.nn as nn
from begin import begin, normal

model = nn.Sequential(
    nn.Conv2d(2, 6, 3, padding=1, bias=False),
    nn.InstanceNorm2d(6, affine=True),
    nn.LeakyReLU(0.1, inplace=True),
    nn.AvgPool2d(2),
    nn.Conv2d(6, 6, 3, padding="same", dilation=2, groups=2),
    nn.SiLU(),
    nn.Upsample(scale_factor=2, mode="nearest"),
    nn.Conv2d(6, 3, 1),
)
begin(torch, model)
x = torch.tensor(normal(2, 2, 8, 8))
target = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
target[:, 0, :] = 255
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), ignore_index=255)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for step in range(3):
    loss = criterion(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
