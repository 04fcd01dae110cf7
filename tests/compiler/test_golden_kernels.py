"""The tile kernels of representative graphs, as text; what they compute is tested beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.printer import print_kernel
from stack import ops as g
from stack.compiler.kernels import TileProgram
from stack.compiler.program import GraphRequest
from stack.compiler.templates.emit import TileCall
from tests.compiler import models
from tests.compiler.lowered import SIMD, check, lowered

source = models.source


def norm() -> tuple[list[Node], list[Node]]:
    x, gain = source(0, 64, 40), source(1, 40)
    normal, deviation = models.layer_norm(x)
    return [g.mul(normal, models.grown(gain, x.shape)), deviation], [x, gain]


def soft() -> tuple[list[Node], list[Node]]:
    x = source(0, 64, 40)
    return [models.softmax(x)], [x]


def scores() -> tuple[list[Node], list[Node]]:
    q, k = source(0, 2, 3, 16, 8), source(1, 2, 3, 16, 8)
    return [models.causal_scores(q, k)], [q, k]


def gelu() -> tuple[list[Node], list[Node]]:
    inputs = [source(0, 24, 16), source(1, 16, 32), source(2, 32)]
    return [models.gelu_of_product(*inputs)], inputs


def adamw() -> tuple[list[Node], list[Node]]:
    inputs = [*(source(i, 1000) for i in range(4)), source(4)]
    return list(models.adamw(*inputs)), inputs


def halves() -> tuple[list[Node], list[Node]]:
    x = source(0, 64, 40, dtype=DType.BF16)
    return [models.softmax(x)], [x]


GRAPHS = {
    "layer_norm": (norm, ()),
    "softmax": (soft, ()),
    "softmax_bf16": (halves, ()),
    "attention_scores": (scores, ()),
    "gelu_of_product": (gelu, ()),
    "adamw": (adamw, ((0, 0), (1, 1), (2, 2))),
}


def described(call: TileCall) -> str:
    """A kernel with its grid and buffers."""
    places = ", ".join(
        f"b{i}={p.kind}{p.index}[{p.offset_nbytes}:{p.offset_nbytes + p.nbytes}]"
        for i, p in enumerate(call.buffers)
    )
    return f"# grid {call.grid}, {places}\n{print_kernel(call.kernel)}"


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_as_written_down(name: str, golden: Callable[[str, str], None]) -> None:
    graph, updates = GRAPHS[name]
    outputs, inputs = graph()
    given = [abs(a) for a in models.arrays(*inputs)]
    rtol = 2e-2 if inputs[0].dtype is DType.BF16 else 1e-4
    program = check(outputs, inputs, given, updates, rtol)
    assert len(program.calls) == 1
    golden(f"compiler/{name}.tile", described(program.calls[0]))


def programs() -> Sequence[TileProgram]:
    made = []
    for graph, updates in GRAPHS.values():
        outputs, inputs = graph()
        made.append(lowered(GraphRequest(tuple(outputs), tuple(inputs), updates), SIMD))
    return made


def digest() -> str:
    """One number for every call of every graph."""
    text = "\n".join(described(c) for p in programs() for c in p.calls)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.slow
def test_every_process_compiles_the_same_program() -> None:
    script = f"import {__name__} as t; print(t.digest())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        assert done.stdout.strip() == digest()
