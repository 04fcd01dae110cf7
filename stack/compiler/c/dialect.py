"""What differs between the C languages of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import OPENCL_C


@dataclass(frozen=True, slots=True)
class Dialect:
    """One C language.

    `header` starts every text, `double_header` one that uses f64. `kernel` stands before an entry
    point, `scratch_kernel` before one with scratch memory, whose source has `scratch_options`.
    `registers` are the types in which values are computed (narrow floats in that of f32, bool as 0
    or 1), `words` unsigned integers by bits. `in_global` and `in_scratch` qualify pointers,
    `function` a function beside the kernel, `aligned` a scratch array. `program` and `grid` are
    formats of an axis, `as_type` of a type and a value whose bits it reads, `atomic` by bits of the
    names of add, min, max, xchg and cmpxchg, `vector` of a type and a width, `vector_load` of a
    width and a pointer, `vector_store` of a width, a value and a pointer. `fused` begins a block in
    which a * b + c may be rounded once.
    """

    format: str
    header: str
    double_header: str
    kernel: str
    scratch_kernel: str
    scratch_options: tuple[tuple[str, str], ...]
    registers: Mapping[DType, str]
    words: Mapping[int, str]
    in_global: str
    in_scratch: str
    function: str
    aligned: str
    program: str
    grid: str
    as_type: str
    atomic: Mapping[int, str]
    fused: str
    vector: str
    vector_load: str
    vector_store: str


_REGISTERS = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "float",
    DType.BF16: "float",
    DType.I64: "long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "char",
    DType.U64: "ulong",
    DType.U32: "uint",
    DType.U16: "ushort",
    DType.U8: "uchar",
    DType.BOOL: "uchar",
}

OPENCL = Dialect(
    format=OPENCL_C,
    header="#pragma OPENCL FP_CONTRACT OFF",
    double_header="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
    kernel="__kernel void",
    scratch_kernel="__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void",
    scratch_options=(("lanes", "1"),),
    registers=MappingProxyType(_REGISTERS),
    words=MappingProxyType({8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}),
    in_global="__global",
    in_scratch="__local",
    function="static inline",
    aligned="__attribute__((aligned(64)))",
    program="(long)get_global_id({})",
    grid="(long)get_global_size({})",
    as_type="as_{}({})",
    atomic=MappingProxyType({32: "atomic_{}", 64: "atom_{}"}),
    fused="#pragma OPENCL FP_CONTRACT ON",
    vector="{}{}",
    vector_load="vload{}(0, {})",
    vector_store="vstore{}({}, 0, {})",
)
"""OpenCL C 1.2. An instance is one work-item; with scratch memory, which is local memory, it is a
work-group of one."""
