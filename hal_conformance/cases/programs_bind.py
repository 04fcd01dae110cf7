"""Binding: what does not fit a program's parameters is refused."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import Argument, Program, Region
from hal.tile.build import Builder, add
from hal.tile.kernel import Kernel
from hal.tile.numeric import bounds
from hal_conformance import expect
from hal_conformance.additions import COUNT, add_number, add_vectors, number_type, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.cases.programs_load import run_addition
from hal_conformance.rig import Rig

programs_bind = Cases("D", Level.CORE)


def _add_scalar(dtype: DType) -> Kernel:
    """x += n, a scalar of the type."""
    b = Builder("add_scalar")
    x, n = b.buffer("x", dtype, writes=True), b.scalar("n", dtype)
    b.store(x, 0, add(b.load(x, 0, (COUNT,), (1,)), n), (1,))
    return b.kernel()


def _refused(rig: Rig, program: Program, *args: Argument) -> None:
    expect.raises(InvalidCall, rig.device.bind, program, list(args))


@programs_bind.case("bind-wrong-number", "bind.refused")
def _(rig: Rig) -> None:
    program = rig.program(add_vectors(rig))
    buffers = [rig.buffer(numbers(rig)) for _ in range(4)]
    for count in (0, 1, 2, 4):
        _refused(rig, program, *buffers[:count])


@programs_bind.case("bind-wrong-kind", "bind.refused")
def _(rig: Rig) -> None:
    program, buffer = rig.program(_add_scalar(number_type(rig))), rig.buffer(numbers(rig))
    _refused(rig, program, 1, 1)
    _refused(rig, program, buffer, buffer)
    _refused(rig, program, buffer, buffer.region())


@programs_bind.case("bind-scalar-out-of-range", "bind.refused")
def _(rig: Rig) -> None:
    dtype = next((d for d in rig.info.dtypes if d.is_int), None)
    if dtype is None:
        raise expect.Unfit("the device has no integers")
    program, (low, high) = rig.program(_add_scalar(dtype)), bounds(dtype)
    buffer = rig.buffer(bytes(COUNT * dtype.nbytes))
    for wrong in (low - 1, high + 1, 1.5, True):
        _refused(rig, program, buffer, wrong)
    rig.done(rig.launch(program, [buffer, high]))
    expect.equal(set(rig.array(buffer, dtype).tolist()), {high}, "0 + the largest value")


@programs_bind.case("bind-region-past-the-end", "bind.refused")
def _(rig: Rig) -> None:
    program, buffer = rig.program(add_number(rig)), rig.buffer(64)
    for offset, nbytes in ((1, 64), (65, 0), (-1, 8), (8, -1)):
        _refused(rig, program, Region(buffer, offset, nbytes))


@programs_bind.case("bind-of-another-session", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    other, kernel = rig.open(), add_number(rig)
    ours, theirs = rig.program(kernel), rig.program(kernel, other)
    buffer, foreign = rig.buffer(numbers(rig)), rig.buffer(numbers(rig), other)
    expect.raises(StaleHandle, rig.device.bind, theirs, [buffer])
    expect.raises(StaleHandle, rig.device.bind, ours, [foreign])
    bound = other.bind(theirs, [foreign])
    expect.raises(StaleHandle, rig.device.launch, bound, (1, 1, 1), rig.timeline(), ())


@programs_bind.case("bind-list-changed-later", "bind.captures")
def _(rig: Rig) -> None:
    dtype = number_type(rig)
    program = rig.program(_add_scalar(dtype))
    buffer, other = rig.buffer(bytes(COUNT * dtype.nbytes)), rig.buffer(COUNT * dtype.nbytes)
    args: list[Argument] = [buffer, 3]
    bound = rig.device.bind(program, args)
    args[:] = [other, 5]
    rig.done(rig.device.launch(bound, (1, 1, 1), rig.timeline(), ()))
    expect.equal(set(rig.array(buffer, dtype).tolist()), {3}, "0 + the scalar that was bound")


@programs_bind.case("bind-part-of-a-buffer", "launch.inside", "bind.captures")
def _(rig: Rig) -> None:
    before = numbers(rig)
    nbytes, step = before.nbytes, 256
    buffer = rig.buffer(b"\xc5" * step + before.tobytes() + b"\xc5" * 77)
    rig.done(rig.launch(rig.program(add_number(rig, 2)), [buffer.region(step, nbytes)]))
    wanted = b"\xc5" * step + (before + before.dtype.type(2)).tobytes() + b"\xc5" * 77
    expect.same_bytes(rig.read(buffer), wanted, "the buffer around the region")


@programs_bind.case("bind-refused-does-nothing", "bind.refused", "call.refused")
def _(rig: Rig) -> None:
    program = rig.program(add_number(rig, 8))
    for _ in range(20):
        _refused(rig, program)
    run_addition(rig, program, 8)
