"""Type rules: what each graph operation takes and gives.

`infer` is the one judge: constructors call it to make nodes and the verifier to check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack.ir import movement
from stack.ir.claims import CLAIMS, COMPARISONS, FLOAT_UNARY, HALVES, INDEX, KINDS
from stack.ir.error import GraphError
from stack.ir.movement import Attrs, need, need_asked, need_axes, need_axis

Rule = Callable[[Sequence[Type], Attrs, Type | None], Type]


def infer(
    op: str, srcs: Sequence[Type], attrs: Mapping[str, Any], asked: Type | None = None
) -> Type:
    """The type of `op` on operands of these types.

    `asked` is the wanted type where operands do not fix it: shape of reshape and expand, element
    type of cast, bitcast and matmul, all of a leaf. Raises GraphError naming the operation, its
    operands and the broken rule.
    """
    entry = RULES.get(op)
    if entry is None:
        raise GraphError(f"there is no graph operation {op!r}")
    arity, names, rule = entry
    try:
        if len(srcs) != arity >= 0 or attrs.keys() != names:
            _refuse_form(arity, names)
        _check_dtypes(op, srcs)
        return rule(srcs, attrs, asked)
    except GraphError as error:
        inside = [*map(str, srcs), *(f"{k}={v}" for k, v in sorted(attrs.items()))]
        raise GraphError(f"{op}({', '.join(inside)}): {error}") from None


def _refuse_form(arity: int, names: frozenset[str]) -> None:
    attributes = f"attributes {', '.join(sorted(names))}" if names else "no attributes"
    raise GraphError(f"needs {arity if arity >= 0 else 'any number of'} operands and {attributes}")


def _check_dtypes(op: str, srcs: Sequence[Type]) -> None:
    data = _DATA.get(op, slice(None))
    dtypes = {s.dtype for s in srcs[data]}
    if len(dtypes) > 1:
        raise GraphError("operands have different element types; cast them first")
    if not dtypes <= CLAIMS[op]:
        known = ", ".join(d.short for d in DType if d in CLAIMS[op])
        raise GraphError(f"takes {known}; cast to one of them")


_DATA = {"where": slice(1, 3), "gather": slice(0, 1), "scatter_add": slice(0, 3, 2)}
"""The operands that share the element type of `CLAIMS`; all of them for operations not named
here."""


def _elementwise(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    first = srcs[0]
    for s in srcs:
        if s.shape != first.shape:
            raise GraphError("operands have different shapes; expand them first")
    return first


def _compare(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    return _elementwise(srcs, attrs, asked).with_dtype(DType.BOOL)


def _where(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    _elementwise(srcs, attrs, asked)
    need(srcs[0].dtype is DType.BOOL, "the condition must be bool")
    return srcs[1]


def _cast(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    return srcs[0].with_dtype(need_asked(asked).dtype)


def _bitcast(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    dtype = need_asked(asked).dtype
    if dtype.bits != srcs[0].dtype.bits or dtype not in CLAIMS["bitcast"]:
        raise GraphError(f"cannot read {srcs[0].dtype.bits} bits as {dtype.short}")
    return srcs[0].with_dtype(dtype)


def _philox(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    return _elementwise(srcs, attrs, asked).with_dtype(DType.U32)


def _leaf(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    return need_asked(asked)


def _const(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    result = need_asked(asked)
    need(result.shape == (), "a constant has no axes; expand it")
    kind = float if result.dtype.is_float else int if result.dtype.is_int else bool
    need(type(attrs["value"]) is kind, f"the value of a {result.dtype.short} is a {kind.__name__}")
    return result


def _arange(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    result = need_asked(asked)
    need(len(result.shape) == 1, "has exactly one axis")
    need(result.dtype in CLAIMS["arange"], "counts in a number type")
    return result


def _kind(attrs: Attrs) -> None:
    need(attrs["kind"] in KINDS, f"kind is one of {', '.join(KINDS)}")


def _reduce(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axes = srcs, attrs["axes"]
    _kind(attrs)
    need(x.dtype is not DType.BOOL or attrs["kind"] in ("min", "max"), "bool has only min and max")
    need_axes(axes, len(x.shape))
    return x.with_shape(1 if i in axes else n for i, n in enumerate(x.shape))


def _arg(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x,), axis = srcs, attrs["axis"]
    need_axis(axis, len(x.shape))
    need(x.shape[axis] > 0, f"axis {axis} has no elements to choose from")
    return Type((*x.shape[:axis], 1, *x.shape[axis + 1 :]), DType.I64)


def _scan(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    _kind(attrs)
    need_axis(attrs["axis"], len(srcs[0].shape))
    return srcs[0]


def _matmul(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    a, b = srcs
    need(
        len(a.shape) == len(b.shape) >= 2,
        "operands need one rank, at least 2; reshape or expand them",
    )
    need(a.shape[:-2] == b.shape[:-2], "batch axes differ; expand them first")
    if a.shape[-1] != b.shape[-2]:
        raise GraphError(f"inner sizes {a.shape[-1]} and {b.shape[-2]} differ")
    dtype = a.dtype if asked is None else asked.dtype
    wider = a.dtype in HALVES and dtype is DType.F32
    need(dtype is a.dtype or wider, f"the result cannot be {dtype.short}; cast it afterwards")
    return Type((*a.shape[:-1], b.shape[-1]), dtype)


def _gather(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    (x, index), axis = srcs, attrs["axis"]
    need_axis(axis, len(x.shape))
    need(index.dtype in INDEX, "the index must be i32 or i64")
    return x.with_shape(x.shape[:axis] + index.shape + x.shape[axis + 1 :])


def _scatter_add(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    base, index, updates = srcs
    expected = _gather((base, index), attrs, asked).shape
    if updates.shape != expected:
        raise GraphError(f"updates need shape {expected}")
    return base


def _all_reduce(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need(attrs["kind"] in (*KINDS, "avg"), f"kind is one of {', '.join(KINDS)}, avg")
    need(type(attrs["group"]) is str and attrs["group"] != "", "the group is a name")
    need(type(attrs["name"]) is str, "what it is called is a text")
    return srcs[0]


RULES: Mapping[str, tuple[int, frozenset[str], Rule]] = {
    "input": (0, frozenset({"slot"}), _leaf),
    "const": (0, frozenset({"value"}), _const),
    "arange": (0, frozenset(), _arange),
    **{op: (1, frozenset(), _elementwise) for op in ("neg", "abs", "not", *FLOAT_UNARY)},
    **{
        op: (2, frozenset(), _elementwise)
        for op in [
            "add",
            "sub",
            "mul",
            "div",
            "floordiv",
            "mod",
            "pow",
            "min",
            "max",
            "and",
            "or",
            "xor",
            "shl",
            "shr",
        ]
    },
    **{op: (2, frozenset(), _compare) for op in COMPARISONS},
    "where": (3, frozenset(), _where),
    "cast": (1, frozenset(), _cast),
    "bitcast": (1, frozenset(), _bitcast),
    "philox": (2, frozenset(), _philox),
    "reshape": (1, frozenset(), movement.reshape),
    "permute": (1, frozenset({"perm"}), movement.permute),
    "expand": (1, frozenset(), movement.expand),
    "slice": (1, frozenset({"start", "stop", "step"}), movement.slice_),
    "flip": (1, frozenset({"axes"}), movement.flip),
    "pad": (1, frozenset({"lo", "hi", "value"}), movement.pad),
    "window": (1, frozenset({"axis", "size", "stride", "dilation"}), movement.window),
    "overlap_add": (1, frozenset({"axis", "length", "stride", "dilation"}), movement.overlap_add),
    "concat": (-1, frozenset({"axis"}), movement.concat),
    "contiguous": (1, frozenset(), movement.same),
    "reduce": (1, frozenset({"kind", "axes"}), _reduce),
    "argmax": (1, frozenset({"axis"}), _arg),
    "argmin": (1, frozenset({"axis"}), _arg),
    "scan": (1, frozenset({"kind", "axis"}), _scan),
    "matmul": (2, frozenset(), _matmul),
    "gather": (2, frozenset({"axis"}), _gather),
    "scatter_add": (3, frozenset({"axis"}), _scatter_add),
    "all_reduce": (1, frozenset({"kind", "group", "name"}), _all_reduce),
}
"""For each operation: the number of operands (-1: any), the names of its attributes, its rule."""
