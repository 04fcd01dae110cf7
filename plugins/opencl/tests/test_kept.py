"""Built programs in the cache folder, from one session to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hal_plugin_opencl import programs

import hal
from hal.cache import Cache
from hal.core.dtypes import DType
from hal.core.errors import CompileError
from hal.core.values import OpenOptions
from plugins.opencl.tests.conftest import Bench, buffer, source

TEXT = """
__kernel void f(__global uchar *x_base, ulong x_offset) {
  __global int *x = (__global int *)(x_base + x_offset);
  x[get_global_id(0)] += 7;
}
"""
PARAMS = (buffer("x", DType.I32, True),)


@contextmanager
def opened(folder: Path) -> Iterator[Bench]:
    with hal.open("opencl:0", options=OpenOptions(cache_dir=str(folder))) as device:
        yield Bench(device)


def results(bench: Bench) -> list[int]:
    x = bench.put(np.arange(4, dtype=np.int32))
    bench.run(source(TEXT, *PARAMS), x, grid=(4, 1, 1))
    return list(bench.get(x, np.int32))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_session_does_not_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as bench:
        assert results(bench) == [7, 8, 9, 10]

    def build(*_: object) -> None:
        raise CompileError("built again")

    monkeypatch.setattr(programs, "_build", build)
    with opened(tmp_path) as bench:
        assert results(bench) == [7, 8, 9, 10]
        with pytest.raises(CompileError, match="built again"):
            bench.device.load(source(TEXT + " ", *PARAMS))


def test_damaged_entries_are_built_again(tmp_path: Path) -> None:
    """Drivers crash on binaries that are cut off, so they are never given one."""
    with opened(tmp_path) as bench:
        results(bench)
    ((path, whole),) = files(tmp_path / "opencl").items()
    for damaged in (b"", whole[:100], whole[:-50], whole[:500] + b"?" + whole[501:]):
        path.write_bytes(damaged)
        with opened(tmp_path) as bench:
            assert results(bench) == [7, 8, 9, 10]
        assert path.read_bytes() != damaged


def test_entries_that_the_driver_does_not_take_are_built_again(tmp_path: Path) -> None:
    with opened(tmp_path) as bench:
        results(bench)
    cache = Cache(tmp_path, "opencl")
    (name,) = cache.names()
    for useless in (b"", b"no binary", b"\x7fELF" + bytes(100)):
        cache.write(name, useless)
        with opened(tmp_path) as bench:
            assert results(bench) == [7, 8, 9, 10]
        assert cache.get(name) != useless


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = {tmp_path / "opencl", tmp_path / "looks"}
    for path in blocked:
        path.write_text("a file in the place of the folder")
    with opened(tmp_path) as bench:
        assert results(bench) == [7, 8, 9, 10]
    assert set(files(tmp_path)) == blocked
