"""Each rule of the verifier has a kernel that breaks it and is told so, with its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from hal.core.dtypes import DType
from hal.core.values import Param, ParamKind
from hal.tile import build
from hal.tile.build import const
from hal.tile.errors import TileError
from hal.tile.kernel import (
    SCRATCHPAD,
    Access,
    Alloc,
    Atomic,
    Carried,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Store,
    Wait,
)
from hal.tile.node import Node, Type, node
from hal.tile.ops import OPS
from hal.tile.verify import verify
from tests.tile.kernels import kernels, variable

F32, I64, I32, BF16, BOOL = DType.F32, DType.I64, DType.I32, DType.BF16, DType.BOOL
X, OUT, BITS = Memory("x", F32), Memory("out", F32), Memory("bits", BOOL)
S = Memory("s", F32, SCRATCHPAD, 8)
PARAMS = (
    Param("x", ParamKind.BUFFER, F32),
    Param("out", ParamKind.BUFFER, F32, reads=False, writes=True),
    Param("bits", ParamKind.BUFFER, BOOL, writes=True),
    Param("n", ParamKind.SCALAR, I64),
)
ZERO, ONE, F, V4 = const(0, I64), const(1, I64), const(1.0, F32), const(1.0, F32, (4,))
I4 = build.arange(4)
R = variable(Type((), F32), 1)


def at(memory: Memory = OUT, strides=(), limits=None, offset: Node = ZERO) -> Access:
    limits = (None,) * len(strides) if limits is None else limits
    return Access(memory, offset, tuple(strides), tuple(limits))


def kernel(*body, params=PARAMS, name: str = "k") -> Kernel:
    return Kernel(name, tuple(params), body)


def value(n: Node) -> Kernel:
    """A kernel whose second statement uses an expression."""
    flat = node("reshape", n.type.with_shape((n.type.size,)), (n,)) if n.shape else n
    as_bool = build.binary("ne", flat, flat) if n.dtype is not BOOL else flat
    return kernel(Alloc(S), Store(at(BITS, (ONE,) * len(as_bool.shape)), as_bool))


def loop(body=(), carried=(), start=ZERO, stop=ONE, step=ONE, index=None) -> For:
    return For(index or variable(Type((), I64), 9), start, stop, step, tuple(carried), tuple(body))


def raw(op: str, type: Type, *srcs: Node, **attrs) -> Kernel:
    return value(node(op, type, srcs, **attrs))


def test_the_base_of_the_bad_kernels_is_good() -> None:
    verify(kernel(Load(R, at(X)), Store(at(), R)))
    verify(value(V4))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
@given(kernels())
def test_generated_kernels_are_good(k: Kernel) -> None:
    verify(k)


SIGNATURE = {
    "'a b' is not a name": kernel(name="a b"),
    "'inf' is not a name": kernel(name="inf"),
    "'2' is not a name": kernel(params=[Param("2", ParamKind.BUFFER, F32)]),
    "two parameters are called x": kernel(params=PARAMS[:1] * 2),
    "scalar n can only be read": kernel(params=[replace(PARAMS[3], writes=True)]),
}
T4 = Type((4,), F32)
EXPRESSIONS = {
    "unknown operation 'sinh'": raw("sinh", T4, V4),
    "neg takes 1 operands, not 2": raw("neg", T4, V4, V4),
    r"neg has the attributes \[\], not \['axis'\]": raw("neg", T4, V4, axis=1),
    r"reduce has the attributes \['axis', 'kind'\], not \['axis'\]": raw(
        "reduce", Type((), F32), V4, axis=0
    ),
    "every dimension of a tile is at least 1": raw("broadcast", Type((0,), F32), F),
    "shl does not take f32": raw("shl", T4, V4, V4),
    "exp does not take i64": raw("exp", I4.type, I4),
    "add does not take bool": raw("add", Type((), BOOL), const(True, BOOL), const(True, BOOL)),
    "operand 1 of type f32; they must be the same": raw("add", T4, V4, F),
    r"neg of type f32\[4\] has operand 0 of type i64\[4\]": raw("neg", T4, I4),
    r"fma of type f32\[4\] has operand 2": raw("fma", T4, V4, V4, F),
    r"lt compares f32\[4\] with i64\[4\]": raw("lt", Type((4,), BOOL), V4, I4),
    r"lt of f32\[4\] gives bool\[4\], not bool": raw("lt", Type((), BOOL), V4, V4),
    r"where's condition is bool; it must be bool\[4\]": raw("where", T4, const(True, BOOL), V4, V4),
    r"where of type f32\[4\] has an operand of type f32;": raw(
        "where", T4, const(True, BOOL, (4,)), V4, F
    ),
    r"cast keeps the shape, but f32\[4\] became i32": raw("cast", Type((), I32), V4),
    "bitcast of f32 to i64; it needs one width": raw("bitcast", Type((4,), I64), V4),
    "bitcast of i8 to bool": raw("bitcast", Type((), BOOL), const(1, DType.I8)),
    "broadcast keeps the element type": raw("broadcast", Type((4,), I32), F),
    r"f32\[4\] does not broadcast to f32\[8\]": raw("broadcast", Type((8,), F32), V4),
    "does not broadcast to f32;": raw("broadcast", Type((), F32), V4),
    "changes the number of elements": raw("reshape", Type((3,), F32), V4),
    r"perm \(0, 1\) is not an order of the 1 axes": raw("transpose", T4, V4, perm=(0, 1)),
    r"transpose of f32\[4,1\] by \(1, 0\) is not f32\[4,1\]": raw(
        "transpose", Type((4, 1), F32), const(1.0, F32, (4, 1)), perm=(1, 0)
    ),
    "reduce has no kind 'mean'": raw("reduce", Type((), F32), V4, kind="mean", axis=0),
    "reduce sum does not take bool": raw(
        "reduce", Type((), BOOL), const(True, BOOL, (4,)), kind="sum", axis=0
    ),
    r"scan along axis 1 of f32\[4\], which has 1 axes": raw("scan", T4, V4, kind="sum", axis=1),
    r"reduce of f32\[4\] along axis 0 gives f32, not f32\[4\]": raw(
        "reduce", T4, V4, kind="sum", axis=0
    ),
    r"scan of f32\[4\] along axis 0 gives f32\[4\], not f32": raw(
        "scan", Type((), F32), V4, kind="max", axis=0
    ),
    "dot needs tiles of two axes": raw("dot", T4, V4, V4, V4),
    r"shapes must be \[M,K\], \[K,N\] and \[M,N\]": raw(
        "dot", Type((2, 4), F32), *(const(0.0, F32, s) for s in ((2, 3), (2, 4), (2, 4)))
    ),
    "dot into f32.2,4. cannot be f32.4,2.": raw(
        "dot", Type((4, 2), F32), *(const(0.0, F32, s) for s in ((2, 3), (3, 4), (2, 4)))
    ),
    "dot of f32 and f32 into bf16: inputs need one type": raw(
        "dot",
        Type((1, 1), BF16),
        const(0.0, F32, (1, 1)),
        const(0.0, F32, (1, 1)),
        const(0.0, BF16, (1, 1)),
    ),
    "arange has one axis": raw("arange", Type((2, 2), I64)),
    "const is a scalar, not f32.4.; broadcast it": raw("const", T4, value=1.0),
    "program_id is an i64 of axis 0 to 2": raw("program_id", Type((), I64), axis=3),
    "num_programs is an i64": raw("num_programs", Type((), I32), axis=0),
    "a constant of f32 holds a float, not 1": raw("const", Type((), F32), value=1),
    "a constant of bool holds a bool, not 1": raw("const", Type((), BOOL), value=1),
    "a constant of i32 holds a int, not True": raw("const", Type((), I32), value=True),
    "300 does not fit u8": raw("const", Type((), DType.U8), value=300),
    "there is no scalar parameter 'm'": raw("scalar", Type((), I64), name="m"),
    "there is no scalar parameter 'x'": raw("scalar", Type((), F32), name="x"),
    "scalar n is i64, not i32": raw("scalar", Type((), I32), name="n"),
    "it uses variable 1 .f32., which no statement has defined": value(build.unary("neg", R)),
}
DEFINE = Load(R, at(X))
USE = Store(at(), R)
STATEMENTS = {
    r"body\[1\] Load: variable 1 is defined twice": kernel(DEFINE, DEFINE),
    "variable 1 is defined twice;": kernel(DEFINE, Gather(variable(Type((4,), F32), 1), X, I4)),
    "it defines .*, which is not a variable": kernel(Load(F, at(X))),
    r"body\[0\] Store: it uses variable 1": kernel(USE, DEFINE),
    r"body\[1\] Store: it uses variable 1 .*carry it out of the loop": kernel(loop([DEFINE]), USE),
    r"body\[1\] Store: it uses variable 9": kernel(loop(), Store(at(offset=loop().index), F)),
    r"body\[0\] If.orelse\[0\] Store: it uses variable 1": kernel(
        If(const(True, BOOL), (DEFINE,), (USE,))
    ),
    "memory y is not declared here": kernel(Store(at(Memory("y", F32)), F)),
    "memory n is not declared here": kernel(Store(at(Memory("n", F32)), F)),
    "memory x is declared as .*, but used as": kernel(Load(R, at(Memory("x", F32, SCRATCHPAD, 4)))),
    r"body\[1\] Store: memory s is not declared": kernel(loop([Alloc(S)]), Store(at(S), F)),
    "memory s is declared twice": kernel(loop([Alloc(S)]), Alloc(S)),
    "memory x is declared twice": kernel(Alloc(replace(S, name="x"))),
    "memory n is declared twice": kernel(Alloc(replace(S, name="n"))),
    "'s-' is not a name": kernel(Alloc(replace(S, name="s-"))),
    "memory s is in space 'global'": kernel(Alloc(replace(S, space="global"))),
    "memory s has size 0": kernel(Alloc(replace(S, size=0))),
    "it reads buffer out, which is declared without `reads`": kernel(Load(R, at(OUT))),
    "it writes buffer x, which is declared without `writes`": kernel(Store(at(X), F)),
    "Atomic: it reads buffer out": kernel(Atomic("add", OUT, ZERO, F)),
    "Gather: it reads buffer out": kernel(Gather(R, OUT, ZERO)),
    "Scatter: it writes buffer x": kernel(Scatter(X, ZERO, F)),
    "Copy: it reads buffer out": kernel(Copy(at(OUT), at(OUT), (), 0), Wait(0)),
    "Copy: it writes buffer x": kernel(Copy(at(X), at(X), (), 0), Wait(0)),
    "0 strides for a tile of 1 axes": kernel(Store(at(), V4)),
    "2 limits for a tile of 1 axes": kernel(Store(at(strides=[ONE], limits=[ONE, ONE]), V4)),
    "the offset is i32; it must be an i64 scalar": kernel(Store(at(offset=const(0, I32)), F)),
    "the stride is i64.4.; it must be an i64 scalar": kernel(Store(at(strides=[I4]), V4)),
    "the limit is f32; it must be an i64 scalar": kernel(Store(at(strides=[ONE], limits=[F]), V4)),
    "the value is i64, but out holds f32; cast it": kernel(Store(at(), ZERO)),
    "the result is i32, but x holds f32": kernel(Load(variable(Type((), I32), 2), at(X))),
    "`other` is f32.4.; it must be a scalar of f32": kernel(
        Load(variable(T4, 2), at(X, [ONE]), V4),
    ),
    "Gather: `other` is i64": kernel(Gather(R, X, ZERO, None, ZERO)),
    "indices are f32; they must be i64 or i32": kernel(Gather(R, X, F)),
    r"indices are i64\[4\] for a tile of shape \[\]": kernel(Gather(R, X, I4)),
    r"the mask is bool; it must be bool\[4\]": kernel(Scatter(OUT, I4, V4, const(True, BOOL))),
    "Scatter: the value is i64.4., but out holds f32": kernel(Scatter(OUT, I4, I4)),
    "there is no atomic 'or'; the kinds are add": kernel(Alloc(S), Atomic("or", S, ZERO, F)),
    "atomics do not take bool": kernel(Atomic("max", BITS, ZERO, const(True, BOOL))),
    "it copies f32 to bool": kernel(Copy(at(BITS), at(X), (), 0), Wait(0)),
    "channel -1 is negative": kernel(Copy(at(), at(X), (), -1), Wait(-1)),
    r"shape \[0\] has a size below 1": kernel(
        Copy(at(strides=[ONE]), at(X, [ONE]), (0,), 0), Wait(0)
    ),
    "Copy: 1 strides for a tile of 0 axes": kernel(Copy(at(strides=[ONE]), at(X), (), 0), Wait(0)),
    "no Wait for the copies of channel 3; add one": kernel(Copy(at(), at(X), (), 3), Wait(0)),
    "the loop's index is i32": kernel(loop(index=variable(Type((), I32), 9))),
    "the loop's start is f32": kernel(loop(start=F)),
    "the loop's stop is i64.4.": kernel(loop(stop=I4)),
    "the loop's step is bool": kernel(loop(step=const(True, BOOL))),
    "the loop's step is 0; it must be positive": kernel(loop(step=ZERO)),
    "a carried value is f32.4. first, f32 inside": kernel(
        loop(carried=[Carried(R, V4, R, variable(Type((), F32), 2))])
    ),
    "variable 1 is defined twice; each": kernel(loop(carried=[Carried(R, F, R, R)])),
    r"body\[0\] For: it uses variable 5": kernel(
        loop(carried=[Carried(R, F, variable(Type((), F32), 5), variable(Type((), F32), 2))])
    ),
    "the condition is i64; it must be a bool scalar": kernel(If(ZERO, ())),
    r"If.then\[0\] For.body\[0\] Store: the value is i64": kernel(
        If(const(True, BOOL), (loop([Store(at(), ZERO)]),))
    ),
}


@pytest.mark.parametrize(("message", "bad"), (SIGNATURE | EXPRESSIONS | STATEMENTS).items())
def test_a_broken_rule_is_told(message: str, bad: Kernel) -> None:
    with pytest.raises(TileError, match=message) as e:
        verify(bad)
    assert str(e.value).startswith(f"kernel {bad.name}, ")


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.arity])
def test_every_operation_refuses_a_wrong_number_of_operands(op) -> None:
    with pytest.raises(TileError, match=f"{op.name} takes {op.arity} operands, not {op.arity + 1}"):
        verify(raw(op.name, T4, *[V4] * (op.arity + 1)))
