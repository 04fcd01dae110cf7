"""Builds `hal_plugin_cpu._native` from the C sources in src/hal_plugin_cpu/native."""

from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).parent / "src" / "hal_plugin_cpu" / "native"

# Calls of the runtime take a microsecond. Were the interpreter lock given up for each, another
# busy Python thread would get it every time and keep it for its whole switch interval (5 ms). So
# `lib`'s functions keep it: none of them needs it while it holds a lock of its own, and those that
# block are called through `hal_plugin_cpu.blocking`, whose function pointers do give it up.
KEEP_INTERPRETER_LOCK = """
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }
"""

ffibuilder = FFI()
ffibuilder.cdef((NATIVE / "api.h").read_text())
ffibuilder.set_source(
    "hal_plugin_cpu._native",
    '#include "runtime.h"' + KEEP_INTERPRETER_LOCK,
    sources=sorted(str(path) for path in NATIVE.glob("*.c")),
    include_dirs=[str(NATIVE)],
    depends=sorted(str(path) for path in NATIVE.glob("*.h")),
    extra_compile_args=["-O2", "-std=gnu11", "-pthread", "-Wall", "-fno-math-errno"],
    extra_link_args=["-pthread", "-ldl"],
)
