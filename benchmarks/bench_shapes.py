"""What a change of sizes and numbers costs: training steps over many shapes, and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

import stack.framework as ht
from benchmarks import decoding
from benchmarks.row import Bar, Row
from stack.framework import functional, nn, optim
from stack.runtime import engine_for

DEVICE = "cpu:0"
SHAPES = 64
Batch = Callable[[np.random.Generator, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """A training step, its data for a size, and the sizes: the first three, and the range of all
    others."""

    name: str
    make: Callable[[], Callable[..., Any]]
    batch: Batch
    first: tuple[int, int, int]
    sizes: tuple[int, int]


def rows(quick: bool) -> Iterator[Row]:
    for case in CASES:
        yield from _steps(case, 10 if quick else SHAPES, 10 if quick else 300)
    yield from _decoding(40 if quick else 256)
    yield _numbers(100 if quick else 1000)


def _steps(case: Case, shapes: int, repeats: int) -> Iterator[Row]:
    rng, families = np.random.default_rng(0), engine_for(DEVICE).families
    general, own = ht.jit(case.make()), ht.jit(case.make(), dynamic=False)
    for size in case.first:
        general(*case.batch(rng, size)).item()
    compiled, loaded = families.compiled.copy(), engine_for(DEVICE).programs.count
    new, seen = [], []
    for size in rng.integers(*case.sizes, shapes - 3):
        given = case.batch(rng, int(size))
        new.append(_spent(general, given))
        seen.append(_spent(general, given))
    more = sum((families.compiled - compiled).values())
    note = (
        f"{shapes} shapes; {more} graphs and {engine_for(DEVICE).programs.count - loaded} programs "
    )
    note += f"after the third, {general.traced} traces"
    ratio = median(a / b for a, b in zip(new, seen, strict=True))
    yield Row(
        f"{case.name}: a new shape, in times of a seen one", "", ratio, bar=Bar(limit=2), note=note
    )
    yield Row(f"{case.name}: graphs compiled after the third shape", "", more, bar=Bar(limit=0))
    given = case.batch(rng, sum(case.sizes) // 2)
    both: tuple[list[float], list[float]] = [], []
    for step in (general, own):
        step(*given).item()
    for _ in range(repeats):
        for step, times in zip((general, own), both, strict=True):
            times.append(_spent(step, given))
    ours, specialised = (median(times) for times in both)
    note = f"processor time of all threads, in turns; {1e3 * ours:.2f} ms"
    claim = f"{case.name}: a step for all sizes, in times of one for its size"
    yield Row(claim, "", ours / specialised, bar=Bar(limit=1.05), note=note)


def _decoding(tokens: int) -> Iterator[Row]:
    for cache in decoding.CACHES:
        torch.set_num_threads(1)
        ours, theirs = (decoding.decoder(lib, cache, tokens + 1) for lib in (ht, torch))
        both: tuple[list[float], list[float]] = [], []
        for at in range(tokens):
            if at == 3:
                compiled = engine_for(DEVICE).families.compiled.copy()
            for step, times in zip((ours, theirs), both, strict=True):
                start = time.process_time()
                step(at)
                times.append(time.process_time() - start)
        more = sum((engine_for(DEVICE).families.compiled - compiled).values())
        mine, other = (median(times) for times in both)
        note = f"{tokens} tokens, {more} graphs compiled after the third; {1e3 * mine:.2f} ms"
        claim = f"decoding with a cache, {cache}, in times of PyTorch"
        yield Row(claim, "", mine / other, bar=Bar(limit=1.2), note=note)


def _numbers(count: int) -> Row:
    step = ht.jit(lambda x, lr: x * lr)
    x, times = ht.ones(64), []
    for number in range(count):
        start = time.process_time()
        step(x, 1 / (number + 1)).numpy()
        times.append(time.process_time() - start)
    note = f"{count} learning rates, {step.traced} traces"
    return Row("a new number", "ms/call", 1e3 * median(times), note=note)


def _spent(step: Callable[..., Any], given: tuple[Any, ...]) -> float:
    start = time.process_time()
    step(*given).item()
    return time.process_time() - start


def _trained(model: nn.Module, forward: Callable[[Any], Any]) -> Callable[..., Any]:
    opt = optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Any, y: Any) -> Any:
        logits = forward(x)
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def _mlp() -> Callable[..., Any]:
    ht.manual_seed(0)
    parts = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    model = nn.Sequential(*parts)
    return _trained(model, model)


def _cnn() -> Callable[..., Any]:
    ht.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
    return _trained(model, model)


def _strided() -> Callable[..., Any]:
    ht.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, padding=1)
    pools = nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)
    layers = first, nn.BatchNorm2d(8), nn.ReLU(), pools[0], second, nn.ReLU(), pools[1]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10))
    return _trained(model, model)


class _Gpt(nn.Module):
    """Two blocks of width 64 with 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(96, 64), nn.Embedding(300, 64)
        self.qkv = nn.ModuleList([nn.Linear(64, 192) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(64, 256) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(256, 64) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(4)])
        self.head = nn.Linear(64, 96)

    def forward(self, tokens: Any) -> Any:
        b, t = tokens.shape
        x = self.embed(tokens) + self.place(ht.arange(t))
        for i in range(2):
            parts = self.qkv[i](self.norms[2 * i](x)).split(64, 2)
            q, k, v = (p.reshape(b, t, 4, 16).transpose(1, 2) for p in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + mixed.transpose(1, 2).reshape(b, t, 64)
            x = x + self.down[i](functional.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return self.head(x)


def _gpt() -> Callable[..., Any]:
    ht.manual_seed(0)
    model = _Gpt()
    return _trained(model, model)


CASES = (
    Case(
        "MLP, batches of 2 to 300",
        _mlp,
        lambda rng, b: (rng.standard_normal((b, 64), np.float32), rng.integers(0, 10, b)),
        (32, 48, 17),
        (2, 300),
    ),
    Case(
        "GPT, lengths of 17 to 256",
        _gpt,
        lambda rng, t: (rng.integers(0, 96, (4, t)), rng.integers(0, 96, (4, t))),
        (32, 48, 17),
        (17, 257),
    ),
    Case(
        "CNN, batches of 2 to 64",
        _cnn,
        lambda rng, b: (rng.standard_normal((b, 3, 16, 16), np.float32), rng.integers(0, 10, b)),
        (8, 12, 5),
        (2, 65),
    ),
    Case(
        "CNN with strides and pools, images of 16 to 128 by fours",
        _strided,
        lambda rng, s: (
            rng.standard_normal((4, 3, 4 * s, 4 * s), np.float32),
            rng.integers(0, 10, 4),
        ),
        (8, 12, 6),
        (4, 33),
    ),
)
