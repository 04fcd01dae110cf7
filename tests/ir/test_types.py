"""Type rules: what each operation gives, and refusals that name operation, types and rule."""

import re

import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.ops import OPS, infer
from stack.ops.control import LoopBody
from stack.ops.error import GraphError
from stack.ops.operator import OpKind


def t(dtype, *shape):
    return Type(shape, dtype)


F, H, I, B = DType.F32, DType.BF16, DType.I64, DType.BOOL
SHARED = {"kind": "avg", "group": "data", "name": ""}

CALLED = {"group": "data", "name": ""}

W3 = {"axis": 1, "size": 3, "stride": 2, "dilation": 2}
ADDED = {"axis": 1, "stride": 2, "dilation": 2}

GOOD = [
    ("add", [t(F, 2, 3), t(F, 2, 3)], {}, None, t(F, 2, 3)),
    ("lt", [t(F), t(F)], {}, None, t(B)),
    ("where", [t(B, 2), t(H, 2), t(H, 2)], {}, None, t(H, 2)),
    ("cast", [t(F, 2)], {}, t(I, 2), t(I, 2)),
    ("philox", [t(DType.U64, 4), t(DType.U64, 4)], {}, None, t(DType.U32, 4)),
    ("reshape", [t(F, 2, 3)], {}, t(F, 6), t(F, 6)),
    ("reshape", [t(F, 0, 3)], {}, t(F, 5, 0), t(F, 5, 0)),
    ("expand", [t(F, 2, 1)], {}, t(F, 2, 0), t(F, 2, 0)),
    ("permute", [t(F, 2, 3, 4)], {"perm": (2, 0, 1)}, None, t(F, 4, 2, 3)),
    ("slice", [t(F, 9)], {"start": (1,), "stop": (8,), "step": (3,)}, None, t(F, 3)),
    ("slice", [t(F, 9)], {"start": (9,), "stop": (9,), "step": (3,)}, None, t(F, 0)),
    ("pad", [t(F, 2)], {"lo": (1,), "hi": (3,), "value": 0.0}, None, t(F, 6)),
    ("window", [t(F, 2, 9)], W3, None, t(F, 2, 3, 3)),
    ("overlap_add", [t(F, 2, 3, 3)], {**ADDED, "length": 10}, None, t(F, 2, 10)),
    ("concat", [t(F, 2, 1), t(F, 2, 3)], {"axis": 1}, None, t(F, 2, 4)),
    ("reduce", [t(F, 2, 3)], {"kind": "sum", "axes": (0, 1)}, None, t(F, 1, 1)),
    ("reduce", [t(B, 2)], {"kind": "max", "axes": (0,)}, None, t(B, 1)),
    ("argmax", [t(F, 2, 3)], {"axis": 1}, None, t(I, 2, 1)),
    ("matmul", [t(H, 5, 2, 3), t(H, 5, 3, 4)], {}, None, t(H, 5, 2, 4)),
    ("matmul", [t(H, 2, 3), t(H, 3, 4)], {}, t(F), t(F, 2, 4)),
    ("gather", [t(F, 5, 6, 7), t(I, 2, 3)], {"axis": 1, "batch": False}, None, t(F, 5, 2, 3, 7)),
    ("grouped_matmul", [t(H, 9, 3), t(H, 4, 3, 5), t(I, 9)], {}, None, t(H, 9, 5)),
    ("grouped_outer", [t(F, 9, 3), t(F, 9, 5), t(I, 9)], {"groups": 4}, None, t(F, 4, 3, 5)),
    (
        "scatter",
        [t(F, 5, 6), t(I, 2), t(F, 5, 2)],
        {"axis": 1, "batch": False, "kind": "sum"},
        None,
        t(F, 5, 6),
    ),
    ("all_gather", [t(F, 5)], {**CALLED, "size": 3}, None, t(F, 3, 5)),
    ("all_gather", [t(F)], {**CALLED, "size": 3}, None, t(F, 3)),
    ("reduce_scatter", [t(F, 3, 5)], SHARED, None, t(F, 5)),
    ("all_to_all_v", [t(F, 3, 4), t(I, 3)], CALLED, None, t(F, 3, 4)),
    ("send_receive", [t(B, 3)], {**CALLED, "pairs": ((0, 1), (1, 2))}, None, t(B, 3)),
]


