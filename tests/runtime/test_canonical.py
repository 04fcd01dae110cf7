import math

import pytest

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime.canonical import renumbered, structure

F = Type((2, 3), DType.F32)


def leaf(slot, type=F):
    return build.input(slot, type)


def request(a, b, updates=()):
    return GraphRequest((build.add(build.mul(a, b), b),), (a, b), updates)


def test_the_slots_of_inputs_do_not_matter():
    assert structure(request(leaf(0), leaf(1))) == structure(request(leaf(7), leaf(3)))


def test_everything_else_matters():
    a, b = leaf(0), leaf(1)
    wide = [leaf(i, Type((2, 4), DType.F32)) for i in (0, 1)]
    half = [leaf(i, Type((2, 3), DType.F16)) for i in (0, 1)]
    requests = [
        request(a, b),
        request(*wide),
        request(*half),
        request(a, b, ((0, 0),)),
        request(a, b, ((0, 1),)),
        GraphRequest((build.add(a, b),), (a, b)),
        GraphRequest((build.add(a, b),), (b, a)),
        GraphRequest((build.add(a, b),), (a, b, leaf(2))),
        GraphRequest((build.add(a, b), a), (a, b)),
        GraphRequest((a, build.add(a, b)), (a, b)),
        GraphRequest((build.add(a, a),), (a, b)),
        GraphRequest((build.mul(a, a),), (a, b)),
        GraphRequest((build.reduce("sum", a, (0,)),), (a,)),
        GraphRequest((build.reduce("sum", a, (1,)),), (a,)),
        GraphRequest((build.reduce("max", a, (1,)),), (a,)),
    ]
    keys = [structure(r) for r in requests]
    assert len(set(keys)) == len(keys)


def test_constants_are_told_apart_by_their_bits_and_nan_is_itself():
    def constant(value):
        return structure(GraphRequest((build.const(value, DType.F32),), ()))

    assert constant(0.0) != constant(-0.0)
    assert constant(math.nan) == constant(float("nan"))
    assert constant(1.0) != constant(2.0)


def test_an_unlisted_input_is_refused():
    a, b = leaf(0), leaf(1)
    with pytest.raises(InvalidCall, match="not among the request's inputs"):
        structure(GraphRequest((build.add(a, b),), (a,)))


def test_renumbering_keeps_the_structure_and_gives_equal_nodes():
    first = renumbered(request(leaf(9), leaf(4)))
    second = renumbered(request(leaf(1), leaf(0)))
    assert first == second
    assert structure(first) == structure(request(leaf(9), leaf(4)))
    assert [n["slot"] for n in first.inputs] == [0, 1]
