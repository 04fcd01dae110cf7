"""The way of elements from and to memory: bool is a byte there, all else is as in registers.

Each function works on scalars (width 1) and vectors alike.
"""

from __future__ import annotations

from hal.core.dtypes import DType
from stack.compiler.text.llvm.types import memory, vector
from stack.compiler.text.llvm.writer import LlvmWriter


def from_memory(out: LlvmWriter, value: str, dtype: DType, width: int) -> str:
    """The register value of an element or vector that was loaded."""
    if dtype is DType.BOOL:
        return out.put(f"icmp ne {vector(memory(dtype), width)} {value}, zeroinitializer")
    return value


def to_memory(out: LlvmWriter, value: str, dtype: DType, width: int) -> str:
    """What to store for a register value."""
    if dtype is DType.BOOL:
        return out.put(f"zext {vector('i1', width)} {value} to {vector(memory(dtype), width)}")
    return value
