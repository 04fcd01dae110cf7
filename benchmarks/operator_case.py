"""Worker: the operators of a group, each once per step, in PyTorch or in ours.

    python -m benchmarks.operator_case {ours,torch} GROUP

The counts of a step are nanoseconds, by the operator's name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.serving import serve

BATCH = 8
RESNET50 = {
    "7x7 stem": (3, 64, 7, 2, 224),
    "1x1 64 to 64, 56": (64, 64, 1, 1, 56),
    "3x3 64, 56": (64, 64, 3, 1, 56),
    "1x1 64 to 256, 56": (64, 256, 1, 1, 56),
    "1x1 256 to 64, 56": (256, 64, 1, 1, 56),
    "1x1 256 to 128, 56": (256, 128, 1, 1, 56),
    "3x3 128, 56 by 2": (128, 128, 3, 2, 56),
    "1x1 128 to 512, 28": (128, 512, 1, 1, 28),
    "1x1 256 to 512, 56 by 2": (256, 512, 1, 2, 56),
    "1x1 512 to 128, 28": (512, 128, 1, 1, 28),
    "3x3 128, 28": (128, 128, 3, 1, 28),
    "1x1 512 to 256, 28": (512, 256, 1, 1, 28),
    "3x3 256, 28 by 2": (256, 256, 3, 2, 28),
    "1x1 256 to 1024, 14": (256, 1024, 1, 1, 14),
    "1x1 512 to 1024, 28 by 2": (512, 1024, 1, 2, 28),
    "1x1 1024 to 256, 14": (1024, 256, 1, 1, 14),
    "3x3 256, 14": (256, 256, 3, 1, 14),
    "1x1 1024 to 512, 14": (1024, 512, 1, 1, 14),
    "3x3 512, 14 by 2": (512, 512, 3, 2, 14),
    "1x1 512 to 2048, 7": (512, 2048, 1, 1, 7),
    "1x1 1024 to 2048, 14 by 2": (1024, 2048, 1, 2, 14),
    "1x1 2048 to 512, 7": (2048, 512, 1, 1, 7),
    "3x3 512, 7": (512, 512, 3, 1, 7),
}
"""Channels in and out, taps and stride of its different convolutions, and the input's size."""

Run = Callable[..., Any]
IMAGES = (8, 64, 56, 56)
MATRIX = (4096, 1024)
ROWS = ("index", MATRIX[1], MATRIX)
COLUMNS = ("index", MATRIX[0], MATRIX)
MANY = (1 << 20,)


@dataclass(frozen=True)
class Case:
    """`run` gets the library and an operand for each of `given`: a shape of float32, or ("index",
    least number that none is, shape)."""

    run: Run
    given: tuple[Any, ...]
    places: tuple[int, ...] = ()
    """The operands whose gradients are taken, if any are: the result's is the last of `given`."""
    captured: bool = True
    """Whether ours is compiled as one; not where a size depends on values."""

    def call(self, lib: Any, operands: Sequence[Any], *, ours: bool) -> Callable[[], Any]:
        """What is measured. PyTorch takes gradients of a result that it has; ours computes again
        what it needs of it. Ours is compiled for its sizes, as in a network that is captured."""
        run: Run = partial(self.run, lib)
        if not self.places:
            return partial(
                lib.jit(run, dynamic=False) if ours and self.captured else run, *operands
            )

        def traced(*operands: Any) -> tuple[Any, Any, Any]:
            *rest, slope = operands
            leaves = [x.detach().requires_grad_(i in self.places) for i, x in enumerate(rest)]
            return run(*leaves), [leaves[i] for i in self.places], slope

        if ours:
            gradients = lib.jit(lambda *xs: lib.autograd.grad(*traced(*xs)), dynamic=False)
            return partial(gradients, *operands)
        return partial(lib.autograd.grad, *traced(*operands), retain_graph=True)


