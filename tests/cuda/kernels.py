"""What is compiled for the chips: kernels of every operator on every element type, those of the
templates at full sizes, and those of a training step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig, decay_groups

import stack.framework as ht
from hal.core.dtypes import DType
from hal.core.values import KernelSource
from hal.tile.node import Node
from stack import ops as g
from stack.compiler.compile import compile_graph
from stack.compiler.program import GraphRequest, KernelCall
from stack.framework import optim
from stack.runtime import engine_for
from tests.compiler import models
from tests.compiler.mesh.attention import attention
from tests.cuda.chips import CHIPS

Pair = tuple[str, DType]


@dataclass(frozen=True)
class Text:
    """A kernel's source for each of `ARCHS`, and what it is a kernel of."""

    of: str
    sources: tuple[KernelSource, ...]


def of_request(name: str, request: GraphRequest) -> Iterator[Text]:
    """The kernels of a graph, each once."""
    found = {}
    for chip in CHIPS:
        if id(chip) not in found:
            calls = compile_graph(request, chip).calls
            found[id(chip)] = [c.source for c in calls if isinstance(c, KernelCall)]
    for sources in dict.fromkeys(zip(*(found[id(chip)] for chip in CHIPS), strict=True)):
        yield Text(name, sources)


def of_operators(pairs: Sequence[Pair], case_of: Callable[[str, DType], object]) -> Iterator[Text]:
    """The kernels of operators on element types, by cases that `case_of` draws."""
    for op, dtype in pairs:
        node, inputs = case_of(op, dtype)  # type: ignore[misc]
        yield from of_request(f"{op} {dtype.short}", GraphRequest((node,), tuple(inputs)))


def _given(*shapes: tuple[int, ...], dtype: DType = DType.F32) -> list[Node]:
    return [models.source(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def _template(name: str, dtype: DType) -> tuple[list[Node], list[Node]]:
    """Outputs and inputs of a graph that one template makes kernels for."""
    match name:
        case "softmax 4096 x 4096":
            (x,) = inputs = _given((4096, 4096), dtype=dtype)
            return [models.softmax(x)], inputs
        case "layer norm 8192 x 768":
            (x,) = inputs = _given((8192, 768))
            return list(models.layer_norm(x)), inputs
        case "sum of 2^24":
            (x,) = inputs = _given((1 << 24,), dtype=dtype)
            return [g.reduce("sum", x, (0,))], inputs
        case "scan 64 x 65536":
            (x,) = inputs = _given((64, 65536), dtype=dtype)
            return [g.scan("sum", x, 1)], inputs
        case "transpose 4096 x 4096":
            (x,) = inputs = _given((4096, 4096), dtype=dtype)
            return [g.contiguous(g.permute(x, (1, 0)))], inputs
        case "attention 2 x 12 x 1024 x 64":
            out, inputs = attention((2, 12, 1024, 64), 1024, True, dtype)
            return [out], inputs
        case "gelu of product":
            inputs = _given((8192, 768), (768, 3072), (3072,))
            return [models.gelu_of_product(*inputs)], inputs
        case "adamw of 2^20":
            inputs = [*_given(*[(1 << 20,)] * 4), models.source(4)]
            return list(models.adamw(*inputs)), inputs
    kind, *sizes = name.split()
    m, k, n = (int(size) for size in sizes if size != "x")
    left, right = ((k, m) if "a" in kind else (m, k)), ((n, k) if "b" in kind else (k, n))
    a, b = inputs = _given(left, right, dtype=dtype)
    a, b = (g.permute(x, (1, 0)) if f in kind else x for x, f in ((a, "a"), (b, "b")))
    return [g.matmul(a, b)], inputs


TEMPLATES: tuple[tuple[str, DType], ...] = (
    *(
        (f"{turned} {m} x {k} x {n}", dtype)
        for turned in ("product", "product(b)", "product(a)")
        for m, k, n in ((8192, 8192, 8192), (128, 768, 50257), (77, 1000, 333), (16, 64, 16))
        for dtype in (DType.F32, DType.BF16, DType.F16)
    ),
    *((name, dtype) for name in (
        "softmax 4096 x 4096", "sum of 2^24", "scan 64 x 65536", "transpose 4096 x 4096",
        "attention 2 x 12 x 1024 x 64",
    ) for dtype in (DType.F32, DType.BF16)),
    ("layer norm 8192 x 768", DType.F32),
    ("gelu of product", DType.F32),
    ("adamw of 2^20", DType.F32),
)  # fmt: skip


def of_template(name: str, dtype: DType) -> Iterator[Text]:
    """The kernels of a template's graph."""
    outputs, inputs = _template(name, dtype)
    yield from of_request(f"{name} {dtype.short}", GraphRequest(tuple(outputs), tuple(inputs)))


def of_training(dtype: str) -> Iterator[Text]:
    """The kernels of a whole training step of the GPT in examples/gpt.py, forward, backward and
    AdamW, in float32 or by autocast: of the graphs that cpu:0 is asked for. Only in a process in
    which nothing has opened that device."""
    heard: list[GraphRequest] = []
    engine = engine_for("cpu:0", heard=heard.append)
    ht.manual_seed(0)
    model = GPT(GPTConfig(2, 64, 4, 32, 64))
    optimizer = optim.AdamW(decay_groups(model, 0.1), lr=1e-3)

    def train(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        with nullcontext() if dtype == "float32" else ht.autocast(getattr(ht, dtype)):
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    tokens = np.random.default_rng(0).integers(0, 64, (2, 4, 32))
    ht.jit(train)(*tokens).item()
    engine.close()
    for request in heard:
        yield from of_request(f"gpt step {dtype}", request)
