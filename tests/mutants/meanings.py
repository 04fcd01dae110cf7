"""Generated faults in what the operations of tiles mean: conversions, comparisons, bits, rounding,
shapes, masks and control, each wrong for some types, sizes or values and right for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile import evaluate, interpret, numeric
from tests.mutants.population import Generated, in_module, in_table, interpreter

Wrong = Callable[..., Any]


def _cast(source: str, target: str, change: Callable[[Any, Any], Any]) -> Wrong:
    """Casts between kinds of numpy types ("f", "i", "u") become `change(x, type)`."""

    def wrong(real: Any, n: Any, x: Any) -> Any:
        to = numeric.NUMPY[n.dtype]
        fits = x.dtype.kind in source and to.kind in target and n.dtype is not DType.BOOL
        return change(x, to).astype(to) if fits else real(n, x)

    return wrong


def _on(op: str, change: Callable[..., Any], kinds: str = "fiu") -> Wrong:
    """`change(result, *operands)` for one elementwise operation on operands of some kinds."""

    def wrong(real: Any, name: str, *xs: Any) -> Any:
        got = real(name, *xs)
        if name != op or xs[0].dtype.kind not in kinds:
            return got
        return np.asarray(change(got, *xs)).astype(got.dtype)

    return wrong


def _low(bits: int, op: str) -> Wrong:
    """An operation on 64-bit integers that looks at their low bits alone."""

    def wrong(real: Any, name: str, *xs: Any) -> Any:
        if name == op and xs[0].dtype in (np.int64, np.uint64):
            xs = tuple(x & x.dtype.type((1 << bits) - 1) for x in xs)
        return real(name, *xs)

    return wrong


def _amount_wrapped(op: str) -> Wrong:
    """As most processors shift: by the amount modulo the width."""

    def wrong(real: Any, name: str, *xs: Any) -> Any:
        if name == op:
            xs = (xs[0], xs[1] & xs[1].dtype.type(xs[0].dtype.itemsize * 8 - 1))
        return real(name, *xs)

    return wrong


def _of_shape(least: int, change: Callable[[Any, Any], Any]) -> Wrong:
    """`change(node, x)` for tiles of so many axes and more."""
    return lambda real, n, x: change(n, x) if x.ndim >= least else real(n, x)


def _inverse(n: Any, x: Any) -> Any:
    return x.transpose(np.argsort(n["perm"])).reshape(n.shape)


def _from_the_left(n: Any, x: Any) -> Any:
    """Broadcasts a square's row as its column."""
    if len(n.shape) == 2 and x.ndim == 1 and n.shape[0] == n.shape[1]:
        return np.broadcast_to(x[:, None], n.shape)
    return np.broadcast_to(x, n.shape)


def _where_cut(most: int) -> Wrong:
    def wrong(real: Any, n: Any, c: Any, a: Any, b: Any) -> Any:
        got = np.array(real(n, c, a, b))
        if got.size > most:
            got.reshape(-1)[most:] = np.broadcast_to(a, got.shape).reshape(-1)[most:]
        return got

    return wrong


def _scan_from_end(real: Any, n: Any, x: Any) -> Any:
    return np.flip(real(n, np.flip(x, n["axis"])), n["axis"]) if x.ndim > 1 else real(n, x)


def _other_lost(
    real: Any, s: Any, result: Any, memory: Any, at: Any, valid: Any, other: Any
) -> Any:
    """What stands for elements that are not valid is zero, whatever the program says."""
    return real(s, result, memory, at, valid, None)


def _first_mask(most: int) -> Wrong:
    """Masks are looked at for so many elements; the rest follow the last of these."""

    def wrong(real: Any, s: Any, mask: Any, shape: Any) -> Any:
        got = np.array(real(s, mask, shape))
        if got.size > most:
            got.reshape(-1)[most:] &= got.reshape(-1)[most - 1]
        return got

    return wrong


