"""The verifier accepts every constructed graph and names the node and the rule of a broken one."""

import pytest
from hypothesis import given, settings

from hal.core.dtypes import DType
from hal.tile.node import Type, node
from stack import ops as g
from stack.ir.verify import verify
from stack.ops.error import GraphError
from tests.ir.graphs import graphs

X = g.input(0, Type((2, 3), DType.F32))


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_constructed_graphs_are_valid(graph):
    verify(graph[0])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (node("neg", Type((3,), DType.F32), (X,)), r"node %1, neg\(<input>\).* of type f32\[2,3\]"),
        (node("fma", X.type, (X, X, X)), "node %1, fma.*no graph operation 'fma'"),
        (node("add", X.type, (X,)), "node %1, add.*needs 2 operands"),
        (node("reduce", X.type, (X,), kind="sum"), "node %1, reduce.*needs.* axes, kind"),
        (node("matmul", X.type, (X, X)), "node %1, matmul.*inner sizes 3 and 2 differ"),
        (
            node("const", Type((), DType.F32), value=0.1),
            "node %0, const.*0.1 is not a value of f32",
        ),
        (node("const", Type((), DType.F32), value=1), "node %0, const.*of a f32 is a float"),
        (node("const", Type((2,), DType.F32), value=1.0), "node %0, const.*no axes"),
        (
            node("pad", X.type, (X,), lo=(0, 0), hi=(0, 0), value=0),
            "node %1, pad.*0 is not a value",
        ),
        (
            g.neg(node("abs", X.type.with_dtype(DType.I8), (X,))),
            r"node %1, abs.*of type f32\[2,3\]",
        ),
    ],
)
def test_a_broken_node_is_named_with_its_rule(broken, message):
    with pytest.raises(GraphError, match=message):
        verify([broken])


def test_one_slot_has_one_type():
    other = g.input(0, Type((2,), DType.F32))
    with pytest.raises(GraphError, match=r"node %1, input\(slot=0\).*slot 0 is also of type"):
        verify([X, other])
