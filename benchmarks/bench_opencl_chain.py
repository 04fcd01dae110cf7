"""A fused chain of elementwise operations on an OpenCL device against a hand-written copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import hal
from benchmarks import opencl
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import Engine, engine_of

COUNT = 1 << 24
"""Elements: 64 MiB are read and 64 MiB written, more than caches hold."""
BAR = Bar(ratio=0.9)
PEERS = {"copy kernel": "float", "copy kernel of float16": "float16"}
COPY = """
__kernel void copy(__global const {0} *source, __global {0} *target)
{{
    size_t i = get_global_id(0);
    target[i] = source[i];
}}
"""


def rows(quick: bool) -> Iterator[Row]:
    if why := opencl.absent():
        yield _row(None, None, "copy kernel", why, BAR)
        return
    rounds = 5 if quick else 61
    with engine_of(hal.open(opencl.DEVICE, wrappers=())) as engine:
        queue = opencl.queue()
        functions = [_chain(engine), *(_copy(queue, kind) for kind in PEERS.values())]
        seconds = interleaved(functions, rounds, 1)
        computed = interleaved(functions, rounds, 1, time.process_time)
    yield from _rows(seconds, opencl.load(), BAR)
    yield from _rows(computed, f"by processor time, {opencl.load()}", None)


def _rows(seconds: list[float], note: str, bar: Bar | None) -> Iterator[Row]:
    ours, *peers = (8e-9 * COUNT / s for s in seconds)
    for name, rate in zip(PEERS, peers, strict=True):
        yield _row(ours, rate, name, note, bar)


def _row(ours: float | None, peer: float | None, name: str, note: str, bar: Bar | None) -> Row:
    claim = "elementwise chain of 9 operations, 64 MiB of float32"
    return Row(claim, "GB/s", ours, peer, name, bar, more_is_better=True, note=note)


def _chain(engine: Engine) -> Callable[[], None]:
    x = build.input(0, Type((COUNT,), DType.F32))
    plan = engine.plan(GraphRequest((_chained(x),), (x,)))
    assert plan.launches == 1, "the chain must be one kernel"
    array = engine.put(np.linspace(-1, 1, COUNT, dtype=np.float32), DType.F32)
    kept: list[Any] = []

    def run() -> None:
        kept[:] = plan.run([array])
        engine.sync()

    run()
    return run


def _chained(x: Node) -> Node:
    """max(x * 2 + 1, 0) * x, its root, and what that is above a half."""
    two, one, half = (build.full_like(x, value) for value in (2, 1, 0.5))
    line = build.add(build.mul(x, two), one)
    bent = build.mul(build.maximum(line, build.full_like(x, 0)), build.abs(x))
    root = build.sqrt(bent)
    return build.where(build.lt(half, root), build.sub(root, half), build.neg(root))


def _copy(queue: Any, kind: str) -> Callable[[], None]:
    source, target = (opencl.buffer(queue, np.ones(COUNT, np.float32)) for _ in range(2))
    kernel = opencl.kernel(queue, COPY.format(kind), "copy")
    width = 16 if kind == "float16" else 1

    def run() -> None:
        kernel(queue, (COUNT // width,), None, source, target)
        queue.finish()

    run()
    return run