def _limit_of_first_axis(real: Any, s: Any, access: Any, shape: Any) -> Any:
    """The limits of all axes but the first are ignored where the memory goes on behind them."""
    indices, valid = real(s, access, shape)
    if len(shape) < 2:
        return indices, valid
    limit = access.limits[0]
    rows = np.indices(shape)[0] < (shape[0] if limit is None else evaluate.value_of(s, limit))
    size = s.memories[access.memory.name].size
    return indices, rows & (indices >= 0) & (indices < size)


def _from_zero(real: Any, s: Any, x: Any) -> Any:
    """Loops begin at 0."""
    before, s.values[x.start] = evaluate.value_of(s, x.start), np.zeros((), np.int64)
    try:
        return real(s, x)
    finally:
        s.values[x.start] = before


def _step_of_one(real: Any, s: Any, x: Any) -> Any:
    before, s.values[x.step] = evaluate.value_of(s, x.step), np.ones((), np.int64)
    try:
        return real(s, x)
    finally:
        s.values[x.step] = before


def _no_else(real: Any, s: Any, x: Any) -> Any:
    if evaluate.value_of(s, x.condition):
        real(s, x)


def _wait_for_last(real: Any, s: Any, x: Any) -> Any:
    """Of several copies on a channel only the last one has come."""
    s.pending[x.channel] = s.pending.get(x.channel, [])[-1:]
    real(s, x)


def _in_f32(x: Any, to: Any) -> Any:
    return x.astype(np.float32)


def _unsaturated(x: Any, to: Any) -> Any:
    return np.trunc(np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)).astype(np.int64)


