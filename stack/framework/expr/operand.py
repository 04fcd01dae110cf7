"""How operands meet: broadcasting, promotion, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.dtypes import NAMES, promote
from stack.framework.errors import RangeError, TensorError

Number = float | int | bool
Operand = Node | Number
Dims = int | Sequence[int] | None
F = TypeVar("F", bound=Callable[..., Any])


def text(x: Operand) -> str:
    """An operand in a message: "float32[2,3]", or the number."""
    return f"{NAMES[x.dtype]}{list(x.shape)}" if isinstance(x, Node) else repr(x)


def broadcast_shape(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape by numpy's rules. Raises TensorError when there is none."""
    result: tuple[int, ...] = ()
    for shape in shapes:
        lead = len(shape) - len(result)
        a, b = (1,) * lead + result, (1,) * -lead + shape
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            raise TensorError(f"shapes {list(result)} and {list(shape)} do not broadcast")
        result = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return result


def common_dtype(*operands: Operand) -> DType:
    """The element type in which operands meet."""
    nodes = [(x.dtype, len(x.shape)) for x in operands if isinstance(x, Node)]
    return promote(nodes, [x for x in operands if not isinstance(x, Node)])


def as_node(x: Operand, dtype: DType) -> Node:
    """An operand as a node of that element type."""
    return g.cast(x, dtype) if isinstance(x, Node) else g.const(x, dtype)


def meet(*operands: Operand, dtype: DType | None = None) -> tuple[Node, ...]:
    """The operands with their common shape and element type (or `dtype`)."""
    first = operands[0]
    if isinstance(first, Node) and (dtype is None or dtype is first.dtype):
        # Types that have different hashes are different; to ask whether sizes are equal that are
        # data would be a condition.
        own, known = first.type, hash(first.type)
        same = [
            x for x in operands if isinstance(x, Node) and hash(x.type) == known and x.type == own
        ]
        if len(same) == len(operands):
            return tuple(same)
    wanted = common_dtype(*operands) if dtype is None else dtype
    nodes = [as_node(x, wanted) for x in operands]
    shape = broadcast_shape(n.shape for n in nodes)
    return tuple(g.broadcast(n, shape) for n in nodes)


def as_float(x: Node) -> Node:
    """x itself when it is a float, else as float32."""
    return x if x.dtype.is_float else g.cast(x, DType.F32)


def axis(dim: int, rank: int) -> int:
    """A non-negative axis. Raises RangeError for one that is not there. A 0-d tensor has an axis 0
    or -1."""
    n = max(rank, 1)
    if not -n <= dim < n:
        raise RangeError(f"dim {dim} is out of range for a tensor of {rank} axes")
    return dim % n


def real_axis(dim: int, x: Node, verb: str) -> int:
    """`axis` of x, for what cannot be done to a 0-d tensor. Raises TensorError that says so."""
    if not x.shape:
        raise TensorError(f"{text(x)} has no axis to {verb}; reshape(1) gives it one")
    return axis(dim, len(x.shape))


def axes(dim: Dims, rank: int) -> tuple[int, ...]:
    """Non-negative axes in order; None and no axes mean all of them. A 0-d tensor has none."""
    if dim is None or dim in ((), []):
        return tuple(range(rank))
    each = [axis(d, rank) for d in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(each)) != len(each):
        raise TensorError(f"dim {dim} names an axis twice")
    return tuple(sorted(each)) if rank else ()


def once(expression: F) -> F:
    """The expression, of which operands that meet in a narrow float are computed in the type that
    it is computed in, and results rounded once to it. Python numbers are then not rounded at all.
    """

    @wraps(expression)
    def wide(*args: Any, **kwargs: Any) -> Any:
        nodes = [a for a in (*args, *kwargs.values()) if isinstance(a, Node)]
        if not any(n.dtype.is_narrow for n in nodes):
            return expression(*args, **kwargs)
        dtype = common_dtype(*nodes)
        found = expression(*map(widened, args), **{k: widened(a) for k, a in kwargs.items()})
        return _narrowed(found, dtype) if dtype.is_narrow else found

    return cast("F", wide)


def once_with_factor(expression: F) -> F:
    """`once` where a Python number is the second operand, as in PyTorch's products and quotients;
    of two tensors the expression is one operation, which rounds once by itself."""
    rounded = once(expression)

    @wraps(expression)
    def chosen(x: Operand, y: Operand, *rest: Any, **named: Any) -> Any:
        alone = isinstance(y, Node) or not isinstance(x, Node)
        return (expression if alone else rounded)(x, y, *rest, **named)

    return cast("F", chosen)


def widened(value: Any) -> Any:
    """A node of narrow floats in the type that these are computed in; anything else itself."""
    return g.cast(value, value.dtype.computed_in) if isinstance(value, Node) else value


def _narrowed(found: Any, dtype: DType) -> Any:
    if isinstance(found, Node):
        return g.cast(found, dtype) if found.dtype is dtype.computed_in else found
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(_narrowed(f, dtype) for f in found))
    return type(found)(_narrowed(f, dtype) for f in found)