@pytest.mark.parametrize(("op", "srcs", "attrs", "asked", "result"), GOOD)
def test_infer(op, srcs, attrs, asked, result):
    assert infer(op, srcs, attrs, asked) == result


BAD = [
    ("add", [t(F, 2), t(F, 3)], {}, None, "add(f32[2], f32[3]): operands have different shapes"),
    ("add", [t(F, 2), t(H, 2)], {}, None, "different element types; cast"),
    ("add", [t(F, 2)], {}, None, "needs 2 operands"),
    ("add", [t(B), t(B)], {}, None, "add(bool, bool): takes"),
    ("exp", [t(I)], {}, None, "takes f64, f32, f16, bf16, f8e4m3fn, f8e5m2; cast"),
    ("nothing", [t(F)], {}, None, "no graph operation 'nothing'"),
    ("neg", [t(F)], {"axis": 0}, None, "no attributes"),
    ("where", [t(F, 2), t(F, 2), t(F, 2)], {}, None, "condition must be bool"),
    ("cast", [t(F)], {}, None, "must be given"),
    ("bitcast", [t(F)], {}, t(DType.F64), "cannot read 32 bits as f64"),
    ("bitcast", [t(DType.U8)], {}, t(B), "cannot read 8 bits as bool"),
    ("reshape", [t(F, 2, 3)], {}, t(F, 5), "6 elements do not fill shape (5,)"),
    ("reshape", [t(F, 2, 3)], {}, t(F, -2, -3), "do not fill"),
    ("expand", [t(F, 2)], {}, t(F, 3), "only axes of size 1 can grow"),
    ("expand", [t(F, 2)], {}, t(F, 1, 2), "another rank"),
    ("permute", [t(F, 2, 3)], {"perm": (0, 0)}, None, "not a permutation of 2 axes"),
    ("slice", [t(F, 3)], {"start": (0,), "stop": (4,), "step": (1,)}, None, "stop <= 3"),
    ("slice", [t(F, 3)], {"start": (0,), "stop": (3,), "step": (0,)}, None, "step > 0"),
    ("flip", [t(F, 3)], {"axes": (1,)}, None, "axis 1 is not one of 1 axes"),
    ("reduce", [t(F, 2, 3)], {"kind": "sum", "axes": (1, 0)}, None, "not sorted"),
    ("reduce", [t(F, 2)], {"kind": "mean", "axes": (0,)}, None, "sum, prod, min, max"),
    ("reduce", [t(B, 2)], {"kind": "sum", "axes": (0,)}, None, "bool has only min and max"),
    ("pad", [t(F, 2)], {"lo": (-1,), "hi": (0,), "value": 0.0}, None, "non-negative"),
    ("window", [t(F, 2, 4)], W3, None, "a window of 5 elements does not fit into an axis of 4"),
    ("window", [t(F, 2, 9)], {**W3, "stride": 0}, None, "must be positive"),
    ("overlap_add", [t(F, 2, 3, 3)], {**ADDED, "length": 11}, None, "has 4 such windows, not 3"),
    ("overlap_add", [t(F, 3)], {**ADDED, "length": 9}, None, "axis 1 is not one of 0 axes"),
    ("concat", [], {"axis": 0}, None, "at least one"),
    ("concat", [t(F, 2, 1), t(F, 3, 1)], {"axis": 1}, None, "differ outside axis 1"),
    ("argmax", [t(F, 0)], {"axis": 0}, None, "no elements to choose"),
    ("matmul", [t(F, 2, 3), t(F, 4, 5)], {}, None, "inner sizes 3 and 4 differ"),
    ("matmul", [t(F, 3), t(F, 3)], {}, None, "at least 2"),
    ("matmul", [t(F, 2, 1, 3), t(F, 1, 3, 5)], {}, None, "batch axes differ"),
    ("matmul", [t(F, 2, 3), t(F, 3, 5)], {}, t(DType.F64), "cannot be f64"),
    ("gather", [t(F, 2), t(F, 2)], {"axis": 0, "batch": False}, None, "index must be i32 or i64"),
    (
        "scatter",
        [t(F, 5), t(I, 2), t(F, 3)],
        {"axis": 0, "batch": False, "kind": "sum"},
        None,
        "updates need shape (2,)",
    ),
    ("all_reduce", [t(F, 5)], SHARED | {"kind": "mean"}, None, "sum, prod, min, max, avg"),
    ("all_reduce", [t(F, 5)], SHARED | {"group": ""}, None, "the group is a name"),
    ("all_reduce", [t(F, 5)], SHARED | {"name": 1}, None, "what it is called is a text"),
    ("reduce_to", [t(F, 5)], SHARED | {"root": 0}, None, "sum, prod, min, max"),
    ("broadcast_from", [t(F, 5)], {**CALLED, "root": -1}, None, "the number of a rank"),
    ("all_gather", [t(F, 5)], {**CALLED, "size": 0}, None, "at least 1"),
    ("reduce_scatter", [t(F)], SHARED, None, "a part for each rank"),
    ("all_to_all", [t(F, 0, 3)], CALLED, None, "a part for each rank"),
    ("all_to_all_v", [t(F, 2, 3), t(I, 3)], CALLED, None, "of each part are i64[2]"),
    ("all_to_all_v", [t(F, 2, 3), t(DType.I32, 2)], CALLED, None, "of each part are i64[2]"),
    ("grouped_matmul", [t(F, 9, 3), t(F, 4, 2, 5), t(I, 9)], {}, None, "inner sizes 3 and 2"),
    ("grouped_matmul", [t(F, 9, 3), t(F, 4, 3, 5), t(I, 8)], {}, None, "need as many groups"),
    (
        "grouped_outer",
        [t(F, 9, 3), t(H, 9, 5), t(I, 9)],
        {"groups": 4},
        None,
        "different element types",
    ),
    ("send_receive", [t(F)], {**CALLED, "pairs": ((0, 1), (0, 2))}, None, "at most one message"),
    ("send_receive", [t(F)], {**CALLED, "pairs": ((0, 1), (2, 1))}, None, "at most one message"),
    ("send_receive", [t(F)], {**CALLED, "pairs": ((0, -1),)}, None, "rank that receives"),
]


