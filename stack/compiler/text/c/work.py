"""What computing takes, for languages in which a text tells that to an emulator's clock.

Kinds of work are operations of the floating-point pipe by width ("f64", "f32"), those of the other
pipe ("int"), bytes between the scratchpad and registers ("near"), and accesses to main memory that
are no transfers ("direct").
"""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.ops import ELEMENTWISE

VECTOR_NBYTES = 64
_SLOW = 8
"""A division or root in the time of so many additions; nobody has published it."""
_SLOWER = 40
"""A function that the language computes."""
_OPERATIONS = {
    **dict.fromkeys(("div", "rem", "recip", "sqrt"), _SLOW),
    **dict.fromkeys(("exp", "log", "sin", "cos", "tanh", "erf", "pow", "rsqrt"), _SLOWER),
    "fma": 2,
}
_ROUNDED = 6
"""Operations by which a narrow float is rounded; to become wide takes none."""
_SIGNIFICANT = frozenset({*ELEMENTWISE} - {"bitcast"})


def work(n: Node) -> tuple[str, float]:
    """The kind of work and its amount for an element of an elementwise operation."""
    # The type in which an operation works: comparisons that of their operands.
    dtype = n.srcs[0].dtype if n.dtype is DType.BOOL and n.srcs else n.dtype
    operations = float(_OPERATIONS.get(n.op, 1)) if n.op in _SIGNIFICANT else 0.0
    if n.op == "cast" and (n.dtype.is_narrow or n.srcs[0].dtype.is_narrow):
        operations = _ROUNDED if n.dtype.is_narrow else 0.0
    return priced(dtype, operations, bool(n.shape))


def priced(dtype: DType, operations: float, vector: bool = True) -> tuple[str, float]:
    """Operations of an element type in the units of the clock.

    Peak rates of floats count a fused multiplication and addition as two; in f64 an operation alone
    takes the pipe as long. Whole numbers are computed by vectors, those of scalars one by one.
    """
    if dtype is DType.F64:
        return "f64", operations * 2 if operations == 1 else operations
    if dtype.is_float:
        return "f32", operations
    return "int", operations * (dtype.nbytes / VECTOR_NBYTES if vector else 1)
