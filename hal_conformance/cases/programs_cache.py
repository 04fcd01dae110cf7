"""Programs that a folder keeps from one session to the next, and folders that cannot serve."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from hal.core.values import Buffer
from hal.tile.build import Builder, add
from hal.tile.kernel import Kernel
from hal_conformance import expect
from hal_conformance.additions import add_number, number_type, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.rig import Rig

programs_cache = Cases("D", Level.CORE)

STATEMENTS = 150


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder for one case."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def run_with(rig: Rig, cache: Path | str, number: int) -> None:
    """A new session with that cache folder loads and runs `add_number` of the number."""
    device = rig.open(cache_dir=str(cache))
    program = rig.program(add_number(rig, number), device)
    before = numbers(rig)
    buffer = rig.buffer(before, device)
    rig.done(rig.launch(program, [buffer], device=device), device)
    wanted = (before + before.dtype.type(number)).tobytes()
    expect.same_bytes(rig.read(buffer, device), wanted, f"x + {number}, cache {cache}")
    device.close()


def kept(cache: Path) -> list[Path]:
    """The files that the device keeps there."""
    return sorted(p for p in cache.rglob("*") if p.is_file())


@programs_cache.case("cache-none", "load.cache")
def _(rig: Rig) -> None:
    for _ in range(2):
        run_with(rig, "", 3)


@programs_cache.case("cache-next-session", "load.cache")
def _(rig: Rig) -> None:
    with folder() as cache:
        run_with(rig, cache, 4)
        files = [(p, p.read_bytes()) for p in kept(cache)]
        run_with(rig, cache, 4)
        again = [(p, p.read_bytes()) for p in kept(cache)]
        expect.equal([p for p, _ in again], [p for p, _ in files], "the files after a second load")


@programs_cache.case("cache-other-texts", "load.cache")
def _(rig: Rig) -> None:
    with folder() as cache:
        for number in (1, 2, 3, 2, 1):
            run_with(rig, cache, number)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 3, len(data), 97):
        data[at] ^= 0x10
    file.write_bytes(data)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


_DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncate": _truncate,
    "flip": _flip,
    "empty": _empty,
    "zeros": _zeros,
    "folder": _folder,
}


@programs_cache.case("cache-damaged", "load.cache", how=tuple(_DAMAGE))
def _(rig: Rig, how: str) -> None:
    with folder() as cache:
        run_with(rig, cache, 5)
        for file in kept(cache):
            _DAMAGE[how](file)
        for _ in range(2):
            run_with(rig, cache, 5)


@programs_cache.case("cache-unusable", "load.cache", where=("file", "below-file", "read-only"))
def _(rig: Rig, where: str) -> None:
    with folder() as room:
        file = room / "file"
        file.write_text("this is no folder")
        (room / "read-only").mkdir(mode=0o500)
        cache = {"below-file": file / "below"}.get(where, room / where)
        for _ in range(2):
            run_with(rig, cache, 6)
        expect.equal(file.read_text(), "this is no folder", "a file in the cache's place")


@programs_cache.case("cache-folder-goes", "load.cache")
def _(rig: Rig) -> None:
    with folder() as room:
        cache = room / "cache"
        device = rig.open(cache_dir=str(cache))
        first = rig.program(add_number(rig, 1), device)
        shutil.rmtree(cache, ignore_errors=True)
        second = rig.program(add_number(rig, 2), device)
        for program in (first, second):
            device.free(program)
        run_with(rig, cache, 2)


@programs_cache.case("cache-shared-by-sessions", "load.cache", "call.threads")
def _(rig: Rig) -> None:
    with folder() as cache:
        together([partial(run_with, rig, cache, number) for number in (1, 1, 2, 2)])


def _long(rig: Rig, number: int) -> Kernel:
    """A kernel that takes its time to compile: x[i] += i + number, statement by statement."""
    b = Builder(f"long{number}")
    x = b.buffer("x", number_type(rig), writes=True)
    for i in range(STATEMENTS):
        b.store(x, i, add(b.load(x, i), (i + number) % 50))
    return b.kernel()


def _load_s(rig: Rig, cache: Path | str, kernel: Kernel) -> float:
    """The seconds of one load in a new session."""
    device = rig.open(cache_dir=str(cache))
    source = rig.source(kernel, device)
    begin = time.perf_counter()
    device.load(source)
    seconds = time.perf_counter() - begin
    device.close()
    return seconds


@programs_cache.case("cache-is-faster", "load.cache", timed=True)
def _(rig: Rig) -> None:
    with folder() as cache:
        kernel = _long(rig, 0)
        _load_s(rig, cache, kernel)
        if not kept(cache):
            raise expect.Unfit("the device keeps no files: it has nothing to compile")
        fresh = median(_load_s(rig, "", kernel) for _ in range(3))
        served = min(_load_s(rig, cache, kernel) for _ in range(3))
    expect.that(served < fresh / 2, f"{served:.4f} s from the cache, {fresh:.4f} s without")


def _first_and_second_s(rig: Rig, number: int, buffer: Buffer) -> tuple[float, float, float]:
    """The seconds of a load, and of the program's first and second run."""
    source = rig.source(_long(rig, number))
    marks = [time.perf_counter()]
    program = rig.device.load(source)
    marks.append(time.perf_counter())
    for _ in range(2):
        rig.done(rig.launch(program, [buffer]))
        marks.append(time.perf_counter())
    first, second, third = (b - a for a, b in itertools.pairwise(marks))
    return first, second, third


@programs_cache.case("no-compile-at-launch", "load.compiles", timed=True)
def _(rig: Rig) -> None:
    buffer = rig.buffer(bytes(STATEMENTS * number_type(rig).nbytes))
    tries = [_first_and_second_s(rig, number, buffer) for number in range(1, 4)]
    late = [first - second - load for load, first, second in tries]
    text = ", ".join(f"load {a:.4f} s, runs {b:.4f} and {c:.4f} s" for a, b, c in tries)
    expect.that(min(late) < 0.002, f"the first run takes longer than load and second run: {text}")


@programs_cache.case("no-compile-at-launch-without-text", "load.compiles", "load.cache")
def _(rig: Rig) -> None:
    with folder() as room:
        cache = room / "cache"
        device = rig.open(cache_dir=str(cache))
        program = rig.program(add_number(rig, 9), device)
        shutil.rmtree(cache, ignore_errors=True)
        before = numbers(rig)
        buffer = rig.buffer(before, device)
        rig.done(rig.launch(program, [buffer], device=device), device)
        wanted = (before + before.dtype.type(9)).tobytes()
        expect.same_bytes(rig.read(buffer, device), wanted, "a program whose cache is gone")
