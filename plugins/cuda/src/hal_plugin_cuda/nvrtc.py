"""The run-time compiler: CUDA C to machine code for one kind of chip. It needs no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from hal.core.errors import CompileError, PluginError
from hal.hosted.texts import checked, error_line
from hal_plugin_cuda.wheels import libraries, majors

HEADER = Path(__file__).with_name("nvrtc.h")
_ABSENT = (
    "the run-time compiler NVRTC, of a version that a driver for CUDA {} takes, is not installed: "
    "`pip install hal-plugin-cuda[nvrtc]`, or put libnvrtc.so.12 into the loader's path"
)
_OPTIONS = "--std=c++17 --fmad=false --device-as-default-execution-space -w --ptxas-options=-v"
"""Contraction is off: a program says itself where it may round once. The use of registers is in the
log."""
_ALONE, _SPILLS = "--define-macro=GROUPS=1", re.compile(r"[1-9]\d* bytes spill")
"""For a text that leaves it open for how many groups a unit must have room."""


@dataclass(frozen=True, slots=True)
class Built:
    """Machine code, and what the compiler said."""

    cubin: bytes
    log: str


class Compiler:
    """NVRTC, from its wheel or from the loader's path: the newest one whose code a driver of this
    major version loads. Raises PluginError when it is not there."""

    def __init__(self, driver: int) -> None:
        self._ffi = cffi.FFI()
        self._ffi.cdef(HEADER.read_text())
        self._library = self._opened(driver)
        numbers = self._ffi.new("int[2]")
        self._library.nvrtcVersion(numbers, numbers + 1)
        self.version = f"{numbers[0]}.{numbers[1]}"
        self._library.nvrtcGetNumSupportedArchs(numbers)
        archs = self._ffi.new("int[]", numbers[0])
        self._library.nvrtcGetSupportedArchs(archs)
        self.archs = tuple(archs)
        """The compute capabilities that it knows, 80 being 8.0."""

    def _opened(self, driver: int) -> Any:
        for major in majors(driver):
            for found in (*libraries("libnvrtc", (major,)), f"libnvrtc.so.{major}"):
                try:
                    return self._ffi.dlopen(found)
                except OSError:
                    continue
        raise PluginError(_ABSENT.format(driver))

    def build(self, text: str, entry: str, arch: int, more: str = "") -> Built:
        """Machine code of a text for a compute capability, by `more` options, too. A kernel that
        spills registers has those of a unit for one group. Raises CompileError with the compiler's
        words and the line."""
        if arch not in self.archs:
            known = ", ".join(map(str, self.archs))
            raise CompileError(f"NVRTC {self.version} compiles for {known}, and not for {arch}")
        ffi, library = self._ffi, self._library
        program = ffi.new("nvrtcProgram *")
        given = ffi.new("char[]", checked(text).encode())
        self._check(library.nvrtcCreateProgram(program, given, b"hal.cu", 0, ffi.NULL, ffi.NULL))
        try:
            # With the instructions of 9.0 (`wgmma`) that no later chip has
            options = f"--gpu-architecture=sm_{arch}{'a' * (arch == 90)} {_OPTIONS} {more}".split()
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
            if "GROUPS" in text and _SPILLS.search(log) and not more:
                return self.build(text, entry, arch, _ALONE)
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
def compiler(driver: int = 12) -> Compiler:
    """The compiler of this process for a driver's major version. Raises PluginError when there is
    none."""
    return Compiler(driver)
