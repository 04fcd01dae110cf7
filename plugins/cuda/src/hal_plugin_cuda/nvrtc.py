"""The run-time compiler: CUDA C to machine code for one kind of chip. It needs no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cffi

from hal.core.errors import CompileError, PluginError
from hal.hosted.texts import checked, error_line

_DECLARATIONS = """
typedef struct program *nvrtcProgram;
int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(nvrtcProgram *, const char *text, const char *name, int, void *, void *);
int nvrtcCompileProgram(nvrtcProgram, int count, const char *const *options);
int nvrtcDestroyProgram(nvrtcProgram *);
int nvrtcGetCUBINSize(nvrtcProgram, size_t *);
int nvrtcGetCUBIN(nvrtcProgram, char *);
int nvrtcGetProgramLogSize(nvrtcProgram, size_t *);
int nvrtcGetProgramLog(nvrtcProgram, char *);
const char *nvrtcGetErrorString(int);
"""
_ABSENT = (
    "the run-time compiler NVRTC is not installed, without which no CUDA program can be compiled: "
    "`pip install hal-plugin-cuda[nvrtc]`, or put libnvrtc.so into the loader's path"
)
_OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-w")
"""Contraction is off: a program says itself where it may round once."""
_REPORT = "--ptxas-options=-v"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one thread of a kernel takes: registers, bytes of its stack, and bytes of the stores and
    loads by which registers are spilled. `shared_nbytes` is what a block has of shared memory."""

    registers: int
    stack_nbytes: int
    spill_store_nbytes: int
    spill_load_nbytes: int
    shared_nbytes: int


@dataclass(frozen=True, slots=True)
class Built:
    """Machine code, and what the compiler said."""

    cubin: bytes
    log: str

    def usage(self) -> Usage:
        """By the report that was asked for; of the last kernel, if there are several."""
        return Usage(
            *(
                int((re.findall(pattern, self.log) or ["0"])[-1])
                for pattern in (
                    r"Used (\d+) registers",
                    r"(\d+) bytes stack frame",
                    r"(\d+) bytes spill stores",
                    r"(\d+) bytes spill loads",
                    r"(\d+) bytes smem",
                )
            )
        )


class Compiler:
    """NVRTC, from its wheel or from the loader's path. Raises PluginError when it is not there."""

    def __init__(self) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._library = self._opened()
        numbers = self._ffi.new("int[2]")
        self._library.nvrtcVersion(numbers, numbers + 1)
        self.version = f"{numbers[0]}.{numbers[1]}"
        self._library.nvrtcGetNumSupportedArchs(numbers)
        archs = self._ffi.new("int[]", numbers[0])
        self._library.nvrtcGetSupportedArchs(archs)
        self.archs = tuple(archs)
        """The compute capabilities that it knows, 80 being 8.0."""

    def _opened(self) -> Any:
        # The libraries of the PyPI wheels, the newest first.
        spec = find_spec("nvidia")
        folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
        found = [str(path) for f in folders for path in f.glob("*/lib/libnvrtc.so.*")]
        for name in (
            *sorted(found, key=lambda name: int(name.rpartition(".")[2]), reverse=True),
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.so",
        ):
            try:
                return self._ffi.dlopen(name)
            except OSError:
                continue
        raise PluginError(_ABSENT)

    def build(self, text: str, entry: str, arch: int, report: bool = False) -> Built:
        """Machine code of a text for a compute capability, with the use of registers in its log if
        `report` asks. Raises CompileError with the compiler's words and the line."""
        if arch not in self.archs:
            known = ", ".join(map(str, self.archs))
            raise CompileError(f"NVRTC {self.version} compiles for {known}, and not for {arch}")
        ffi, library = self._ffi, self._library
        program = ffi.new("nvrtcProgram *")
        given = ffi.new("char[]", checked(text).encode())
        self._check(library.nvrtcCreateProgram(program, given, b"hal.cu", 0, ffi.NULL, ffi.NULL))
        try:
            options = [f"--gpu-architecture=sm_{arch}", *_OPTIONS, *[_REPORT] * report]
            words = [ffi.new("char[]", option.encode()) for option in options]
            state = library.nvrtcCompileProgram(program[0], len(words), ffi.new("char *[]", words))
            log = self._bytes(program[0], "ProgramLog").decode(errors="replace").strip("\0\n")
            if state:
                said = log or ffi.string(library.nvrtcGetErrorString(state)).decode()
                # The line of the first error: `hal.cu(LINE): error`.
                count = len(text.splitlines())
                found = [int(n) for n in re.findall(r"\((\d+)\): error", log)]
                line = next((n for n in found if n <= count), 0) or error_line(log, count)
                raise CompileError(f"{entry} does not build:\n{said}", said, line)
            return Built(self._bytes(program[0], "CUBIN"), log)
        finally:
            library.nvrtcDestroyProgram(program)

    def _bytes(self, program: Any, what: str) -> bytes:
        size = self._ffi.new("size_t *")
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, size))
        content = self._ffi.new("char[]", max(size[0], 1))
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, content))
        return bytes(self._ffi.buffer(content, size[0]))

    def _check(self, state: int) -> None:
        if state:
            said = self._ffi.string(self._library.nvrtcGetErrorString(state)).decode()
            raise CompileError(f"NVRTC {self.version}: {said}", said)


@cache
def compiler() -> Compiler:
    """The compiler of this process. Raises PluginError when there is none."""
    return Compiler()
