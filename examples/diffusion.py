"""Draw digits by denoising diffusion (DDPM, Ho et al. 2020), told which digit, on any device.

    pip install 'hal-accel[cpu,examples]'
    python examples/diffusion.py --device cpu:0

The model learns from the images of 8 x 8 pixels that scikit-learn ships to find the noise in a
noised image; from noise alone it then draws eight of each digit, which the picture shows.
"""

from __future__ import annotations

import math

import small
from digits import load_digits
from matplotlib.figure import Figure

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.nn import functional as F

BATCH = 128
PIXELS = 64
TIMES = 60
"""How often an image is noised until nothing of it is left."""
EACH = 8
"""How many of each digit are drawn."""


class Denoiser(nn.Module):
    """The noise (B, 64) in images (B, 64) that were noised t (B,) times and show labels (B,)."""

    def __init__(self, width: int = 256, blocks: int = 3) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.first = nn.Linear(PIXELS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
            )
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, PIXELS)

    def forward(self, x: ht.Tensor, t: ht.Tensor, labels: ht.Tensor) -> ht.Tensor:
        frequencies = ht.exp(-math.log(1000) * ht.arange(16) / 16)
        angles = t[:, None].float() * frequencies
        told = self.time(ht.cat([angles.cos(), angles.sin()], dim=-1)) + self.label(labels)
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x + told)
        return self.last(x)


def run(options: small.Options) -> None:
    images, labels = (ht.from_numpy(values) for values in load_digits())
    images = images.flatten(1)
    betas = ht.linspace(1e-3, 0.2, TIMES)
    kept = ht.cumprod(1 - betas, dim=0)  # of an image's variance, after each time
    model = Denoiser()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

    @ht.jit
    def update() -> ht.Tensor:
        rows = ht.randint(0, len(images), (BATCH,))
        t = ht.randint(0, TIMES, (BATCH,))
        noise = ht.randn(BATCH, PIXELS)
        share = kept[t].unsqueeze(1)
        noised = share.sqrt() * images[rows] + (1 - share).sqrt() * noise
        loss = F.mse_loss(model(noised, t, labels[rows]), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def step() -> ht.Tensor:
        loss = update()
        schedule.step()
        return loss

    @ht.jit
    def denoise(x: ht.Tensor, t: ht.Tensor, wanted: ht.Tensor) -> ht.Tensor:
        """`x` noised one time less often; after the last one no noise is added."""
        beta, share = betas[t].unsqueeze(1), kept[t].unsqueeze(1)
        mean = (x - beta / (1 - share).sqrt() * model(x, t, wanted)) / (1 - beta).sqrt()
        return mean + (t > 0).float().unsqueeze(1) * beta.sqrt() * ht.randn_like(x)

    losses = small.train(options, step)
    wanted = ht.arange(10).repeat_interleave(EACH)
    x = ht.randn(10 * EACH, PIXELS)
    with ht.no_grad():
        for time in reversed(range(TIMES)):
            x = denoise(x, ht.full((len(x),), time, dtype=ht.long), wanted)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(losses) + 1), losses)
    left.set(xlabel="step", ylabel="loss (mean squared error of the noise)", yscale="log")
    drawn = x.clamp(-1, 1).reshape(10, EACH, 8, 8).permute(1, 2, 0, 3).reshape(EACH * 8, 80)
    right.imshow(drawn.numpy(), cmap="gray_r")
    right.axis("off")
    small.save(figure, options)


if __name__ == "__main__":
    small.main(__doc__, 1200, run)
