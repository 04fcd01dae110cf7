"""Teach a frozen network something new by low-rank adapters (LoRA, Hu et al. 2021), on any device.

    python examples/lora.py --device cpu:0

A network learns a curve; then its weights are frozen, and adapters of rank 2 beside them learn
another one. Merged into the weights they cost nothing: the picture shows both curves, and what the
network gives before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import small
from matplotlib.figure import Figure

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.nn import functional as F

BATCH = 128
RANK = 2
SCALE = 2.0


class LoRALinear(nn.Module):
    """A frozen linear layer and what is to be added to it, nothing at first."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(ht.empty(RANK, base.in_features))
        self.lora_B = nn.Parameter(ht.zeros(base.out_features, RANK))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: ht.Tensor) -> ht.Tensor:
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * SCALE

    @ht.no_grad()
    def merge(self) -> nn.Linear:
        """The layer, with the adapter in its weight."""
        self.base.weight += self.lora_B @ self.lora_A * SCALE
        return self.base


def old(x: ht.Tensor) -> ht.Tensor:
    """The curve that the network learns first."""
    return ht.sin(2 * x)


def new(x: ht.Tensor) -> ht.Tensor:
    """The curve that the adapters learn."""
    return ht.sin(2 * x + 1) + 0.3 * x


def fit(options: small.Options, model: nn.Module, curve: Callable[[ht.Tensor], ht.Tensor]) -> None:
    """Train what is not frozen."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    count = sum(p.numel() for p in trained)
    print(f"{curve.__name__} curve: {count:,} of {total:,} parameters are trained")
    optimizer = optim.AdamW(trained, lr=3e-3)

    @ht.jit
    def step() -> ht.Tensor:
        x = 6 * ht.rand(BATCH, 1) - 3
        loss = F.mse_loss(model(x), curve(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    small.train(options, step)


def run(options: small.Options) -> None:
    model = nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    fit(options, model, old)
    x = ht.linspace(-3, 3, 200).unsqueeze(1)
    with ht.no_grad():
        before = model(x).numpy()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, LoRALinear(module))
    fit(options, model, new)
    with ht.no_grad():
        adapted = model(x).numpy()
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            model.set_submodule(name, module.merge())
    with ht.no_grad():
        merged = model(x).numpy()
    print(f"merged, the largest change is {abs(merged - adapted).max():.1e}")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, y, style in (
        ("old curve", old(x).numpy(), "C0--"),
        ("before", before, "C0"),
        ("new curve", new(x).numpy(), "C1--"),
        ("with adapters, merged", merged, "C1"),
    ):
        axes.plot(x.numpy(), y, style, label=name)
    axes.legend()
    small.save(figure, options)


if __name__ == "__main__":
    small.main(__doc__, 400, run)
