"""A mixture of experts that learns a picture, on any device.

    python examples/moe.py --device cpu:0

A router sends each point of the plane to the two experts of eight that it gives the largest
weights; an expert takes at most so many points as it has places (GShard, Lepikhin et al. 2020), so
all sizes are known beforehand. A second loss keeps the load even (Switch, Fedus et al. 2021). The
picture shows what was to be learnt, what was learnt, and which expert works where.
"""

from __future__ import annotations

import small
from matplotlib.figure import Figure

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.nn import functional as F

BATCH = 256
EXPERTS = 8
CHOSEN = 2
SPARE = 1.5
"""Places of the experts for each time that a point is sent to one."""
BALANCE = 0.01
GRID = 64


class Model(nn.Module):
    """Brightness (T,) of points (T, 2); behind it the loss of balance and each point's expert."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 1)
        self.experts = nn.MixtureOfExperts(width, 2 * width, EXPERTS, CHOSEN, SPARE)

    def forward(self, points: ht.Tensor) -> tuple[ht.Tensor, ht.Tensor, ht.Tensor]:
        x = ht.sin(3 * self.first(points))
        y, routed = self.experts(x[None])  # the points are one sequence
        return self.last(x + y[0]).squeeze(-1), routed.balance, routed.chosen[0, :, 0]


def brightness(points: ht.Tensor) -> ht.Tensor:
    """What is to be learnt: a spiral, of another sense in the upper half of the plane."""
    x, y = points[:, 0], points[:, 1]
    radius, angle = (x * x + y * y).sqrt(), ht.atan2(y, x)
    return ht.sin(8 * radius + 3 * ht.where(y > 0, angle, -angle))


def run(options: small.Options) -> None:
    model = Model()
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    @ht.jit
    def step() -> ht.Tensor:
        points = 2 * ht.rand(BATCH, 2) - 1
        found, balance, _ = model(points)
        loss = F.mse_loss(found, brightness(points))
        optimizer.zero_grad()
        (loss + BALANCE * balance).backward()
        optimizer.step()
        return loss

    small.train(options, step)
    side = ht.linspace(-1, 1, GRID)
    points = ht.stack([side.repeat(GRID), side.repeat_interleave(GRID)], dim=1)
    with ht.no_grad():
        found, _, expert = model(points)
    shown = {"to be learnt": brightness(points), "learnt": found, "first expert": expert}
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        shades = {"cmap": "tab10"} if values is expert else {"vmin": -1, "vmax": 1}
        axes.imshow(values.reshape(GRID, GRID).numpy(), **shades)
        axes.set_title(name)
        axes.axis("off")
    small.save(figure, options)


if __name__ == "__main__":
    small.main(__doc__, 1000, run)
