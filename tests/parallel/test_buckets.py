"""How gradients are put into buckets, and what sharing them leaves in a group of one rank: their
values."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.comm.device.group import DeviceGroup
from stack.framework import nn, optim
from stack.parallel.buckets import buckets, runs, share
from stack.parallel.convert import Line, absent, converted
from stack.parallel.partition import rank_input
from stack.parallel.placement import SUM, WHOLE
from stack.runtime import engine_for
from tests.comm.engine.crew import crews


def part(size, depth):
    """A gradient of so many elements at the end of so long a way."""
    x = g.input(0, Type((size,), DType.F32))
    for _ in range(depth):
        x = g.neg(g.exp(x))
    return x


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=12),
    st.integers(1, 60),
)
def test_buckets_are_neighbours_of_about_a_size_that_come_no_later_than_their_first(drawn, nbytes):
    found = buckets([part(size, depth) for size, depth in drawn], nbytes)
    assert [i for bucket in found for i in bucket] == list(range(len(drawn)))
    for bucket, following in zip(found, [*found[1:], None], strict=True):
        sizes, depths = zip(*(drawn[i] for i in bucket), strict=True)
        assert 4 * sum(sizes[:-1]) < nbytes
        assert max(depths) == depths[0]
        if following is not None:
            assert 4 * sum(sizes) >= nbytes or drawn[following[0]][1] > depths[0]


def test_ranks_that_have_graphs_of_their_own_put_the_same_into_a_sum():
    """What comes late on one rank of a pipeline is 0 on the other ones."""

    def exchanged(at):
        line = Line(3, "stage", rank_input(0), str, at)
        pieces = [part(8, 4) if rank == at else absent(part(8, 0)) for rank in range(3)]
        flat = g.concat(pieces, 0)
        whole = converted(flat, flat.type, SUM, WHOLE, line)
        return [(n.op, n["name"], n.type) for n in toposort([whole]) if n.op == "all_reduce"]

    assert exchanged(0) == exchanged(1) == exchanged(2)


@pytest.fixture
def group():
    """The name of a group of one rank that the first processor is in."""
    with crews(1) as (crew,), ExitStack() as stack:
        engine = engine_for("cpu:0")
        engine.groups["one"] = stack.enter_context(DeviceGroup(crew.groups[0], engine.device))
        stack.callback(engine.groups.pop, "one")
        yield "one"


def model():
    """Parameters of two element types, one of which gets no gradient."""
    ht.manual_seed(3)
    layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 2), nn.Linear(2, 2))
    layers[1].to(ht.float64)
    return layers


def backward(layers):
    """What the last layer reads is longer on its way than the first one's gradient."""
    x = layers[0](ht.ones(2, 3))
    y = layers[1](x.to(ht.float64)).to(ht.float32)
    layers[2](y + ht.ones(2, 7).cos().exp().cos().exp()).sum().backward()


@pytest.mark.parametrize("optimized", ["all", "some", "more", "none"])
def test_gradients_keep_their_values_and_lie_where_the_optimizer_has_them(group, optimized):
    layers, other = model(), nn.Linear(2, 2)
    chosen = {"all": layers, "some": layers[2], "more": nn.Sequential(layers, other)}
    if optimized in chosen:
        optim.SGD(chosen[optimized].parameters(), lr=0.1)
    parameters = list(layers.parameters())
    backward(layers)
    before = [None if p.grad is None else p.grad.numpy() for p in parameters]
    found = runs(parameters)
    for run in found:
        share(run, group, dict(layers.named_parameters()))
        gradients = [None if p.grad is None else p.grad.node for p in run.members]
        if None not in gradients:
            assert run.layout.split(run.layout.join(gradients)) == gradients
    assert sorted(p.serial for r in found for p in r.members) == [p.serial for p in parameters]
    for p, value in zip(parameters, before, strict=True):
        assert (p.grad is None) == (value is None)
        if value is not None:
            np.testing.assert_array_equal(p.grad.numpy(), value)


def test_a_bucket_is_called_by_its_ends_and_its_place_in_the_traced_program(group):
    layers = model()
    called = []

    @ht.jit
    def step():
        backward(layers)
        for run in runs(list(layers.parameters())):
            share(run, group, dict(layers.named_parameters()))
        nodes = [p.grad.node for p in layers.parameters() if p.grad is not None]
        called.extend(n["name"] for n in toposort(nodes) if n.op == "all_reduce")
        return ht.ones(1)

    step()
    assert sorted(called) == [
        "gradients of 0.weight to 0.bias: exchange 0 of 'step'",
        "gradients of 1.weight to 1.bias: exchange 2 of 'step'",
        "gradients of 2.weight to 3.bias, none for 3.weight, 3.bias: exchange 1 of 'step'",
    ]
