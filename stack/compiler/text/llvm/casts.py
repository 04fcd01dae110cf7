"""Conversions between element types, in registers and on the way from and to memory.

Each function works on scalars (width 1) and vectors alike.
"""

from __future__ import annotations

from hal.core.dtypes import DType
from stack.compiler.text.llvm.types import (
    NARROW,
    SIGNED,
    memory,
    register,
    splat_constant,
    suffix,
    vector,
)
from stack.compiler.text.llvm.writer import Writer


def convert(out: Writer, value: str, src: DType, dst: DType, width: int) -> str:
    """`cast` of a register value."""
    a, b = vector(register(src), width), vector(register(dst), width)
    if dst is DType.BOOL:
        return _to_bool(out, value, src, a)
    if src.is_float:
        if dst.is_float:
            return round_to(out, _between_floats(out, value, a, b), dst, width)
        return _saturated(out, value, src, dst, width)
    if dst.is_float:
        how = "sitofp" if src in SIGNED else "uitofp"
        return round_to(out, out.put(f"{how} {a} {value} to {b}"), dst, width)
    if a == b:
        return value
    how = "trunc" if dst.bits < src.bits else "sext" if src in SIGNED else "zext"
    return out.put(f"{how} {a} {value} to {b}")


def _to_bool(out: Writer, value: str, src: DType, kind: str) -> str:
    if src is DType.BOOL:
        return value
    how = "fcmp une" if src.is_float else "icmp ne"
    return out.put(f"{how} {kind} {value}, zeroinitializer")


def _between_floats(out: Writer, value: str, a: str, b: str) -> str:
    if a == b:
        return value
    how = "fpext" if "float" in a else "fptrunc"
    return out.put(f"{how} {a} {value} to {b}")


def _saturated(out: Writer, value: str, src: DType, dst: DType, width: int) -> str:
    sign = "s" if dst in SIGNED else "u"
    a, b = register(src), register(dst)
    name = f"llvm.fpto{sign}i.sat.{suffix(b, width)}.{suffix(a, width)}"
    return out.call(name, vector(b, width), (vector(a, width), value))


# narrow floats


def round_to(out: Writer, value: str, dtype: DType, width: int) -> str:
    """An f32 value rounded to f16 or bf16, still in f32; other types are left alone."""
    if dtype is DType.BF16:
        return _round_bf16(out, value, width)
    if dtype is DType.F16:
        half, single = vector("half", width), vector("float", width)
        return out.put(f"fpext {half} {_half(out, value, width)} to {single}")
    return value


def _half(out: Writer, value: str, width: int) -> str:
    return out.put(f"fptrunc {vector('float', width)} {value} to {vector('half', width)}")


def _round_bf16(out: Writer, value: str, width: int) -> str:
    """Nearest even by integer addition; a NaN becomes the quiet one."""
    f, i = vector("float", width), vector("i32", width)

    def splat(number: int) -> str:
        return splat_constant("i32", str(number), width)

    bits = out.put(f"bitcast {f} {value} to {i}")
    odd = out.put(f"and {i} {out.put(f'lshr {i} {bits}, {splat(16)}')}, {splat(1)}")
    up = out.put(f"add {i} {out.put(f'add {i} {bits}, {splat(0x7FFF)}')}, {odd}")
    nan = out.put(f"fcmp uno {f} {value}, zeroinitializer")
    quiet = out.put(f"select {vector('i1', width)} {nan}, {i} {splat(0x7FC00000)}, {i} {splat(0)}")
    kept = out.put(f"or {i} {up}, {quiet}")
    cut = out.put(f"and {i} {kept}, {splat(-0x10000)}")
    return out.put(f"bitcast {i} {cut} to {f}")


# memory


def from_memory(out: Writer, value: str, dtype: DType, width: int) -> str:
    """The register value of an element or vector that was loaded."""
    m = vector(memory(dtype), width)
    if dtype is DType.BF16:
        i = vector("i32", width)
        wide = out.put(f"zext {m} {value} to {i}")
        high = out.put(f"shl {i} {wide}, {splat_constant('i32', '16', width)}")
        return out.put(f"bitcast {i} {high} to {vector('float', width)}")
    if dtype is DType.F16:
        return out.put(f"fpext {m} {value} to {vector('float', width)}")
    if dtype is DType.BOOL:
        return out.put(f"icmp ne {m} {value}, zeroinitializer")
    return value


def to_memory(out: Writer, value: str, dtype: DType, width: int) -> str:
    """What to store for a register value."""
    m = vector(memory(dtype), width)
    if dtype is DType.BF16:
        i = vector("i32", width)
        bits = out.put(f"bitcast {vector('float', width)} {value} to {i}")
        high = out.put(f"lshr {i} {bits}, {splat_constant('i32', '16', width)}")
        return out.put(f"trunc {i} {high} to {m}")
    if dtype is DType.F16:
        return _half(out, value, width)
    if dtype is DType.BOOL:
        return out.put(f"zext {vector('i1', width)} {value} to {m}")
    return value


def bits(out: Writer, value: str, src: DType, dst: DType, width: int) -> str:
    """`bitcast` of a register value: through its form in memory."""
    if src not in NARROW and dst not in NARROW:
        a, b = vector(register(src), width), vector(register(dst), width)
        return value if a == b else out.put(f"bitcast {a} {value} to {b}")
    a, b = vector(memory(src), width), vector(memory(dst), width)
    raw = to_memory(out, value, src, width)
    return from_memory(out, raw if a == b else out.put(f"bitcast {a} {raw} to {b}"), dst, width)
