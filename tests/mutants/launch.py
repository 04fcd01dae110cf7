"""Mutants of launches: grids, results, and what a program may touch."""

import itertools
from dataclasses import replace

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.hosted.machine import Part
from hal.tile.numeric import NUMPY
from tests.mutants.zoo import declare, hook, mutant


def _runs(device, change):
    """Put `change(run, program, args, grid)` in the place of a run."""
    machine = device._session.machine
    real = machine.run
    machine.run = lambda program, args, grid: change(real, program, args, grid)


def _after(device, change):
    """Let `change(array)` work on every array that a run wrote."""

    def wrong(run, program, args, grid):
        run(program, args, grid)
        for param, arg in zip(program.params, args, strict=True):
            if isinstance(arg, Part) and param.writes:
                size = arg.nbytes // param.dtype.nbytes * param.dtype.nbytes
                part = arg.memory.array[arg.offset : arg.offset + size]
                change(part.view(NUMPY[param.dtype]))

    _runs(device, wrong)


@mutant("grid-axes-swapped", "swaps the first two axes of a grid", "launch.grid")
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, (grid[1], grid[0], grid[2]))

    _runs(device, wrong)


@mutant("grid-last-missing", "leaves out the last of several instances", "launch.grid")
def _(device):
    def wrong(run, program, args, grid):
        x, y, z = grid
        run(program, args, (x - 1 if x > 1 else x, y, z))

    _runs(device, wrong)


@mutant("grid-twice", "runs every instance twice", "launch.grid")
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, grid)
        run(program, args, grid)

    _runs(device, wrong)


@mutant("grid-of-zero-runs", "runs one instance for a grid with a zero", "launch.empty")
def _(device):
    real = device.launch

    def launch(launchable, grid, timeline, waits):
        return real(launchable, tuple(max(1, size) for size in grid), timeline, waits)

    hook(device, launch)


@mutant("grid-of-zero-refused", "refuses a grid with a zero", "launch.empty")
def _(device):
    real = device.launch

    def launch(launchable, grid, timeline, waits):
        if not all(grid):
            raise InvalidCall("nothing to launch")
        return real(launchable, grid, timeline, waits)

    hook(device, launch)


@mutant("grid-limit-one-less", "refuses a grid at its limit", "describe.limits")
def _(device):
    real = device.launch

    def launch(launchable, grid, timeline, waits):
        if any(s == most for s, most in zip(grid, device.describe().limits.grid, strict=True)):
            raise InvalidCall("the grid is too large")
        return real(launchable, grid, timeline, waits)

    hook(device, launch)


@mutant(
    "denormals-flushed", "flushes float32 denormals, and says that it keeps them", "launch.exact"
)
def _(device):
    def flush(array):
        if array.dtype == np.float32:
            array[np.abs(array) < np.finfo(np.float32).tiny] = 0

    _after(device, flush)


@mutant(
    "rounds-up", "gives float32 results one unit too high, and declares half of one", "launch.exact"
)
def _(device):
    def up(array):
        if array.dtype == np.float32:
            array[:] = np.nextafter(array, np.float32(np.inf))

    _after(device, up)


@mutant("zero-loses-its-sign", "gives zeros without a sign", "launch.exact")
def _(device):
    def unsigned(array):
        if array.dtype.kind == "f":
            array[array == 0] = 0

    _after(device, unsigned)


@mutant("nan-is-zero", "gives 0 where the result is not a number", "launch.exact")
def _(device):
    def zero(array):
        if array.dtype.kind == "f":
            array[array != array] = 0

    _after(device, zero)


@mutant("f64-in-f32", "computes float64 in float32, and declares float64", "launch.exact")
def _(device):
    def narrow(array):
        if array.dtype == np.float64:
            with np.errstate(all="ignore"):
                array[:] = array.astype(np.float32)

    _after(device, narrow)


@mutant("i64-in-i32", "computes 64-bit integers in 32 bits", "launch.exact")
def _(device):
    def narrow(array):
        if array.dtype == np.int64:
            array[:] = array.astype(np.int32)

    _after(device, narrow)


@mutant("integers-saturate", "stops integers at their ends where they must wrap", "launch.exact")
def _(device):
    def stop(array):
        if array.dtype == np.int8:
            array[array == -128] = 127

    _after(device, stop)


@mutant("stores-past-the-end", "clears the byte behind each buffer that it writes", "launch.inside")
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, grid)
        for param, arg in zip(program.params, args, strict=True):
            if isinstance(arg, Part) and param.writes:
                arg.memory.array[arg.offset + arg.nbytes :][:1] = 0

    _runs(device, wrong)


@mutant(
    "writes-what-it-reads", "spoils the first byte of a buffer that it only reads", "launch.inside"
)
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, grid)
        for param, arg in zip(program.params, args, strict=True):
            if isinstance(arg, Part) and not param.writes:
                arg.memory.array[arg.offset : arg.offset + arg.nbytes][:1] ^= 0xFF

    _runs(device, wrong)


@mutant(
    "not-deterministic",
    "gives every third run's float32 results one unit higher, within what it declares",
    "launch.deterministic",
)
def _(device):
    numeric = device._session.info.numeric
    declare(device, numeric=replace(numeric, ulp=dict.fromkeys(numeric.ulp, 4.0)))
    turn = itertools.count()

    def sometimes(array):
        if array.dtype == np.float32 and next(turn) % 3 == 2:
            array[:] = np.nextafter(array, np.float32(np.inf))

    _after(device, sometimes)


@mutant("bool-any-bit", "stores a true as 2", "launch.exact")
def _(device):
    def two(array):
        if array.dtype == NUMPY[DType.BOOL]:
            array.view(np.uint8)[:] *= 2

    _after(device, two)


@mutant(
    "atomics-lost-in-crowds",
    "loses an update of a small integer counter when more than 200 instances add",
    "launch.exact",
)
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, grid)
        for param, arg in zip(program.params, args, strict=True):
            small = isinstance(arg, Part) and arg.nbytes <= 16
            if small and param.reads and param.writes and grid[0] > 200 and param.dtype.is_int:
                part = arg.memory.array[arg.offset : arg.offset + param.dtype.nbytes]
                part.view(NUMPY[param.dtype])[0] -= 1

    _runs(device, wrong)


@mutant(
    "denormals-flushed-by-a-late-core",
    "flushes float32 denormals in the last of more than 100 instances",
    "launch.exact",
)
def _(device):
    def wrong(run, program, args, grid):
        run(program, args, grid)
        for param, arg in zip(program.params, args, strict=True):
            if isinstance(arg, Part) and param.writes and param.dtype is DType.F32:
                array = arg.memory.array[arg.offset : arg.offset + arg.nbytes // 4 * 4]
                floats = array.view(np.float32)
                if grid[0] > 100 and floats.size:
                    late = floats[floats.size // grid[0] * (grid[0] - 1) :]
                    late[np.abs(late) < np.finfo(np.float32).tiny] = 0

    _runs(device, wrong)
