"""Random graphs of many operations, for laws that hold of every graph."""

import numpy as np
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.ops import OPS

SHAPES = ((), (1,), (3,), (2, 3), (1, 3), (3, 2), (2, 1, 3), (0, 2))
NUMBERS = (0, 1, -1, 2, -0.0, 0.5)


def whole(value, dtype):
    """The value as one of the element type."""
    return int(abs(value)) if dtype.kind != "f" else value


@st.composite
def graphs(draw, steps=12):
    """(outputs, input arrays): f32 and i32 values grown by random steps; all values stay small."""
    inputs = {}
    for slot, (dtype, shape) in enumerate(
        draw(
            st.lists(
                st.tuples(st.sampled_from((DType.F32, DType.I32)), st.sampled_from(SHAPES)),
                min_size=1,
                max_size=3,
            )
        )
    ):
        rng = np.random.default_rng(draw(st.integers(0, 999)))
        values = rng.choice(np.array([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]), shape)
        inputs[g.input(slot, Type(shape, dtype))] = np.asarray(values).astype(NUMPY[dtype])
    nodes = list(inputs)
    for _ in range(draw(st.integers(1, steps))):
        x = draw(st.sampled_from(nodes))
        nodes.append(draw(st.sampled_from(STEPS))(draw, x, nodes))
    return tuple(nodes[len(inputs) :]), inputs


def _constant(draw, x):
    return g.full_like(x, whole(draw(st.sampled_from(NUMBERS)), x.dtype))


def _peer(draw, x, nodes):
    """A node of x's type: another one, x itself or a constant."""
    peers = [n for n in nodes if n.type == x.type]
    return draw(st.sampled_from([*peers, _constant(draw, x)]))


def _binary(draw, x, nodes):
    op = draw(st.sampled_from(("add", "sub", "mul", "min", "max")))
    pair = [x, _peer(draw, x, nodes)]
    return _bounded(OPS[op](*draw(st.permutations(pair))))


def _bounded(x):
    """Held within +-8, so that every sum and product is exact."""
    low, high = g.full_like(x, -8), g.full_like(x, 8)
    return g.minimum(g.maximum(x, low), high)


def _unary(draw, x, nodes):
    return OPS[draw(st.sampled_from(("neg", "abs")))](x)


def _where(draw, x, nodes):
    a, b = _peer(draw, x, nodes), _peer(draw, x, nodes)
    test = OPS[draw(st.sampled_from(("eq", "ne", "lt", "le")))](x, a)
    return g.where(g.not_(test) if draw(st.booleans()) else test, a, b)


def _cast(draw, x, nodes):
    for dtype in draw(st.lists(st.sampled_from(list(DType)), max_size=2)):
        x = g.cast(x, dtype)
    return _bounded(g.cast(x, draw(st.sampled_from((DType.F32, DType.I32)))))


def _reshape(draw, x, nodes):
    return g.reshape(x, (1, *draw(st.permutations(x.shape))))


def _expand(draw, x, nodes):
    return g.expand(x, tuple(draw(st.integers(1, 3)) if n == 1 else n for n in x.shape))


def _permute(draw, x, nodes):
    return g.permute(x, draw(st.permutations(range(len(x.shape)))))


def _flip(draw, x, nodes):
    return g.flip(x, draw(st.sets(st.sampled_from(range(len(x.shape))))) if x.shape else ())


def _slice(draw, x, nodes):
    start = [draw(st.integers(0, n)) for n in x.shape]
    stop = [draw(st.integers(lo, n)) for lo, n in zip(start, x.shape, strict=True)]
    return g.slice(x, start, stop, [draw(st.integers(1, 2)) for _ in x.shape])


def _pad(draw, x, nodes):
    lo, hi = ([draw(st.integers(0, 1)) for _ in x.shape] for _ in range(2))
    return g.pad(x, lo, hi, whole(draw(st.sampled_from(NUMBERS)), x.dtype))


def _concat(draw, x, nodes):
    if not x.shape:
        return x
    return g.concat([x, _peer(draw, x, nodes)], draw(st.integers(0, len(x.shape) - 1)))


def _reduce(draw, x, nodes):
    axes = draw(st.sets(st.sampled_from(range(len(x.shape))))) if x.shape else ()
    kind = draw(st.sampled_from(("sum", "min", "max")))
    return _bounded(g.reduce(kind, x, tuple(axes)))


STEPS = (
    _binary,
    _unary,
    _where,
    _cast,
    _reshape,
    _expand,
    _permute,
    _flip,
    _slice,
    _pad,
    _concat,
    _reduce,
)
