"""Loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import FailureKind, OperationFailed
from hal.tile.build import Builder, add, binary, broadcast, cast, const, mul, program_id, unary
from hal.tile.kernel import If, Kernel
from hal.tile.node import Node
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import index_of, need
from hal_conformance.rig import Rig

kernels_control = Cases("E", Level.CORE)

I32, I64 = DType.I32, DType.I64


def _agrees(rig: Rig, kernel: Kernel, arguments: dict[str, Any], instances: int = 1) -> None:
    need(rig, *(p.dtype for p in kernel.params))
    got = rig.run(kernel, arguments, (instances, 1, 1))
    wanted = rig.golden(kernel, arguments, (instances, 1, 1))
    for name, array in wanted.items():
        expect.same(got[name], array, f"buffer {name}")


def _counting(rig: Rig) -> Kernel:
    """y[i] += 1 for i in range(start, stop, step)."""
    b = Builder("counting")
    y = b.buffer("y", I32, writes=True)
    start, stop, step = (index_of(rig, b, name) for name in ("start", "stop", "step"))

    def body(i: Node) -> None:
        b.store(y, i, add(b.load(y, i), 1))

    b.loop(start, stop, step, body)
    return b.kernel()


RANGES = ((0, 20, 1), (3, 20, 5), (4, 5, 7), (0, 19, 19), (5, 5, 1), (9, 2, 3))


@kernels_control.case("loop-bounds", "launch.exact", bounds=RANGES)
def _(rig: Rig, bounds: tuple[int, int, int]) -> None:
    arguments: dict[str, Any] = {"y": np.zeros(20, np.int32)}
    arguments |= dict(zip(("start", "stop", "step"), bounds, strict=True))
    _agrees(rig, _counting(rig), arguments)


@kernels_control.case("loop-bounds-loaded", "launch.exact")
def _(rig: Rig) -> None:
    """Each instance reads how often its loop runs, 0 included."""
    b = Builder("loaded")
    counts, y = b.buffer("counts", I32), b.buffer("y", I32, reads=False, writes=True)
    stop = cast(b.load(counts, program_id()), I64)

    def body(i: Node, total: Node) -> Sequence[Node]:
        return [add(total, cast(mul(i, i), I32))]

    (total,) = b.loop(0, stop, 1, body, [const(0, I32)])
    b.store(y, program_id(), total)
    counts_given = np.array([3, 0, 7, 1, -2, 12], np.int32)
    _agrees(rig, b.kernel(), {"counts": counts_given, "y": np.full(6, -1, np.int32)}, 6)


@kernels_control.case("loop-carries", "launch.exact", width=(1, 8, 33))
def _(rig: Rig, width: int) -> None:
    """Three carried values that change places: the new ones are of the iteration before."""
    b = Builder("carries")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    first = b.load(x, 0, (width,), (1,))
    zero = const(0, I32, (width,))

    def body(i: Node, p: Node, q: Node, r: Node) -> Sequence[Node]:
        return [q, r, add(p, add(q, broadcast(cast(i, I32), (width,))))]

    for n, value in enumerate(
        b.loop(0, index_of(rig, b, "n"), 1, body, [first, add(first, 1), zero])
    ):
        b.store(y, n * width, value, (1,))
    for n in (0, 1, 2, 9):
        arguments = {"x": np.arange(width, dtype=np.int32), "y": np.zeros(3 * width, np.int32)}
        _agrees(rig, b.kernel(), {**arguments, "n": n})


@kernels_control.case("loop-long", "launch.exact", rounds=(300, 5000, 70_000))
def _(rig: Rig, rounds: int) -> None:
    """Every round counts: each makes its number from the one before."""
    need(rig, DType.U32)
    b = Builder("long")
    y = b.buffer("y", DType.U32, reads=False, writes=True)

    def body(_: Node, x: Node) -> Sequence[Node]:
        return [binary("xor", add(mul(x, 1664525), 1013904223), binary("shr", x, 7))]

    (last,) = b.loop(0, index_of(rig, b, "n"), 1, body, [const(1, DType.U32)])
    b.store(y, 0, last)
    try:
        got = rig.run(b.kernel(), {"y": np.zeros(1, np.uint32), "n": rounds})["y"]
    except OperationFailed as error:
        if error.failure.kind is not FailureKind.HANG:
            raise
        limit_s = rig.info.limits.progress_s
        raise expect.Unfit(f"{rounds} rounds take the device more than {limit_s} s") from error
    x = 1
    for _ in range(rounds):
        x = (x * 1664525 + 1013904223) % 2**32 ^ x >> 7
    expect.equal(int(got[0]), x, f"a number after {rounds} rounds of a loop")


@kernels_control.case("loop-in-loop", "launch.exact")
def _(rig: Rig) -> None:
    """The inner bounds depend on the outer index, and a value is carried through both."""
    b = Builder("nested")
    y = b.buffer("y", I32, reads=False, writes=True)

    def outer(i: Node, total: Node) -> Sequence[Node]:
        def inner(j: Node, total: Node) -> Sequence[Node]:
            return [add(mul(total, 3), cast(add(mul(i, 10), j), I32))]

        inside = b.loop(program_id(), i, 2, inner, [total])
        b.store(y, add(mul(program_id(), 6), i), inside[0])
        return inside

    b.loop(0, 6, 1, outer, [const(1, I32)])
    _agrees(rig, b.kernel(), {"y": np.zeros(18, np.int32)}, 3)


@kernels_control.case("loop-early-exit", "launch.exact")
def _(rig: Rig) -> None:
    """Nothing more happens once a condition that the loop carries has come true."""
    b = Builder("early_exit")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    start = mul(program_id(), 10)

    def body(i: Node, done: Node) -> Sequence[Node]:
        value = b.load(x, add(start, i))
        done = binary("or", done, binary("lt", value, 0))
        with b.when(unary("not", done)):
            b.store(y, add(start, i), value)
        return [done]

    b.loop(0, 10, 1, body, [const(False, DType.BOOL)])
    values = rig.random.integers(-2, 10, 50).astype(np.int32)
    _agrees(rig, b.kernel(), {"x": values, "y": np.full(50, 99, np.int32)}, 5)


@kernels_control.case("branch", "launch.exact", "launch.inside")
def _(rig: Rig) -> None:
    """Each instance goes its own way, by its id."""
    b = Builder("branch")
    y = b.buffer("y", I32, writes=True)
    odd = binary("eq", binary("rem", program_id(), 2), 1)
    with b.when(odd):
        b.store(y, program_id(), const(1, I32))
    with b.when(binary("lt", program_id(), 4)), b.when(unary("not", odd)):
        b.store(y, program_id(), const(2, I32))
    _agrees(rig, b.kernel(), {"y": np.full(20, 7, np.int32)}, 20)


@kernels_control.case("branch-else", "launch.exact")
def _(rig: Rig) -> None:
    b = Builder("branch_else")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    condition = binary("lt", b.load(x, program_id()), 0)
    with b.when(condition):
        b.store(y, program_id(), const(-1, I32))
    with b.when(unary("not", condition)):
        b.store(y, program_id(), const(1, I32))
    kernel = b.kernel()
    *before, then, orelse = kernel.body
    assert isinstance(then, If)
    assert isinstance(orelse, If)
    both = replace(kernel, body=(*before, If(then.condition, then.then, orelse.then)))
    values = rig.random.integers(-5, 5, 30).astype(np.int32)
    _agrees(rig, both, {"x": values, "y": np.zeros(30, np.int32)}, 30)


@kernels_control.case("branch-guards-memory", "launch.inside")
def _(rig: Rig) -> None:
    """What a branch not taken would read or write lies outside of the buffer."""
    b = Builder("guard")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    with b.when(binary("eq", program_id(), 0)):
        place = mul(program_id(), 1 << 40)
        b.store(y, place, b.load(x, place))
    arguments = {"x": np.array([4], np.int32), "y": np.array([0, 77], np.int32)}
    _agrees(rig, b.kernel(), arguments, 9)


@kernels_control.case("loop-in-branch", "launch.exact")
def _(rig: Rig) -> None:
    b = Builder("loop_in_branch")
    y = b.buffer("y", I32, writes=True)
    with b.when(binary("lt", program_id(), index_of(rig, b, "most"))):

        def body(i: Node) -> None:
            with b.when(binary("ne", i, program_id())):
                b.store(y, add(mul(program_id(), 4), i), cast(i, I32))

        b.loop(0, 4, 1, body)
    _agrees(rig, b.kernel(), {"y": np.full(24, -1, np.int32), "most": 4}, 6)


@kernels_control.case("loop-around-store-and-load", "launch.exact")
def _(rig: Rig) -> None:
    """Each iteration reads what the one before it wrote."""
    b = Builder("chain")
    y = b.buffer("y", I32, writes=True)

    def body(i: Node) -> None:
        previous = b.load(y, i, (4,), (1,))
        b.store(y, add(i, 1), add(previous, 1), (1,))

    b.loop(0, 12, 1, body)
    _agrees(rig, b.kernel(), {"y": np.arange(16, dtype=np.int32)})