def _convolutions(*places: int) -> Iterator[tuple[str, Case]]:
    for name, (c, d, k, stride, size) in RESNET50.items():

        def run(t: Any, x: Any, w: Any, k: int = k, stride: int = stride) -> Any:
            return t.nn.functional.conv2d(x, w, stride=stride, padding=k // 2)

        given: tuple[Any, ...] = ((BATCH, c, size, size), (d, c, k, k))
        if places:
            given += ((BATCH, d, size // stride, size // stride),)
        yield name, Case(run, given, places)


def _f(name: str, *args: Any, **named: Any) -> Run:
    """A function of `nn.functional`, with arguments behind its tensors."""
    return lambda t, *tensors: getattr(t.nn.functional, name)(*tensors, *args, **named)


POOLS = {
    "max 3 by 2": _f("max_pool2d", 3, 2, 1),
    "mean 2": _f("avg_pool2d", 2),
    "mean to 7": _f("adaptive_avg_pool2d", 7),
}
POOLED = {"max 3 by 2": 28, "mean 2": 28, "mean to 7": 7}
WIDE = (2048, 1024)
NORMS: dict[str, tuple[Run, tuple[Any, ...]]] = {
    "layer": (lambda t, x, w, b: t.nn.functional.layer_norm(x, (1024,), w, b), (WIDE, 1024, 1024)),
    "rms": (lambda t, x, w: t.nn.functional.rms_norm(x, (1024,), w), (WIDE, 1024)),
    "group": (_f("group_norm", 8), (IMAGES,)),
    "batch": (_f("batch_norm", None, None, training=True), (IMAGES,)),
    "instance": (_f("instance_norm"), (IMAGES,)),
}

LAYERS, WIDTH, PARALLEL = 2, 512, 32


def _lstm(steps: int) -> dict[str, Case]:
    """A forward and backward pass over `steps` of PARALLEL sequences."""
    module: dict[Any, Any] = {}

    def run(t: Any, x: Any, slope: Any) -> Any:
        if t not in module:
            module[t] = t.nn.LSTM(WIDTH, WIDTH, LAYERS)
        leaf = x.detach().requires_grad_(True)
        out, _ = module[t](leaf)
        return t.autograd.grad(out, [*module[t].parameters()], slope)

    return {f"{steps} steps": Case(run, ((steps, PARALLEL, WIDTH),) * 2)}


GROUPS: Mapping[str, Callable[[], Mapping[str, Case]]] = {
    "convolutions": lambda: dict(_convolutions()),
    "gradients of convolutions' weights": lambda: dict(_convolutions(1)),
    "gradients of convolutions' inputs": lambda: dict(_convolutions(0)),
    "pools": lambda: {n: Case(run, (IMAGES,)) for n, run in POOLS.items()},
    "gradients of pools": lambda: {
        n: Case(run, (IMAGES, (*IMAGES[:2], POOLED[n], POOLED[n])), (0,))
        for n, run in POOLS.items()
    },
    "norms": lambda: {n: Case(run, given) for n, (run, given) in NORMS.items()},
    "gradients of norms": lambda: {
        n: Case(run, (*given, given[0]), tuple(range(len(given))))
        for n, (run, given) in NORMS.items()
    },
    "indexing": lambda: {
        "rows": Case(lambda t, x, i: x[i], (MATRIX, ("index", 4096, (4096,)))),
        "columns": Case(lambda t, x, i: x[:, i], (MATRIX, ("index", 1024, (1024,)))),
        "gather along rows": Case(lambda t, x, i: x.gather(1, i), (MATRIX, ROWS)),
        "gather down columns": Case(lambda t, x, i: x.gather(0, i), (MATRIX, COLUMNS)),
        "two indices": Case(
            lambda t, x, i, j: x[i, j], (MATRIX, ("index", 4096, (4096,)), ("index", 1024, (4096,)))
        ),
        "embedding": Case(
            lambda t, x, i: t.nn.functional.embedding(i, x),
            ((30000, 256), ("index", 30000, (16, 256))),
        ),
        "where": Case(lambda t, x: t.where(x > 0, x, 0.0), (MATRIX,)),
    },
    "sort": lambda: {
        "1 M": Case(lambda t, x: x.sort(), (MANY,)),
        "rows of 1024": Case(lambda t, x: x.sort(1), ((1024, 1024),)),
        "greatest 10 of 1 M": Case(lambda t, x: x.topk(10), (MANY,)),
        "order of rows of 4096": Case(lambda t, x: x.argsort(1), ((256, 4096),)),
    },
    "scan": lambda: {
        "sums of 4 M": Case(lambda t, x: x.cumsum(0), ((1 << 22,),)),
        "sums down columns": Case(lambda t, x: x.cumsum(0), (MATRIX,)),
        "sums along rows": Case(lambda t, x: x.cumsum(1), (MATRIX,)),
        "greatest along rows": Case(lambda t, x: x.cummax(1), (MATRIX,)),
        "products along rows": Case(lambda t, x: x.cumprod(1), (MATRIX,)),
    },
    "scatter": lambda: {
        "sums along rows": Case(lambda t, x, i: x.scatter_add(1, i, x), (MATRIX, ROWS)),
        "sums down columns": Case(lambda t, x, i: x.scatter_add(0, i, x), (MATRIX, COLUMNS)),
        "1 M into 1 M": Case(
            lambda t, z, i, u: z.scatter_add(0, i, u), (MANY, ("index", 1 << 20, MANY), MANY)
        ),
        "rows": Case(
            lambda t, z, i, u: z.index_add(0, i, u), (MATRIX, ("index", 4096, (4096,)), MATRIX)
        ),
        "greatest along rows": Case(
            lambda t, x, i: x.scatter_reduce(1, i, x, "amax"), (MATRIX, ROWS)
        ),
        "counts of 1 M": Case(
            lambda t, i: t.bincount(i, minlength=1000), (("index", 1000, MANY),), captured=False
        ),
    },
    "LSTM of 16 steps": lambda: _lstm(16),
    "LSTM of 64 steps": lambda: _lstm(64),
}


def _operand(lib: Any, given: Any, rng: np.random.Generator) -> Any:
    if isinstance(given, tuple) and given[0] == "index":
        return lib.tensor(rng.integers(0, *given[1:]))
    return lib.tensor(rng.standard_normal(given).astype(np.float32))


def prepare(library: str, group: str, spent: dict[str, int]) -> Callable[[], float]:
    if library == "torch":
        import torch as lib  # noqa: PLC0415 - the other contender runs without it
    else:
        import stack.framework as lib  # type: ignore[no-redef]  # noqa: PLC0415

    rng = np.random.default_rng(0)
    calls = {}
    for name, case in GROUPS[group]().items():
        operands = [_operand(lib, given, rng) for given in case.given]
        calls[name] = case.call(lib, operands, ours=library == "ours")

    def step() -> float:
        time.sleep(0.05)  # the other contender's threads look for work for a while
        for name, call in calls.items():
            began = time.perf_counter_ns()
            result = call()
            if library == "ours":
                lib.accelerator.synchronize()
            spent[name] = time.perf_counter_ns() - began
            del result
        return 0.0

    return step


if __name__ == "__main__":
    found: dict[str, int] = {}
    serve(lambda: prepare(*sys.argv[1:], found), lambda: found)
