"""float32 matrix products on an OpenCL device against CLBlast on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import hal
from benchmarks import clblast, opencl
from benchmarks.row import Bar, Row
from benchmarks.timer import Clock, interleaved
from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import Engine, engine_of

SIZES = (512, 1024, 2048)
STAND_IN = "numpy's library"
BAR = Bar(ratio=1)


def rows(quick: bool) -> Iterator[Row]:
    if why := opencl.absent():
        yield from (_row(n, None, None, clblast.NAME, why) for n in SIZES)
        return
    with engine_of(hal.open(opencl.DEVICE, wrappers=())) as engine:
        for n in SIZES[: 2 if quick else None]:
            yield from _rows(engine, n, 3 if quick else 9)


def _rows(engine: Engine, n: int, rounds: int) -> Iterator[Row]:
    ours, found = _product(engine, n), clblast.library()
    if found is None:
        a = np.ones((n, n), np.float32)
        rate, other = _rates(n, [ours, lambda: a @ a], rounds)
        yield _row(n, rate, None, clblast.NAME, f"{clblast.LIBRARY} is not installed")
        yield _row(n, rate, other, STAND_IN, opencl.load(), bar=None)
        return
    both = [ours, clblast.product(found, opencl.queue(), n)]
    yield _row(n, *_rates(n, both, rounds), clblast.NAME, opencl.load())
    computed = _rates(n, both, min(rounds, 3), time.process_time)
    yield _row(n, *computed, clblast.NAME, f"by processor time, {opencl.load()}", bar=None)


def _row(
    n: int,
    ours: float | None,
    peer: float | None,
    name: str,
    note: str,
    bar: Bar | None = BAR,
) -> Row:
    claim = f"float32 product of {n} by {n} matrices on {opencl.DEVICE}"
    return Row(claim, "GFLOP/s", ours, peer, name, bar, more_is_better=True, note=note)


def _rates(
    n: int,
    functions: Sequence[Callable[[], object]],
    rounds: int,
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    ours, peer = (2e-9 * n**3 / s for s in interleaved(functions, rounds, 1, clock))
    return ours, peer


def _product(engine: Engine, n: int) -> Callable[[], None]:
    """Multiplies through the contract, and waits. The first call, which compiles, is done."""
    x, y = (build.input(i, Type((n, n), DType.F32)) for i in range(2))
    plan = engine.plan(GraphRequest((build.matmul(x, y),), (x, y)))
    arrays = [engine.put(np.ones((n, n), np.float32), DType.F32) for _ in range(2)]

    def run() -> None:
        plan.run(arrays)
        engine.sync()

    run()
    return run
