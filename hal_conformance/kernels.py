"""Kernels of the usual form and what they must compute.

A *blocks* kernel has inputs x0, x1, ... and outputs y0, y1, ... of equal length; each program
instance loads one block of each input, computes, and stores one block of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import Builder, cast, mul, program_id
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import DTYPES, NUMPY
from hal_conformance import expect
from hal_conformance.rig import Rig

Array = NDArray[Any]
Body = Callable[..., Sequence[Node]]
WIDTH = 32


def need(rig: Rig, *dtypes: DType) -> None:
    """The device has these element types; else the case says nothing about it."""
    if missing := [d.short for d in dtypes if d not in rig.info.dtypes]:
        raise expect.Unfit(f"the device has no {', '.join(missing)}")


def counts(rig: Rig) -> DType:
    """The integers in which kernels store ids and get counts: i64 where the device has it."""
    return DType.I64 if DType.I64 in rig.info.dtypes else DType.I32


def index_of(rig: Rig, b: Builder, name: str) -> Node:
    """A scalar parameter of the type `counts` as an index."""
    return cast(b.scalar(name, counts(rig)), DType.I64)


def blocks(
    name: str,
    inputs: Sequence[DType],
    outputs: Sequence[DType],
    body: Body,
    width: int = WIDTH,
) -> Kernel:
    """The kernel that computes `body(*blocks of inputs)`."""
    b = Builder(name)
    xs = [b.buffer(f"x{i}", dtype) for i, dtype in enumerate(inputs)]
    ys = [b.buffer(f"y{i}", d, reads=False, writes=True) for i, d in enumerate(outputs)]
    start = mul(program_id(), width)
    tiles = [b.load(x, start, (width,), (1,)) for x in xs]
    for y, value in zip(ys, body(*tiles), strict=True):
        b.store(y, start, value, (1,))
    return b.kernel()


def padded(x: Array, width: int = WIDTH) -> Array:
    """The array repeated up to whole blocks."""
    return np.resize(x, -(-x.size // width) * width)


def computed(
    rig: Rig,
    body: Body,
    inputs: Sequence[Array],
    outputs: Sequence[DType],
    width: int = WIDTH,
    golden: bool = False,
) -> list[Array]:
    """What the device (or the interpreter) makes of a blocks kernel on arrays of one size."""
    types = [DTYPES[x.dtype] for x in inputs]
    need(rig, *types, *outputs)
    kernel = blocks("blocks", types, outputs, body, width)
    whole = [padded(x, width) for x in inputs]
    count = whole[0].size
    arguments = {f"x{i}": x for i, x in enumerate(whole)}
    arguments |= {f"y{i}": np.zeros(count, NUMPY[d]) for i, d in enumerate(outputs)}
    run = rig.golden if golden else rig.run
    found = run(kernel, arguments, (count // width, 1, 1))
    return [found[f"y{i}"][: inputs[0].size] for i in range(len(outputs))]


def agree(
    rig: Rig,
    body: Body,
    inputs: Sequence[Array],
    outputs: Sequence[DType],
    what: str,
    width: int = WIDTH,
) -> None:
    """The device computes exactly what the interpreter does."""
    got = computed(rig, body, inputs, outputs, width)
    wanted = computed(rig, body, inputs, outputs, width, golden=True)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        expect.same(a, b, f"output {i} of {what}")


def pairs(values: Array) -> tuple[Array, Array]:
    """Every pair of values, as two arrays."""
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()