def _floored(x: Any, to: Any) -> Any:
    info = np.iinfo(to)
    wide = np.nan_to_num(x.astype(np.float64), posinf=np.inf, neginf=-np.inf)
    return np.clip(np.floor(wide), float(info.min), float(info.max) // 2)


_CASTS: dict[tuple[str, str], Wrong] = {
    ("sign", "floats to integers rounded down"): _cast("f", "i", _floored),
    ("wrapped", "floats past an integer's end"): _cast("f", "iu", _unsaturated),
    ("narrow", "64-bit integers by way of f32"): _cast("iu", "f", _in_f32),
}
_ELEMENTWISE: dict[tuple[str, str, str], tuple[Wrong, str]] = {
    ("eq", "narrow", "64 bits by 32"): (_low(32, "eq"), ".integer-compare"),
    ("ne", "narrow", "64 bits by 32"): (_low(32, "ne"), ".integer-compare"),
    ("and", "narrow", "64 bits by 32"): (_low(32, "and"), ".integer-bits"),
    ("or", "narrow", "64 bits by 32"): (_low(32, "or"), ".integer-bits"),
    ("xor", "narrow", "64 bits by 48"): (_low(48, "xor"), ".integer-bits"),
    ("mul", "narrow", "64 bits by 32"): (_low(32, "mul"), ".integer-wrap"),
    ("sub", "narrow", "64 bits by 48"): (_low(48, "sub"), ".integer-wrap"),
    ("shl", "wrapped", "amounts past the width"): (_amount_wrapped("shl"), ".integer-shift"),
    ("shr", "wrapped", "amounts past the width"): (_amount_wrapped("shr"), ".integer-shift"),
    ("eq", "range", "NaN equal to itself"): (
        _on("eq", lambda got, a, b: got | ((a != a) & (b != b)), "f"),
        ".float-compare",
    ),
    ("le", "range", "NaN below all"): (
        _on("le", lambda got, a, b: got | (a != a), "f"),
        ".float-compare",
    ),
    ("min", "range", "NaN forgotten"): (
        _on("min", lambda got, a, b: np.fmin(a, b), "f"),
        ".float-minimum",
    ),
    ("max", "range", "NaN forgotten"): (
        _on("max", lambda got, a, b: np.fmax(a, b), "f"),
        ".float-minimum",
    ),
    ("neg", "sign", "of zero"): (_on("neg", lambda got, x: 0 - x, "f"), ".signed-zero"),
    ("abs", "sign", "of zero"): (
        _on("abs", lambda got, x: np.where(x == 0, x, got), "f"),
        ".signed-zero",
    ),
    ("round", "range", "halves away from zero"): (
        _on("round", lambda got, x: np.trunc(x + np.copysign(0.5, x)), "f"),
        ".float-rounding",
    ),
    ("floor", "sign", "towards zero"): (
        _on("floor", lambda got, x: np.trunc(x), "f"),
        ".float-rounding",
    ),
    ("ceil", "sign", "towards zero"): (
        _on("ceil", lambda got, x: np.trunc(x), "f"),
        ".float-rounding",
    ),
    ("rem", "sign", "of the divisor"): (
        _on(
            "rem", lambda got, a, b: np.where((b != 0) & np.isfinite(a * b), np.mod(a, b), got), "f"
        ),
        ".float-remainder",
    ),
    ("fma", "narrow", "rounded twice"): (
        _on("fma", lambda got, a, b, c: a * b + c, "f"),
        ".math-f32-fma",
    ),
}
_SHAPES: dict[tuple[str, str, str], tuple[Wrong, str]] = {
    ("transpose", "reordered", "of cubes by the inverse"): (_of_shape(3, _inverse), ".shape"),
    ("reshape", "reordered", "of cubes by columns"): (
        _of_shape(3, lambda n, x: x.reshape(n.shape, order="F")),
        ".shape",
    ),
    ("broadcast", "reordered", "of squares from the left"): (
        _of_shape(1, _from_the_left),
        ".shape",
    ),
    ("where", "dropped", "beyond 64"): (_where_cut(64), ".mask"),
    ("where", "dropped", "beyond 256"): (_where_cut(256), ".mask"),
    ("scan", "reordered", "of matrices from the end"): (_scan_from_end, ".scan"),
}
_STATEMENTS: dict[tuple[str, str, str], tuple[Any, Wrong, str]] = {
    ("load", "ignored", "other"): ("_fetch", _other_lost, ".other"),
    ("mask", "dropped", "beyond 8"): ("_mask", _first_mask(8), ".mask"),
    ("mask", "dropped", "beyond 32"): ("_mask", _first_mask(32), ".mask"),
    ("limits", "ignored", "of inner axes"): ("_block", _limit_of_first_axis, ".strided"),
    ("loop", "ignored", "start"): (interpret.For, _from_zero, ".loop"),
    ("loop", "ignored", "step"): (interpret.For, _step_of_one, ".loop"),
    ("branch", "ignored", "else"): (interpret.If, _no_else, ".branch"),
    ("wait", "dropped", "all copies but the last"): (interpret.Wait, _wait_for_last, ".scratch"),
}


def meanings() -> Iterator[Generated]:
    """Every fault of this file."""

    def one(kind: str, place: str, size: str, case: str, world: Any) -> Generated:
        words = tuple(dict.fromkeys((place, case.strip(".").split("-")[0])))
        return Generated(kind, place, size, "reference", (case,), words, interpreter, world)

    for (kind, size), wrong in _CASTS.items():
        yield one(kind, "cast", size, ".cast", in_table(evaluate, "_STRUCTURAL", "cast", wrong))
    for (place, kind, size), (wrong, case) in _ELEMENTWISE.items():
        yield one(kind, place, size, case, in_module(evaluate, "elementwise", wrong))
    for (place, kind, size), (wrong, case) in _SHAPES.items():
        yield one(kind, place, size, case, in_table(evaluate, "_STRUCTURAL", place, wrong))
    for (place, kind, size), (where, wrong, case) in _STATEMENTS.items():
        named = isinstance(where, str)
        world = (
            in_module(interpret, where, wrong)
            if named
            else in_table(interpret, "_RUN", where, wrong)
        )
        yield one(kind, place, size, case, world)
