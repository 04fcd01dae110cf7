"""Builds `stack.comm.engine._native` from the C sources in stack/comm/engine/native."""

from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).parent / "stack" / "comm" / "engine" / "native"

ffibuilder = FFI()
ffibuilder.cdef((NATIVE / "api.h").read_text())
ffibuilder.set_source(
    "stack.comm.engine._native",
    '#include "engine.h"',
    sources=sorted(str(path) for path in NATIVE.glob("*.c")),
    include_dirs=[str(NATIVE)],
    depends=sorted(str(path) for path in NATIVE.glob("*.h")),
    extra_compile_args=["-O2", "-std=gnu11", "-pthread", "-Wall", "-fno-math-errno"],
    extra_link_args=["-pthread"],
)
