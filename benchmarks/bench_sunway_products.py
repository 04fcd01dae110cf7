"""Products and attention of the compiler on an emulated core group, in emulated time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import hal
from benchmarks.row import Bar, Row
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import Engine, engine_of

DEVICE = "sunway:0"
SQUARES = (
    *((DType.F64, 1536), (DType.F64, 2048), (DType.F64, 3072)),
    *((DType.F16, 2048), (DType.F16, 3072), (DType.F32, 3072)),
)
OF_THE_PEAK = {DType.F64: 2048, DType.F16: 2048}
"""Products that are to have 0.85 of it."""
ODD = 1_000_003
"""Elements of a sum of two, which no size of a vector, a transfer or a core divides."""
QUICK = ((DType.F64, 768), (DType.F16, 1536), (DType.F32, 1024))
BY_HAND, EDGES = "a program by hand", {DType.F64: 768, DType.F16: 1536}
"""It multiplies matrices whose edges are multiples of these."""
KEYS, COLUMNS = 4096, 64


def rows(quick: bool) -> Iterator[Row]:
    if all(row.name != DEVICE for row in hal.devices()):
        note = f"no device {DEVICE}: pip install hal-plugin-sunway-emu"
        yield Row(f"products on {DEVICE}", "share of the peak", None, note=note)
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        options = OpenOptions(settings={"report": str(report)})
        with engine_of(hal.open(DEVICE, options=options, wrappers=())) as engine:
            emulated = _Emulated(engine, report)
            for dtype, n in QUICK if quick else SQUARES:
                yield from _product(emulated, dtype, n)
            yield _elementwise(emulated)
            yield _attention(emulated, KEYS // 8 if quick else KEYS)


@dataclass(frozen=True, slots=True)
class _Emulated:
    """An engine on a device that reports emulated time."""

    engine: Engine
    report: Path

    def seconds(self, outputs: tuple[Node, ...], inputs: tuple[Node, ...]) -> float:
        """The emulated seconds of a request's kernels."""
        arrays = [self.engine.put(np.ones(x.shape, NUMPY[x.dtype]), x.dtype) for x in inputs]
        self.report.write_text("")
        self.engine.plan(GraphRequest(outputs, inputs)).run(arrays)
        self.engine.sync()
        lines = [json.loads(line) for line in self.report.read_text().splitlines()]
        return sum(float(row["emulated_s"]) for row in lines if "launch" in row)


def _product(emulated: _Emulated, dtype: DType, n: int) -> Iterator[Row]:
    """A square product by the stack, beside one whose text was written by hand."""
    a, b = (build.input(i, Type((n, n), dtype)) for i in range(2))
    seconds = emulated.seconds((build.matmul(a, b),), (a, b))
    peak = emulated.engine.device.info.dtypes[dtype]
    by_hand = None
    if dtype in EDGES and n % EDGES[dtype] == 0:
        by_hand = _by_hand(n, dtype is DType.F16) / peak
    claim = f"{dtype.value} product of {n} by {n} matrices on a core group"
    share, note, unit = 2 * n**3 / seconds / peak, "emulated time", "share of the peak"
    bar = Bar(ratio=0.95) if by_hand else None
    yield Row(claim, unit, share, by_hand, BY_HAND if by_hand else "", bar, True, note)
    if OF_THE_PEAK.get(dtype) == n:
        yield Row(f"{claim}: of the peak", unit, share, 1.0, "peak", Bar(ratio=0.85), True, note)


def _elementwise(emulated: _Emulated) -> Row:
    """What moves to and from memory in a cycle."""
    x, y = (build.input(i, Type((ODD,), DType.F32)) for i in range(2))
    seconds = emulated.seconds((build.add(x, y),), (x, y))
    chip: Any = import_module("hal_plugin_sunway.chip")
    cycles = seconds * chip.published()["cpe_hz"]
    claim = f"sum of two of {ODD} float32 on a core group"
    bar, note = Bar(ratio=1), "emulated time"
    return Row(claim, "B/cycle", 12 * ODD / cycles, 15.0, "what is wanted", bar, True, note)


def _by_hand(n: int, half: bool) -> float:
    """Operations/s of the program that came with the emulator."""
    bench: Any = import_module("hal_plugin_sunway.bench")
    chip: Any = import_module("hal_plugin_sunway.chip")
    with bench.Bench(chip.published()) as core_group:
        return float(core_group.matmul_rate(n, half))


def _attention(emulated: _Emulated, keys: int) -> Row:
    """One head: fused, and with its weights stored, which the second output asks for."""
    q, k, v = (build.input(i, Type((keys, COLUMNS), DType.F32)) for i in range(3))
    scores = build.matmul(q, build.permute(k, (1, 0)))
    scores = build.mul(scores, build.full_like(scores, COLUMNS**-0.5))
    top = build.expand(build.reduce("max", scores, (1,)), scores.shape)
    power = build.exp(build.sub(scores, top))
    over = build.expand(build.recip(build.reduce("sum", power, (1,))), scores.shape)
    weights = build.mul(power, over)
    out = build.matmul(weights, v)
    found: Mapping[str, float] = {
        "fused": emulated.seconds((out,), (q, k, v)),
        "unfused": emulated.seconds((out, weights), (q, k, v)),
    }
    claim = f"float32 attention of {keys} rows to {keys} keys of {COLUMNS} columns on a core group"
    bar, note = Bar(ratio=1.8), "emulated time"
    return Row(claim, "s", found["fused"], found["unfused"], "weights stored", bar, note=note)
