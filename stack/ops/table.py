"""The table of all operators, and how a row of it is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node, Type
from hal.tile.numeric import DTYPES, NUMPY
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, Gradient, NDArray, Operator, OpKind, Reference, Rule
from stack.ops.rules import alike, compared
from stack.ops.sharding import elementwise

FLOATS = frozenset(d for d in DType if d.is_float)
INTS = frozenset(d for d in DType if d.is_int)
NUMBERS = FLOATS | INTS
ALL = frozenset(DType)
INDEX = frozenset({DType.I32, DType.I64})
"""Element types of positions along an axis."""

OPS: dict[str, Operator] = {}
"""Every operator by its name."""


def define(
    name: str,
    kind: OpKind,
    dtypes: frozenset[DType],
    meaning: str,
    arity: int | None,
    rule: Rule,
    reference: Reference | None,
    gradient: Gradient | None = None,
    **more: Any,
) -> Operator:
    """A new row of the table. `more` are further fields of `Operator`."""
    assert name not in OPS, f"there is already an operator {name!r}"
    OPS[name] = Operator(name, kind, dtypes, meaning, arity, rule, reference, gradient, **more)
    return OPS[name]


def unary(
    name: str,
    dtypes: frozenset[DType],
    meaning: str,
    reference: Reference,
    gradient: Gradient | None = None,
    **more: Any,
) -> Operator:
    """An elementwise operator of one operand; without `lower` or `decompose` it is the tile
    operation of its name."""
    return _elementwise(1, alike, name, dtypes, meaning, reference, gradient, more)


def binary(
    name: str,
    dtypes: frozenset[DType],
    meaning: str,
    reference: Reference,
    gradient: Gradient | None = None,
    **more: Any,
) -> Operator:
    """As `unary`, of two operands."""
    return _elementwise(2, alike, name, dtypes, meaning, reference, gradient, more)


def comparison(name: str, dtypes: frozenset[DType], meaning: str, reference: Reference) -> Operator:
    """An elementwise operator of two operands that gives bool."""
    return _elementwise(2, compared, name, dtypes, meaning, reference, None, {})


def _elementwise(
    arity: int,
    rule: Rule,
    name: str,
    dtypes: frozenset[DType],
    meaning: str,
    reference: Reference,
    gradient: Gradient | None,
    more: dict[str, Any],
) -> Operator:
    if "decompose" not in more:
        more.setdefault("lower", same_name)
    more.setdefault("sharding", elementwise())
    kind = OpKind.ELEMENTWISE
    return define(name, kind, dtypes, meaning, arity, rule, reference, gradient, **more)


def same_name(n: Node, xs: tuple[Node, ...]) -> Node:
    """The tile operation of the same name and operands."""
    return tile.unary(n.op, *xs) if len(xs) == 1 else tile.binary(n.op, *xs)


def operator_of(name: str) -> Operator:
    """The operator of that name. Raises GraphError when there is none."""
    found = OPS.get(name)
    if found is None:
        raise GraphError(f"there is no graph operation {name!r}")
    return found


def infer(name: str, srcs: Sequence[Type], attrs: Attrs, asked: Type | None = None) -> Type:
    """`Operator.infer` by the operator's name. Raises GraphError when there is none."""
    return operator_of(name).infer(srcs, attrs, asked)


def make(name: str, srcs: Sequence[Node], asked: Type | None = None, **attrs: Any) -> Node:
    """The result of an operator by its name, type-checked; `asked` as in `Operator.infer`."""
    return operator_of(name)(*srcs, asked=asked, **attrs)


# references


def widened(x: NDArray) -> NDArray:
    """In the type in which theirs is computed."""
    return x.astype(NUMPY[DTYPES[x.dtype].computed_in], copy=False)


def doubled(x: NDArray) -> NDArray:
    """Floats as f64; anything else as it is."""
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def rounded(y: Any, dtype: DType) -> NDArray:
    """A result in its element type; narrow floats are rounded once."""
    with np.errstate(all="ignore"):
        return np.asarray(y).astype(NUMPY[dtype])


def by(function: Callable[..., Any]) -> Reference:
    """A numpy function as a reference; narrow floats are computed in a wider type."""
    return _through(function, widened)


def exactly(function: Callable[..., Any]) -> Reference:
    """A numpy function as a reference; every float is computed in f64, so that the result is nearly
    exact."""
    return _through(function, doubled)


def _through(function: Callable[..., Any], convert: Callable[[NDArray], NDArray]) -> Reference:
    def reference(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
        with np.errstate(all="ignore"):
            return rounded(function(*map(convert, xs)), n.dtype)

    return reference