@pytest.mark.parametrize(("op", "srcs", "attrs", "asked", "message"), BAD)
def test_refusals_say_what_and_where(op, srcs, attrs, asked, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        infer(op, srcs, attrs, asked)


@pytest.mark.parametrize("dtype", DType, ids=repr)
def test_an_operation_takes_exactly_the_element_types_that_it_claims(dtype):
    for row in OPS.values():
        if row.kind is OpKind.LEAF:
            continue
        srcs, attrs, asked = _fitting(row, dtype)
        if dtype in row.dtypes:
            assert infer(row.name, srcs, attrs, asked).size > 0, row.name
        else:
            with pytest.raises(GraphError, match=rf"^{row.name}\(.*takes"):
                infer(row.name, srcs, attrs, asked)


def _fitting(row, dtype):
    """Operands of an element type, attributes and a type that is asked for, which fit an operator
    but for that."""
    op, index = row.name, t(I, 2)
    srcs = [t(dtype, 2, 2)] * (row.arity or 1)
    if op == "where":
        srcs[0] = t(B, 2, 2)
    if op in ("gather", "scatter", "all_to_all_v"):
        srcs[1] = index
    if op in ("grouped_matmul", "grouped_outer"):
        srcs[2] = index
    if op == "grouped_matmul":
        srcs[1] = t(dtype, 2, 2, 2)
    good = {"perm": (1, 0), "start": (0, 0), "stop": (2, 2), "step": (1, 1), "axis": 0, "value": 0}
    good |= {"size": 2, "stride": 1, "dilation": 1, "length": 3, "parts": 1, "groups": 2}
    good |= {"lo": (0, 0), "hi": (0, 0), "axes": (1,), "kind": "max", "group": "data", "name": ""}
    good |= {"descending": True, "batch": False, "order": 2, "root": 1, "pairs": ((0, 1), (1, 0))}
    step = LoopBody((g.input(0, srcs[0]),), (g.input(0, srcs[0]),))
    good |= {"body": step, "steps": 2, "consts": 0, "carried": 1, "of": dtype.short}
    good |= dict.fromkeys(("reverse", "tested", "kept"), False)
    attrs = {k: good[k] for k in row.attrs}
    same_bits = next(d for d in DType if d.bits == dtype.bits and d is not B)
    return srcs, attrs, t(same_bits if op == "bitcast" else dtype, 2, 2)


def f32(*shape):
    return g.input(0, t(F, *shape))


def test_constructors_that_change_nothing_give_their_operand():
    x = f32(2, 3)
    assert g.cast(x, F) is x
    assert g.bitcast(x, F) is x
    assert g.reshape(x, (2, 3)) is x
    assert g.permute(x, (0, 1)) is x
    assert g.expand(x, (2, 3)) is x
    assert g.slice(x, (0, 0), (2, 3)) is x
    assert g.flip(x, ()) is x
    assert g.pad(x, (0, 0), (0, 0)) is x
    assert g.concat([x], 0) is x
    assert g.reduce("sum", x, ()) is x


def test_negative_axes_count_from_the_end():
    x = f32(2, 3, 4)
    assert g.reduce("sum", x, (-1, 0)) is g.reduce("sum", x, (0, 2))
    assert g.permute(x, (-1, 0, 1)) is g.permute(x, (2, 0, 1))
    assert g.concat([x, x], -1).shape == (2, 3, 8)
    assert g.transpose(x).shape == (2, 4, 3)
    with pytest.raises(GraphError, match="axis -4 is not one of 3 axes"):
        g.flip(x, -4)


def test_broadcast_follows_numpy():
    assert g.broadcast(f32(3, 1), (2, 3, 4)).shape == (2, 3, 4)
    with pytest.raises(GraphError, match="more axes"):
        g.broadcast(f32(3, 1), (3,))


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        (0.1, DType.F32, 0.10000000149011612),
        (1e300, DType.F32, float("inf")),
        (1, DType.BF16, 1.0),
        (257, DType.BF16, 256.0),
        (3.0, DType.I8, 3),
        (2, DType.BOOL, True),
    ],
)
def test_constants_are_rounded_to_their_type(value, dtype, kept):
    found = g.const(value, dtype)["value"]
    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (128, DType.I8),
        (-1, DType.U64),
        (0.5, DType.I32),
        (float("nan"), DType.I32),
        (float("inf"), I),
    ],
)
def test_constants_that_an_integer_type_cannot_hold_are_refused(value, dtype):
    with pytest.raises(GraphError, match=f"is not a value of {dtype.short}"):
        g.const(value, dtype)


def test_zeros_of_both_signs_are_different_constants_and_paddings():
    assert g.const(0.0, F) is not g.const(-0.0, F)
    assert g.pad(f32(2), (1,), (0,), 0.0) is not g.pad(f32(2), (1,), (0,), -0.0)
    assert g.const(float("nan"), F) is g.const(-float("nan"), F)
