"""From CUDA C to kernels that are ready to run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from hal.cache import Cache
from hal.core.errors import CompileError, InvalidCall
from hal.core.values import CUDA_C, KernelSource, Param, ParamKind
from hal.hosted.machine import Part
from hal.hosted.texts import checked, whole_options
from hal.tile.numeric import constant, quiet
from hal_plugin_cuda.context import Context
from hal_plugin_cuda.cubin import parameters
from hal_plugin_cuda.driver import Driver, DriverError
from hal_plugin_cuda.nvrtc import Compiler, compiler

BUILD = "3"
"""Part of every key in the cache; changes when the way of building changes."""
_CELL = 8
"""The bytes that each parameter of a kernel has for itself."""
_THREADS_OF_BLOCK, _GIVEN_SHARED = 0, 8
"""`CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK` and `_MAX_DYNAMIC_SHARED_SIZE_BYTES`."""


def sizes(params: tuple[Param, ...]) -> tuple[int, ...]:
    """The bytes of the kernel's parameters: a buffer is an address and an offset."""
    found: list[int] = []
    for param in params:
        found += [_CELL, _CELL] if param.kind is ParamKind.BUFFER else [param.dtype.nbytes]
    return tuple(found)


def chip(cc: int, known: tuple[int, ...]) -> int:
    """The compute capability to compile for: the newest known one whose code the chip runs. Raises
    CompileError when there is none."""
    fitting = [arch for arch in known if arch // 10 == cc // 10 and arch <= cc]
    if not fitting:
        raise CompileError(
            f"NVRTC as installed compiles for {', '.join(map(str, known))}; this chip is {cc}; "
            "install a newer one: `pip install --upgrade hal-plugin-cuda[nvrtc]`"
        )
    return max(fitting)


@dataclass(eq=False, slots=True)
class Loaded:
    """A kernel that the driver has loaded, to be launched in blocks of `lanes` threads, which are
    given `scratch` bytes of shared memory beside what the program declares."""

    entry: str
    context: Context
    module: Any
    function: Any
    params: tuple[Param, ...]
    lanes: int
    scratch: int

    def unload(self) -> None:
        """Give the module back."""
        self.context.end("cuModuleUnload", self.module)


class Bound:
    """A kernel with its arguments, each in a cell of 8 bytes. `version` grows when one changes."""

    __slots__ = ("_first", "_memory", "cells", "function", "lanes", "loaded", "scratch", "version")

    def __init__(self, loaded: Loaded) -> None:
        ffi = loaded.context.driver.ffi
        counts = [2 if p.kind is ParamKind.BUFFER else 1 for p in loaded.params]
        self._first = [sum(counts[:i]) for i in range(len(counts))]
        self._memory = ffi.new("unsigned char[]", max(_CELL * sum(counts), _CELL))
        self.cells = ffi.new("void *[]", [self._memory + _CELL * i for i in range(sum(counts))])
        self.loaded, self.function = loaded, loaded.function
        self.lanes, self.scratch = loaded.lanes, loaded.scratch
        self.version = 0

    def put(self, index: int, arg: Part | float) -> None:
        """Set the kernel's arguments for a parameter."""
        if isinstance(arg, Part):
            content = arg.memory.handle + arg.offset.to_bytes(_CELL, "little")
        else:
            with quiet():
                content = constant(arg, self.loaded.params[index].dtype).tobytes()
        start = _CELL * self._first[index]
        self.loaded.context.driver.ffi.buffer(self._memory)[start : start + len(content)] = content
        self.version += 1


class Programs:
    """Loads programs, from the cache where they are in it."""

    def __init__(self, driver: Driver, cc: int, cache_dir: str) -> None:
        self._driver, self._cc, self._cache = driver, cc, Cache(cache_dir, "cuda")

    def load(self, source: KernelSource, context: Context) -> Loaded:
        """Build a source, in `cuda-c/1` or `ptx/1`, and check its entry. Raises CompileError,
        InvalidCall, and PluginError when there is no compiler."""
        options = whole_options(source, ("lanes", "scratch"))
        lanes, scratch = options["lanes"] or 1, options["scratch"]
        image = self._compiled(source) if source.format == CUDA_C else _ptx(source)
        driver = self._driver
        try:
            with context:
                text = driver.ffi.new("char[]", image)
                module = driver.made("CUmodule", "cuModuleLoadData", text)
                name = source.entry.encode()
                function = driver.made("CUfunction", "cuModuleGetFunction", module, name)
                most = driver.made("int", "cuFuncGetAttribute", _THREADS_OF_BLOCK, function)
                if scratch:
                    driver.call("cuFuncSetAttribute", function, _GIVEN_SHARED, scratch)
        except DriverError as error:
            raise CompileError(f"{source.entry} does not load: {error}", str(error)) from error
        loaded = Loaded(source.entry, context, module, function, source.params, lanes, scratch)
        if lanes > most:
            loaded.unload()
            raise CompileError(f"{source.entry} needs blocks of {lanes}, and the chip has {most}")
        return loaded

    def _compiled(self, source: KernelSource) -> bytes:
        nvrtc = compiler(self._driver.major)
        arch = chip(self._cc, nvrtc.archs)
        key = repr((BUILD, nvrtc.version, arch, source)).encode(errors="backslashreplace")
        found = self._cache.get(name := hashlib.sha256(key).hexdigest())
        if found is None:
            found = built(nvrtc, source, arch)
            self._cache.put(name, found)
        return found


def built(nvrtc: Compiler, source: KernelSource, arch: int) -> bytes:
    """Machine code of a source in `cuda-c/1`. Raises CompileError; InvalidCall where the entry has
    other parameters than the source says."""
    cubin = nvrtc.build(source.text, source.entry, arch).cubin
    _check(source, parameters(cubin, source.entry))
    return cubin


def _ptx(source: KernelSource) -> bytes:
    """The text as the driver takes it, with its parameters checked."""
    text = checked(source.text)
    head = re.search(rf"\.entry\s+{re.escape(source.entry)}\s*\(([^)]*)\)", text)
    size = re.compile(r"\.param\b[^,]*?\.[usbf](\d+)\b[^,\[]*(?:\[(\d+)\])?")
    found = size.findall(head[1]) if head else ()
    _check(source, tuple(int(b) // 8 * int(n or 1) for b, n in found) if head else None)
    return text.encode()


def _check(source: KernelSource, found: tuple[int, ...] | None) -> None:
    if found is None:
        raise CompileError(f'the program has no kernel {source.entry!r}; is it `extern "C"`?')
    if found != (wanted := sizes(source.params)):
        text = f"its arguments have {found} bytes; by its parameters they must have {wanted}"
        raise InvalidCall(f"{source.entry}: {text}")
