"""Worker: training steps of an image model, written once for both libraries.

    python -m benchmarks.vision {resnet18,vit} {ours,eager,compile}

`resnet18`: He et al., 2016, on 8 images of 224 by 224. `vit`: patches of 16 of the same images, 12
blocks of width 384 (Dosovitskiy et al., 2021; its small one). The optimizer is SGD with momentum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.machine import cores
from benchmarks.serving import serve

IMAGES, SIDE, CLASSES = 8, 224, 1000
WIDTH, DEPTH, HEADS, PATCH = 384, 12, 6, 16
NAMES = ("resnet18", "vit")


def resnet18(nn: Any) -> Any:
    """Its stages of two blocks each."""

    def conv(a: int, b: int, taps: int, stride: int) -> Any:
        return nn.Conv2d(a, b, taps, stride, taps // 2, bias=False)

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = conv(a, b, 3, stride), conv(b, b, 3, 1)
            self.norm1, self.norm2 = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
            narrower = stride != 1 or a != b
            self.down = (
                nn.Sequential(conv(a, b, 1, stride), nn.BatchNorm2d(b)) if narrower else None
            )

        def forward(self, x: Any) -> Any:
            F = nn.functional
            y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
            return F.relu(y + (x if self.down is None else self.down(x)))

    stages = [Residual(64, 64, 1), Residual(64, 64, 1)]
    for a, b in ((64, 128), (128, 256), (256, 512)):
        stages += [Residual(a, b, 2), Residual(b, b, 1)]
    stem = (conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    pool = (nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten())
    return nn.Sequential(*stem, *stages, *pool, nn.Linear(512, CLASSES))


def vit(nn: Any) -> Any:
    """With the mean over patches in the place of a class token."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            F, (B, T, C) = nn.functional, x.shape
            qkv = self.qkv(self.norm1(x)).reshape(B, T, 3, HEADS, C // HEADS)
            q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class ViT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
            self.place = nn.Embedding((SIDE // PATCH) ** 2, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2) + self.place.weight
            return self.head(self.norm(self.blocks(x)).mean(1))

    return ViT()


def prepare() -> Callable[[], float]:
    name, mode = sys.argv[1:]
    lib: Any
    if mode == "ours":
        import stack.framework as ht  # noqa: PLC0415 - the other contender runs without it
        from stack.framework import optim  # noqa: PLC0415

        lib, optimizers = ht, optim
    else:
        import torch  # noqa: PLC0415 - the other contender runs without it

        torch.set_num_threads(cores())
        lib, optimizers = torch, torch.optim
    lib.manual_seed(0)
    model = (resnet18 if name == "resnet18" else vit)(lib.nn)
    optimizer = optimizers.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rng = np.random.default_rng(0)
    images = lib.tensor(rng.standard_normal((IMAGES, 3, SIDE, SIDE)).astype(np.float32))
    labels = lib.tensor(rng.integers(0, CLASSES, IMAGES))

    def train(images: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if mode == "compile":
        forward = lib.compile(lambda x, y: lib.nn.functional.cross_entropy(model(x), y))

        def train(images: Any, labels: Any) -> Any:  # its own step: backward is compiled with it
            optimizer.zero_grad()
            loss = forward(images, labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

    step = lib.jit(train) if mode == "ours" else train
    return lambda: float(step(images, labels).item())


if __name__ == "__main__":
    serve(prepare)
