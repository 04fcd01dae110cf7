"""Loading: formats, entries, parameters, names and large programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.core.errors import CompileError, InvalidCall, UnsupportedFormat
from hal.core.values import LLVM_IR, OPENCL_C, Buffer, KernelSource, Param, ParamKind, Program
from hal.tile.build import Builder, add, const
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.additions import (
    COUNT,
    add_number,
    add_vectors,
    number_type,
    numbers,
)
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig
from stack.compiler.targets import choose

programs_load = Cases("D", Level.CORE)

MANY = 256


def run_addition(rig: Rig, program: Program, number: int, what: str = "x + number") -> None:
    """The program is `add_number` of that number."""
    before = numbers(rig)
    buffer = rig.buffer(before)
    rig.done(rig.launch(program, [buffer]))
    after = np.frombuffer(rig.read(buffer), before.dtype)
    expect.same(after, before + before.dtype.type(number), what)


@programs_load.case("load-each-format", "load.format", "launch.exact")
def _(rig: Rig) -> None:
    writers = choose(rig.info).writers
    known = [f for f in rig.info.formats if f in writers]
    expect.that(rig.info.formats, "the device accepts no program format")
    if not known:
        raise expect.Unfit(f"nothing here writes {', '.join(rig.info.formats)}")
    for form in known:
        source = writers[form](add_vectors(rig), rig.info)
        expect.equal(source.format, form, "the format of the written program")
        _check_vectors(rig, rig.device.load(source), form)


def _check_vectors(rig: Rig, program: Program, what: str) -> None:
    x, y = numbers(rig), numbers(rig)
    buffers = [rig.buffer(x), rig.buffer(y), rig.buffer(bytes(x.nbytes))]
    rig.done(rig.launch(program, buffers, (COUNT, 1, 1)))
    expect.same(rig.array(buffers[2], number_type(rig)), x + y, f"x + y in {what}")


@programs_load.case("load-unknown-format", "load.format")
def _(rig: Rig) -> None:
    source = KernelSource("no-such-format/1", "text", "entry", ())
    error = expect.raises(UnsupportedFormat, rig.device.load, source)
    for form in rig.info.formats:
        expect.that(form in str(error), f"the message does not list {form}: {error}")


@programs_load.case("load-handle", "load.entry")
def _(rig: Rig) -> None:
    source = rig.source(add_vectors(rig))
    program = rig.device.load(source)
    told = (program.device, program.entry, program.params)
    expect.equal(told, (rig.name, source.entry, source.params), "what the handle says")


@programs_load.case("load-missing-entry", "load.entry")
def _(rig: Rig) -> None:
    source = replace(rig.source(add_vectors(rig)), entry="no_such_entry")
    expect.raises(CompileError, rig.device.load, source)
    run_addition(rig, rig.program(add_number(rig, 2)), 2)


def _other(params: Sequence[Param], how: str) -> tuple[Param, ...]:
    """The parameters of `add_vectors`, changed."""
    x, y, z = params
    match how:
        case "fewer":
            return (x, y)
        case "more":
            return (x, y, z, replace(z, name="w"))
        case "kind":
            return (x, replace(y, kind=ParamKind.SCALAR), z)
    other = DType.U8 if x.dtype is not DType.U8 else DType.I16
    return (x, replace(y, dtype=other), z)


@programs_load.case("load-unknown-option", "load.options")
def _(rig: Rig) -> None:
    source = replace(rig.source(add_vectors(rig)), options=(("no-such-option", "1"),))
    expect.raises((CompileError, InvalidCall), rig.device.load, source)


_CHANGES = ("fewer", "more", "kind", "dtype")
_UNSAID: Mapping[str, tuple[str, ...]] = {LLVM_IR: _CHANGES, OPENCL_C: ("dtype",)}
"""What a text of that format does not say of its parameters: docs/formats.md."""


@programs_load.case("load-other-parameters", "load.entry", how=_CHANGES)
def _(rig: Rig, how: str) -> None:
    source = rig.source(add_vectors(rig))
    if how in _UNSAID.get(source.format, ()):
        raise expect.Unfit(f"a text in {source.format} does not say that of its parameters")
    changed = replace(source, params=_other(source.params, how))
    expect.raises((CompileError, InvalidCall), rig.device.load, changed)


@programs_load.case("load-same-text-twice", "load.entry")
def _(rig: Rig) -> None:
    source = rig.source(add_number(rig, 4))
    first, second = rig.device.load(source), rig.device.load(source)
    run_addition(rig, first, 4, "the first program")
    rig.device.free(first)
    run_addition(rig, second, 4, "the second program, after the first was freed")


@programs_load.case("load-equal-names", "load.entry")
def _(rig: Rig) -> None:
    programs = [(number, rig.program(add_number(rig, number, "same"))) for number in (3, 5, 9)]
    for number, program in (*programs, *reversed(programs)):
        run_addition(rig, program, number, f"the program that adds {number}")


@programs_load.case("load-name", "load.entry", entry=("main", "kernel", "int", "_9", "end"))
def _(rig: Rig, entry: str) -> None:
    run_addition(rig, rig.program(add_number(rig, 3, entry)), 3)


@programs_load.case("load-long-name", "load.entry")
def _(rig: Rig) -> None:
    long = "long_name_" * 25
    first, second = (rig.program(add_number(rig, i, f"{long}{i}")) for i in (1, 2))
    run_addition(rig, first, 1)
    run_addition(rig, second, 2, "the program whose name differs at the end alone")


def _many_arguments(dtype: DType, count: int) -> Kernel:
    """x_i[0] += i % 100 for every buffer."""
    b = Builder("many_arguments")
    buffers = [b.buffer(f"x{i}", dtype, writes=True) for i in range(count)]
    for i, x in enumerate(buffers):
        b.store(x, 0, add(b.load(x, 0), i % 100))
    return b.kernel()


@programs_load.case("load-many-arguments", "describe.limits", "load.entry")
def _(rig: Rig) -> None:
    dtype, count = number_type(rig), min(MANY, rig.info.limits.args)
    ones = np.ones(1, NUMPY[dtype])
    buffers: list[Buffer] = [rig.buffer(ones) for _ in range(count)]
    rig.done(rig.launch(rig.program(_many_arguments(dtype, count)), buffers))
    got = np.array([rig.array(b, dtype)[0] for b in buffers])
    expect.same(got, np.arange(count) % 100 + 1, f"{count} buffers")


@programs_load.case("load-many-constants", "load.compiles", "launch.exact")
def _(rig: Rig) -> None:
    dtype = number_type(rig)
    wanted: NDArray[np.int64] = np.arange(MANY) * 37 % 101
    b = Builder("many_constants")
    x = b.buffer("x", dtype, reads=False, writes=True)
    for i, value in enumerate(wanted.tolist()):
        b.store(x, i, const(value, dtype))
    buffer = rig.buffer(bytes(MANY * dtype.nbytes))
    rig.done(rig.launch(rig.program(b.kernel()), [buffer]))
    expect.same(rig.array(buffer, dtype), wanted.astype(NUMPY[dtype]), f"{MANY} constants")


@programs_load.case("load-while-busy", "load.compiles", "submit.async")
def _(rig: Rig) -> None:
    gate, buffer, x = rig.gate(), rig.buffer(bytes(16)), rig.buffer(numbers(rig))
    point = rig.device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    program = rig.program(add_number(rig, 6))
    launchable = rig.device.bind(program, [x])
    expect.that(rig.pending(point), "the fill ran before its wait")
    gate.open()
    rig.done(rig.device.launch(launchable, (1, 1, 1), rig.timeline(), ()))
