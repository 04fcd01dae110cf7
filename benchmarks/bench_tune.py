"""Matrix products with measured schedules against those of the compiler's rules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

import hal
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as build
from stack.compiler.compile import compile_graph
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.templates.schedule import NO_CHOICES, Choices
from stack.runtime import Engine
from stack.runtime.tuned import read_choices
from stack.tune.commands import LIMIT_S
from stack.tune.process import Process
from stack.tune.rig import Rig
from stack.tune.session import problems_of, tune

DEVICES = ("cpu:0", "opencl:0")
TURNS = 21
BATCH_S = 0.002
"""Seconds that the runs of one batch take at least."""
BATCHES = 5
"""Batches in a turn, of which the fastest counts: other work on the machine only ever adds."""


@dataclass(frozen=True)
class Product:
    """A (batch x) m x n x k product of float32, either side as its transpose in memory."""

    m: int
    n: int
    k: int
    batch: int = 1
    a_transposed: bool = False
    b_transposed: bool = False

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        sides = zip(("A", "B"), (self.a_transposed, self.b_transposed), strict=True)
        turned = "".join(f", {side} transposed" for side, is_so in sides if is_so)
        return f"{batch}{self.m}x{self.n}x{self.k}{turned}"

    def request(self) -> GraphRequest:
        a, a_read = _operand(0, self.batch, self.m, self.k, self.a_transposed)
        b, b_read = _operand(1, self.batch, self.k, self.n, self.b_transposed)
        return GraphRequest((build.matmul(a_read, b_read),), (a, b))


SQUARE = [Product(n, n, n) for n in (64, 96, 128, 256, 512, 1024)]
THIN = [Product(1, 512, 512), Product(1, 384, 1536), Product(8, 512, 512), Product(512, 8, 512)]
GPT = [
    Product(2048, 1536, 384, b_transposed=True),
    Product(2048, 384, 1536),
    Product(384, 1536, 2048, a_transposed=True),
    Product(256, 256, 64, 48, b_transposed=True),
    Product(256, 64, 256, 48),
]
"""Those of the training step of `bench_gpt_step`: a layer forward and back, and attention."""


def rows(quick: bool) -> Iterator[Row]:
    known = {row.name for row in hal.devices() if row.status == "ok"}
    for name in DEVICES:
        if name in known:
            with hal.open(name, wrappers=()) as device:
                for product in (SQUARE[:1] + THIN[:1]) if quick else (SQUARE + THIN + GPT):
                    yield _row(device, product, 4.0 if quick else 8.0)
        else:
            yield Row(f"products on {name}", "us", None, note=f"there is no {name} here")


def _row(device: Device, product: Product, budget_s: float) -> Row:
    request = product.request()
    tried, choices = _tuned(device, request, budget_s)
    changed = choices != NO_CHOICES
    runs = [_runner(device, request, c) for c in ([NO_CHOICES, choices] if changed else [choices])]
    count = max(1, int(BATCH_S / _least(runs[0], 1)))
    turns = [[_least(run, count) for run in runs] for _ in range(TURNS)]
    peer, *tuned = (median(times) for times in zip(*turns, strict=True))
    ours = tuned[0] if changed else peer
    note = f"{tried} candidates tried" + ("" if changed else ", the rules' one kept")
    claim = f"{product} on {device.name}, tuned"
    return Row(claim, "us", ours * 1e6, peer * 1e6, "rules", Bar(ratio=0.95), note=note)


def _least(run: Callable[[int], None], count: int) -> float:
    """The least seconds of a run in a few batches."""
    return min(interleaved([partial(run, count)], 1, 1)[0] for _ in range(BATCHES)) / count


def _tuned(device: Device, request: GraphRequest, budget_s: float) -> tuple[int, Choices]:
    """How many candidates were tried, and what was chosen."""
    problems, tried = problems_of([request], device.info), list[int]()
    with (
        tempfile.TemporaryDirectory() as cache_dir,
        Rig(lambda: Process(device.name), LIMIT_S) as rig,
    ):
        tune(
            problems,
            device.info,
            rig,
            cache_dir,
            budget_s,
            again=False,
            told=lambda tunable, record, note: tried.append(len(record.results) if record else 0),
        )
        return sum(tried), read_choices(cache_dir, device.info)


def _runner(device: Device, request: GraphRequest, choices: Choices) -> Callable[[int], None]:
    """A function that runs the product so many times and waits for the last one."""

    def compile(request: GraphRequest) -> CompiledGraph:
        return compile_graph(request, device.info, choices)

    engine = Engine(device, compile)
    plan, rng = engine.plan(request), np.random.default_rng(0)
    arrays = [engine.put(rng.standard_normal(n.shape), DType.F32) for n in request.inputs]

    def run(count: int) -> None:
        for _ in range(count):
            plan.run(arrays)
        engine.sync()

    return run


def _operand(slot: int, batch: int, rows: int, columns: int, transposed: bool) -> tuple[Node, Node]:
    """An input, and how the product reads it."""
    shape = (columns, rows) if transposed else (rows, columns)
    whole = build.input(slot, Type((batch, *shape) if batch > 1 else shape, DType.F32))
    axes = tuple(range(len(whole.shape)))
    turned = (*axes[:-2], axes[-1], axes[-2])
    return whole, build.permute(whole, turned) if transposed else whole
