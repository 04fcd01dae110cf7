"""Programs, run by the interpreter, give what numpy gives."""

import random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.values import CollectiveKind as Kind
from hal.core.values import ReduceKind
from stack.comm.plan.check import check
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import build
from stack.comm.plan.interpret import interpret
from stack.comm.plan.program import (
    EXCHANGING,
    GATHERING,
    REDUCING,
    SCATTERING,
    ChunkPlace,
    PointKind,
    extent_count,
    extents,
)
from tests.comm.plan.requests import CASES, ROOTED, layouts

DTYPES = [np.dtype(t) for t in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u1", "?")]
DTYPES.append(np.dtype(ml_dtypes.bfloat16))
NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
FOLD = {
    ReduceKind.SUM: np.add,
    ReduceKind.AVG: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
}


@st.composite
def calls(draw):
    """(algorithm, request, lengths, dtype, reduce, seed)"""
    kind, name = draw(st.sampled_from(CASES))
    size = draw(st.integers(1, 7))
    root = draw(st.integers(0, size - 1)) if kind in ROOTED else 0
    target = draw(st.integers(0, size - 1).filter(lambda r: size == 1 or r != root))
    dtype, reduce = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(ReduceKind))
    if dtype.kind == "b" and reduce is ReduceKind.AVG:
        reduce = ReduceKind.MAX
    wide = kind in REDUCING and (dtype in NARROW or draw(st.booleans()))
    flat = [()] if name != "hierarchical" else []
    where = draw(st.sampled_from([*layouts(size), *flat]))
    cut = draw(st.integers(1, 3))
    request = Request(kind, size, root, target, draw(st.booleans()), wide, cut, where)
    count = extent_count(kind, size)
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 5, 17]), min_size=count, max_size=count))
    return name, request, lengths, dtype, reduce, draw(st.integers(0, 999))


def values(rng, dtype, count):
    """Small whole numbers, whose sums and products are exact in any order; bools."""
    low = 0 if dtype.kind in "ub" else -2
    return rng.integers(low, 2 if dtype.kind == "b" else 3, count).astype(dtype)


def added(parts, dtype, reduce):
    """The reduction in rank order; two-byte floats in float32."""
    wide = np.dtype(np.float32) if dtype in NARROW else dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = FOLD[reduce](total, part.astype(wide))
    if reduce is ReduceKind.AVG:
        exact = total / len(parts)
        total = np.trunc(exact) if dtype.kind in "iu" else total / wide.type(len(parts))
    return total.astype(dtype)


def truth(request, by_extent, dtype, reduce):
    """What each extent is in the end; `by_extent[e]` lists what the ranks gave for it."""
    if request.kind in REDUCING:
        return [added(parts, dtype, reduce) for parts in by_extent]
    return [parts[0] for parts in by_extent]


@settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(calls())
def test_any_call_gives_what_numpy_gives(call):
    name, request, lengths, dtype, reduce, seed = call
    program, rng = build(name, request), np.random.default_rng(seed)
    check(program)
    given_extents = [extents(program, r, ChunkPlace.INPUT) for r in range(request.size)]
    parts = [[values(rng, dtype, lengths[e]) for e in these] for these in given_extents]
    inputs = [np.concatenate([*p, np.zeros(0, dtype)]).astype(dtype) for p in parts]
    kept = [i.copy() for i in inputs]
    outputs = interpret(program, inputs, lengths, reduce, random.Random(seed))

    by_extent = [[] for _ in lengths]
    for these, mine in zip(given_extents, parts, strict=True):
        for extent, part in zip(these, mine, strict=True):
            by_extent[extent].append(part)
    wanted = truth(request, by_extent, dtype, reduce)
    for rank, output in enumerate(outputs):
        mine = [wanted[e] for e in extents(program, rank, ChunkPlace.OUTPUT)]
        want = np.concatenate([*mine, np.zeros(0, dtype)]).astype(dtype)
        assert output.tobytes() == want.tobytes(), rank
    assert all(map(np.array_equal, inputs, kept))


def test_the_extents_are_those_of_the_contract():
    """What a rank takes and gives, as `CollectiveKind` has it, for n ranks and 1 element each."""
    n, root = 3, 1
    takes_all, gives_all = (*SCATTERING, *EXCHANGING), (*GATHERING, *EXCHANGING)
    for kind in (*Kind, PointKind.SEND_RECV):
        program = build("direct", Request(kind, n, root, 2)) if kind is not Kind.BARRIER else None
        for rank in range(n) if program else ():
            takes, gives = (
                len(extents(program, rank, p)) for p in (ChunkPlace.INPUT, ChunkPlace.OUTPUT)
            )
            unused = kind in (Kind.BROADCAST, Kind.SCATTER, PointKind.SEND_RECV) and rank != root
            assert takes == (0 if unused else n if kind in takes_all else 1), kind
            unused = kind in (Kind.REDUCE, Kind.GATHER) and rank != root
            unused |= kind is PointKind.SEND_RECV and rank != 2
            assert gives == (0 if unused else n if kind in gives_all else 1), kind


@pytest.mark.parametrize("name", ["ring", "recursive-doubling", "double-tree", "rank-order"])
def test_the_order_in_which_steps_run_does_not_change_a_bit(name):
    """Sums of numbers that differ in size, whose bits depend on association."""
    rng = np.random.default_rng(1)
    inputs = [
        (rng.standard_normal(40) * 10.0 ** rng.integers(-6, 6, 40)).astype("f4") for _ in "12345"
    ]
    program = build(name, Request(Kind.ALL_REDUCE, 5))
    results = {
        output.tobytes()
        for seed in range(8)
        for output in interpret(program, inputs, (40,), chance=random.Random(seed))
    }
    assert len(results) == 1


def test_rank_order_adds_in_rank_order():
    rng = np.random.default_rng(2)
    inputs = [
        (rng.standard_normal(33) * 10.0 ** rng.integers(-6, 6, 33)).astype("f4") for _ in "1234"
    ]
    for in_place in (False, True):
        program = build("rank-order", Request(Kind.ALL_REDUCE, 4, in_place=in_place))
        want = ((inputs[0] + inputs[1]) + inputs[2]) + inputs[3]
        for output in interpret(program, inputs, (33,)):
            assert output.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "name", ["ring", "halving-doubling", "double-tree", "direct", "rank-order"]
)
@pytest.mark.parametrize(("dtype", "step"), [("f2", 2.0**-10), (ml_dtypes.bfloat16, 2.0**-7)])
def test_narrow_sums_are_rounded_once(name, dtype, step):
    """1 + e/2 + e/2 is 1 + e, where e is the type's step at 1; in the type itself it stays 1."""
    inputs = [np.full(7, x, dtype) for x in (1.0, step / 2, step / 2)]
    program = build(name, Request(Kind.ALL_REDUCE, 3, wide=True))
    for output in interpret(program, inputs, (7,)):
        assert (output == np.full(7, 1 + step, dtype)).all()


def test_averages_of_integers_are_cut_off_and_nan_wins():
    program = build("ring", Request(Kind.ALL_REDUCE, 2))
    inputs = [np.array([-3, 3, -1, 127], np.int8), np.array([0, 0, 0, 1], np.int8)]
    assert interpret(program, inputs, (4,), ReduceKind.AVG)[0].tolist() == [-1, 1, 0, -64]
    floats = [np.array([np.nan, 1.0, np.inf]), np.array([1.0, np.nan, -np.inf])]
    for reduce in (ReduceKind.MIN, ReduceKind.MAX):
        assert np.isnan(interpret(program, floats, (3,), reduce)[1]).tolist() == [True, True, False]
