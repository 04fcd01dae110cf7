"""Products by the vendor's library cuBLASLt, where its wheel is: the operator `matmul`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from hal.core.dtypes import DType
from hal.core.errors import Unsupported
from hal.core.values import Operator
from hal.hosted.machine import Part
from hal.hosted.operators import matmuls
from hal_plugin_cuda.context import Context
from hal_plugin_cuda.wheels import libraries, majors

HEADER = Path(__file__).with_name("lt.h")
_TYPES = {DType.F32: 0, DType.F16: 2, DType.BF16: 14}
_SUMS_F32, _SCALES_F32 = 68, 0
"""`CUDA_R_32F`, `CUDA_R_16F`, `CUDA_R_16BF`; `CUBLAS_COMPUTE_32F`, and `CUDA_R_32F` again."""
_ALIGNED = 16
"""Rows begin at multiples of so many bytes, as matrix units want it."""


def operators(driver: int) -> Sequence[Operator]:
    """A product for each element type, of which rows are whole vectors; none where there is no
    library that a driver of this major version takes."""
    return matmuls(_TYPES, _ALIGNED) if _path(driver) else ()


@cache
def _path(driver: int) -> str | None:
    return next(libraries("libcublasLt", majors(driver)), None)


@cache
def _library(driver: int) -> tuple[cffi.FFI, Any]:
    ffi = cffi.FFI()
    ffi.cdef(HEADER.read_text())
    return ffi, ffi.dlopen(_path(driver) or "libcublasLt.so")


class Product:
    """c = a @ b of one size, which the library sees turned: its matrices go along columns. Made
    with its context as the current one. Raises Unsupported where the library does not take it."""

    def __init__(
        self, context: Context, operator: Operator, sizes: Mapping[str, int], driver: int
    ) -> None:
        self.entry, self.params, self.context = operator.name, operator.params, context
        self.ffi, self.native = _library(driver)
        self._made: list[tuple[str, Any]] = []
        self._scales = self.ffi.new("float[2]", [1, 0])
        m, n, k = (sizes[name] for name in "mnk")
        kind = _TYPES[operator.params[0].dtype]
        self._handle = self._new("")
        self._how = self._new("MatmulDesc", _SUMS_F32, _SCALES_F32)
        shapes = ((n, k), (k, m), (n, m))
        self._of = [self._new("MatrixLayout", kind, *shape, shape[0]) for shape in shapes]
        wanted, count = self._new("MatmulPreference"), self.ffi.new("int *")
        self._chosen = self.ffi.new("cublasLtMatmulHeuristicResult_t *")
        given = (self._handle, self._how, *self._of, self._of[2], wanted, 1, self._chosen, count)
        self._check(self.native.cublasLtMatmulAlgoGetHeuristic(*given) or self._chosen.state)

    def start(self, addresses: Sequence[Any], stream: Any) -> str:
        """Put it on a stream; gives what the library says against it."""
        (b, a, c), (left, right, out) = self._of, addresses
        one, zero = self._scales, self._scales + 1
        number = self.native.cublasLtMatmul(
            *(self._handle, self._how, one, right, b, left, a, zero, out, c, out, c),
            *(self.ffi.addressof(self._chosen, "algo"), self.ffi.NULL, 0, stream),
        )
        return self._said(number) if number else ""

    def unload(self) -> None:
        """Give it back."""
        self.context.when_idle(self._end)

    def _end(self) -> None:
        while self._made:
            name, thing = self._made.pop()
            getattr(self.native, name)(thing)

    def _new(self, kind: str, *args: Any) -> Any:
        place = self.ffi.new(f"cublasLt{kind or 'Handle'}_t *")
        self._check(getattr(self.native, f"cublasLt{kind}Create")(place, *args))
        self._made.append((f"cublasLt{kind}Destroy", place[0]))
        return place[0]

    def _check(self, number: int) -> None:
        if number:
            self._end()
            raise Unsupported(f"{self.entry}: {self._said(number)}")

    def _said(self, number: int) -> str:
        text = self.ffi.string(self.native.cublasLtGetStatusString(number)).decode()
        return f"cuBLASLt: {text} ({number})"


class BoundProduct:
    """A product with its arguments."""

    def __init__(self, loaded: Product) -> None:
        self.loaded, self.addresses = loaded, [loaded.ffi.NULL] * 3

    def put(self, index: int, arg: Part | float) -> None:
        """Set a matrix."""
        assert isinstance(arg, Part), "a product takes buffers alone"
        address = arg.memory.native.address + arg.offset
        self.addresses[index] = self.loaded.ffi.cast("void *", address)
