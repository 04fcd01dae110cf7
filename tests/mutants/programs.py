"""Mutants of loading, of the folder that keeps programs, and of binding."""

from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import CompileError, Unsupported
from hal.core.values import HAL_TILE, Buffer, KernelSource, Launchable, Operator, Program, Region
from hal.tile.build import Builder, const
from hal.tile.parser import parse_kernel
from hal.tile.printer import print_kernel
from tests.mutants.zoo import checked, declare, hook, lax, mutant


@mutant("compiles-at-launch", "looks at a program's text when it first runs", "load.entry")
def _(device):
    machine = device._session.machine
    compiled, run = machine.compile, machine.run
    machine.compile = lambda source: source
    machine.run = lambda program, args, grid: run(compiled(program), args, grid)


@mutant("compiles-from-cache", "compiles at launch what it left in the cache", "load.compiles")
def _(device):
    machine = device._session.machine
    compiled, run = machine.compile, machine.run
    places = {}

    def compile(source):
        kernel = compiled(source)
        place = Path(device.options.cache_dir) / source.entry
        if device.options.cache_dir:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source.text)
            places[id(kernel)] = place
        return kernel

    def run_again(kernel, args, grid):
        if id(kernel) in places:
            parse_kernel(places[id(kernel)].read_text())
        run(kernel, args, grid)

    machine.compile, machine.run = compile, run_again


@mutant("any-entry", "loads a text whatever entry and parameters were asked for", "load.entry")
def _(device):
    machine = device._session.machine
    real = machine.compile

    def compile(source):
        kernel = parse_kernel(source.text)
        return real(replace(source, entry=kernel.name, params=kernel.params))

    machine.compile = compile


@mutant("damaged-is-a-type-error", "raises TypeError for a text that is no program", "load.damaged")
def _(device):
    machine = device._session.machine
    real = machine.compile

    def compile(source):
        try:
            return real(source)
        except CompileError as error:
            raise TypeError(str(error)) from error

    machine.compile = compile


@mutant(
    "damaged-is-empty", "loads a text that is no program as one that does nothing", "load.damaged"
)
def _(device):
    machine = device._session.machine
    real = machine.compile

    def compile(source):
        try:
            return real(source)
        except CompileError:
            return Builder(source.entry).kernel()

    machine.compile = compile


@mutant("ignores-options", "ignores build options that it does not know", "load.options")
def _(device):
    machine = device._session.machine
    real = machine.compile
    machine.compile = lambda source: real(replace(source, options=()))


@lax("any-format", "tries to compile a format that it does not list", "load.format")
def _(checks):
    def load(source):
        return checks._new("load", Program, (yield))

    checked(checks, load)


def _cached(device, key):
    """Keep texts in the cache folder under `key(source)`."""
    machine = device._session.machine
    real = machine.compile

    def compile(source):
        folder = Path(device.options.cache_dir)
        place = folder / key(source)
        if not device.options.cache_dir:
            return real(source)
        folder.mkdir(parents=True, exist_ok=True)
        if place.exists():
            kept = parse_kernel(place.read_text())
            return real(replace(source, text=print_kernel(kept)))
        place.write_text(source.text)
        return real(source)

    machine.compile = compile


@mutant(
    "cache-by-name", "takes a program of that name from the cache, whatever its text", "load.cache"
)
def _(device):
    _cached(device, lambda source: source.entry[:40])


@mutant(
    "cache-believed", "fails to load when the cache is damaged or cannot be written", "load.cache"
)
def _(device):
    _cached(device, lambda source: str(crc32(source.text.encode())))


@mutant(
    "arguments-captured-late", "reads a list of arguments when the launch runs", "bind.captures"
)
def _(device):
    def bind(program, args):
        return Launchable(program.device, program.epoch, args, program)

    def launch(launchable, grid, timeline, waits):
        made = lambda: device._work._launch(launchable, grid, launchable.native)
        task = replace(made(), run=lambda part: made().run(part))
        return device._work._submit("launch", task, timeline, waits)

    hook(device, bind)
    hook(device, launch)


@mutant("scalars-as-float32", "passes every scalar through a float32", "bind.scalars")
def _(device):
    real = device.bind

    def narrow(arg):
        return type(arg)(np.float32(arg)) if isinstance(arg, int | float) else arg

    def bind(program, args):
        return real(program, [narrow(arg) for arg in args])

    hook(device, bind)


@lax("binds-anything", "takes arguments of the wrong number, kind and range", "bind.refused")
def _(checks):
    def bind(program, args):
        checks._handles.check("bind", program, Program)
        for arg in args:
            if isinstance(arg, Buffer | Region):
                checks._argument("bind", arg)
        launchable = checks._new("bind", Launchable, (yield))
        checks._slots[id(launchable)] = ()
        return launchable

    checked(checks, bind)


@mutant("operator-is-wrong", "has a vendor's matmul that gives zeros", "operators.exact")
def _(device):
    build = Builder("matmul")
    a, b = (build.buffer(name, DType.F32) for name in "ab")
    c = build.buffer("c", DType.F32, reads=False, writes=True)
    build.store(c, 0, const(0.0, DType.F32, (9,)), strides=(1,))
    kernel = build.kernel()
    assert a
    assert b
    declare(device, features=device._session.info.features | {Feature.OPERATORS})

    def operators():
        return [Operator("matmul", kernel.params, {"m": 1})]

    def load_operator(operator, constants):
        if "m" not in constants:
            raise Unsupported("matmul needs m, n and k")
        return device.load(KernelSource(HAL_TILE, print_kernel(kernel), "matmul", kernel.params))

    hook(device, operators)
    hook(device, load_operator)


@mutant(
    "code-stays-in-memory",
    "keeps the code of freed programs in the device's memory",
    "free.returns",
)
def _(device):
    real, account = device.load, device._memory._accounts["memory"]

    def load(source):
        account.capacity -= 4096
        return real(source)

    hook(device, load)


@mutant(
    "programs-told-apart-by-heads",
    "takes programs of one entry and length for equal whose first 1,000 characters are",
    "launch.exact",
)
def _(device):
    machine, known = device._session.machine, {}
    real = machine.compile

    def compile(source):
        if len(source.text) < 1000:
            return real(source)
        key = (source.entry, source.text[:1000], len(source.text))
        if key not in known:
            known[key] = real(source)
        return known[key]

    machine.compile = compile
