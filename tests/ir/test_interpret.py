"""The interpreter's own promises; what operations mean is tested with their records."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack.ir import build as g
from stack.ir.error import GraphError
from stack.ir.interpret import interpret
from stack.ops import OPS

X = g.input(0, Type((2, 3), DType.F32))
ONES = np.ones((2, 3), np.float32)


def test_outputs_come_in_order_and_shared_nodes_are_computed_once():
    calls = []
    counted = OPS["exp"].reference

    class Counting(dict):
        def __getitem__(self, op):
            calls.append(op)
            return super().__getitem__(op)

    y = g.exp(X)
    total, same = interpret([g.add(y, y), y], {X: ONES}, Counting(OPS))
    np.testing.assert_array_equal(same, counted(y, (ONES,)))
    np.testing.assert_array_equal(total, same + same)
    assert calls.count("exp") == 1


def test_a_graph_of_any_depth_is_interpreted():
    n = X
    for _ in range(5000):
        n = g.neg(n)
    assert (interpret([n], {X: ONES}, OPS)[0] == ONES).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"no array was given for input\(slot=0\)"),
        ({X: ONES.astype(np.float64)}, r"input.*was given an array of float64\[2, 3\]"),
        ({X: ONES[0]}, r"input.*was given an array of float32\[3\]"),
    ],
)
def test_inputs_of_another_type_are_refused(inputs, message):
    with pytest.raises(GraphError, match=message):
        interpret([g.neg(X)], inputs, OPS)
