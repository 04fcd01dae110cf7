"""Random programs of operations, run by the framework and by PyTorch: element types that are
promoted, shapes that broadcast, values without axes and without elements, NaN and infinities.

`python -m tests.framework.operation_programs COUNT SEED` runs many of them.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import stack.framework as ht

FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("bool", "uint8", "int32", "int64")
SHAPES = ((), (1,), (3,), (0,), (2, 3), (2, 1), (1, 3), (0, 3), (4, 2, 3), (4, 1, 1), (2, 0, 3))
ODD = (float("nan"), float("inf"), -float("inf"), 0.0, 1.0, -1.0)  # which zero is the least is open
STEPS = 6

DECIDED = ("is not a value of", "has no elements", "matmul(u8", "matmul(bool", "matmul(i")
"""Errors where PyTorch has a value: it wraps a number that a type does not have, makes one up for
the median of nothing, and multiplies small integers."""

ROUNDING = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 2e-5,
    torch.float64: 1e-10,
}
"""How far results may be apart, beside their size and that of what was summed."""

Step = Callable[[random.Random, Any, list[Any]], Callable[[Any, list[Any]], Any]]
"""Draws a step for PyTorch's values, and gives it as a function of (library, values)."""


def _axis(rng: random.Random, x: Any) -> int:
    return rng.randrange(-x.ndim, x.ndim) if x.ndim else rng.choice((0, -1))


def _number(rng: random.Random) -> Any:
    return rng.choice((2, -3, 0, 0.5, -1.25, True, 7, 1e-3, float("inf")))


def _named(name: str) -> Step:
    def draw(rng: random.Random, lib: Any, values: list[Any]) -> Any:
        i = rng.randrange(len(values))
        return lambda lib, v: getattr(lib, name)(v[i])

    return draw


def _pair(name: str) -> Step:
    def draw(rng: random.Random, lib: Any, values: list[Any]) -> Any:
        i, j = rng.randrange(len(values)), rng.randrange(len(values))
        other = _number(rng) if rng.random() < 0.3 else None
        return lambda lib, v: getattr(lib, name)(v[i], v[j] if other is None else other)

    return draw


def _symbol(symbol: str) -> Step:
    run = eval(f"lambda x, y: x {symbol} y")

    def draw(rng: random.Random, lib: Any, values: list[Any]) -> Any:
        i, j = rng.randrange(len(values)), rng.randrange(len(values))
        other, turned = _number(rng), rng.random()
        if turned < 0.6:
            return lambda lib, v: run(v[i], v[j])
        return lambda lib, v: run(v[i], other) if turned < 0.8 else run(other, v[i])

    return draw


def _along(name: str, keeps: bool = True) -> Step:
    def draw(rng: random.Random, lib: Any, values: list[Any]) -> Any:
        i = rng.randrange(len(values))
        axis, keep = _axis(rng, values[i]), rng.random() < 0.5
        if not keeps:
            return lambda lib, v: getattr(lib, name)(v[i], axis)
        if rng.random() < 0.3:
            return lambda lib, v: getattr(lib, name)(v[i])
        return lambda lib, v: getattr(lib, name)(v[i], axis, keepdim=keep)

    return draw


def _moved(rng: random.Random, lib: Any, values: list[Any]) -> Any:
    i = rng.randrange(len(values))
    x = values[i]
    a, b = _axis(rng, x), _axis(rng, x)
    n = x.numel()
    return rng.choice(
        [
            lambda lib, v: v[i].transpose(a, b),
            lambda lib, v: v[i].unsqueeze(a),
            lambda lib, v: v[i].squeeze(a),
            lambda lib, v: v[i].squeeze(),
            lambda lib, v: v[i].flatten(),
            lambda lib, v: v[i].reshape(n),
            lambda lib, v: v[i].reshape(-1),
            lambda lib, v: lib.flip(v[i], (a,)),
            lambda lib, v: v[i][..., None],
            lambda lib, v: v[i][1:],
            lambda lib, v: v[i][..., ::2],
            lambda lib, v: v[i].expand(2, *v[i].shape),
            lambda lib, v: lib.roll(v[i], 1, 0),
            lambda lib, v: v[i].T,
            lambda lib, v: v[i].narrow(a, 0, 1),
            lambda lib, v: v[i].chunk(2, a)[0],
            lambda lib, v: v[i].tile(2),
        ]
    )


def _joined(rng: random.Random, lib: Any, values: list[Any]) -> Any:
    which = [rng.randrange(len(values)) for _ in range(rng.randint(1, 3))]
    axis, name = _axis(rng, values[which[0]]), rng.choice(("cat", "stack"))
    return lambda lib, v: getattr(lib, name)([v[i] for i in which], axis)


def _chosen(rng: random.Random, lib: Any, values: list[Any]) -> Any:
    i, j, k = (rng.randrange(len(values)) for _ in range(3))
    number = _number(rng)
    return rng.choice(
        [
            lambda lib, v: lib.where(v[i] > v[j], v[j], v[k]),
            lambda lib, v: lib.where(v[i] > 0, v[j], number),
            lambda lib, v: v[i].masked_fill(v[j] == v[j], number),
            lambda lib, v: v[i].clamp(-1, 2),
            lambda lib, v: v[i].clamp(min=number),
            lambda lib, v: v[i].clamp(v[j], v[k]),
        ]
    )


def _cast(rng: random.Random, lib: Any, values: list[Any]) -> Any:
    exact = [i for i, x in enumerate(values) if not x.is_floating_point()]
    name = rng.choice(FLOATS)
    i = rng.choice(exact) if exact else 0
    return lambda lib, v: v[i].to(getattr(lib, name))


def _product(rng: random.Random, lib: Any, values: list[Any]) -> Any:
    i, j = rng.randrange(len(values)), rng.randrange(len(values))
    return lambda lib, v: v[i] @ v[j].transpose(-1, -2)


EXACT: tuple[Step, ...] = (
    *(_named(n) for n in ("neg", "abs", "isnan", "isinf", "sign", "logical_not", "floor", "ceil")),
    *(_pair(n) for n in ("maximum", "minimum", "eq", "ne", "logical_and", "fmax", "fmin")),
    *(_symbol(s) for s in ("<", ">=", "==", "&", "|", "^")),
    *(_along(n) for n in ("amax", "amin", "all", "any", "argmax")),
    *(_moved, _moved, _moved, _joined, _joined, _chosen, _chosen, _cast),
)
"""Steps whose results are the same bits everywhere, and so may be operands of others."""

ROUNDED: tuple[Step, ...] = (
    *(_named(n) for n in ("exp", "log", "sqrt", "sin", "tanh", "sigmoid", "reciprocal", "erf")),
    *(_named(n) for n in ("expm1", "log1p", "square", "rsqrt", "atan", "round", "trunc", "frac")),
    *(_pair(n) for n in ("add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder")),
    *(_pair(n) for n in ("pow", "atan2", "hypot", "fmod", "copysign", "logaddexp", "xlogy")),
    *(_symbol(s) for s in ("+", "-", "*", "/", "//", "%", "**", "<<", ">>")),
    *(_along(n) for n in ("sum", "mean", "prod", "logsumexp", "var", "std", "median")),
    *(_along(n, False) for n in ("cumsum", "cumprod", "softmax", "log_softmax")),
    _product,
)


class Differs(AssertionError):
    """The framework gives something else than PyTorch."""


def drawn(rng: random.Random) -> np.ndarray[Any, Any]:
    """A value of a drawn shape, small numbers and odd ones."""
    shape = rng.choice(SHAPES)
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(-4, 5, shape) * 0.5
    if values.size and rng.random() < 0.4:
        values = np.where(np.arange(values.size).reshape(shape) % 3 == 0, rng.choice(ODD), values)
    return np.asarray(values, np.float64)


def program(seed: int) -> int:
    """Run one program; the number of steps that gave values. Raises Differs. Where PyTorch takes no
    such operands, the framework may."""
    rng = random.Random(seed)
    ours, theirs = [], []
    for _ in range(4):
        name = rng.choice(FLOATS if rng.random() < 0.6 else WHOLE)
        data = drawn(rng)
        data = data if name in FLOATS else np.nan_to_num(np.abs(data), posinf=3)
        theirs.append(torch.tensor(data).to(getattr(torch, name)))
        ours.append(ht.tensor(data, dtype=ht.float64).to(getattr(ht, name)))
    results: list[tuple[str, Any, Any]] = []
    for number in range(STEPS):
        exact = rng.random() < 0.5
        step = rng.choice(EXACT if exact else ROUNDED)
        run = step(rng, torch, theirs)
        what = f"program {seed}, step {number}, {_said(run, theirs)}"
        mine, other = _tried(run, ht, ours), _tried(run, torch, theirs)
        if isinstance(mine, Exception) or isinstance(other, Exception):
            if not isinstance(other, Exception) and not any(
                words in str(mine) for words in DECIDED
            ):
                raise Differs(f"{what}: {mine}")
            continue
        results.append((what, mine, other))
        if exact:
            ours.append(mine)
            theirs.append(other)
    for what, mine, other in results:
        _compare(what, mine, other)
    return len(results)


def _said(run: Any, values: list[Any]) -> str:
    """A step, and the values that it may take."""
    held = run.__closure__ or ()
    inner = [c.cell_contents for c in held]
    names = [getattr(x, "__code__", run.__code__).co_names if callable(x) else x for x in inner]
    kinds = [f"{v.dtype}{list(v.shape)}" for v in values]
    return f"{run.__code__.co_names} {names} of {kinds}".replace("torch.", "")


def _tried(run: Any, lib: Any, values: list[Any]) -> Any:
    try:
        found = run(lib, values)
    except Exception as error:  # noqa: BLE001 - which errors are raised is compared
        return error
    return found if hasattr(found, "shape") else found[0]


def _compare(what: str, mine: Any, other: Any) -> None:
    theirs, name = other, str(other.dtype).removeprefix("torch.")
    same = mine.dtype is getattr(ht, name) or not theirs.numel()  # PyTorch looks at no type then
    if tuple(mine.shape) != tuple(theirs.shape) or not same:
        found = f"{mine.dtype}{list(mine.shape)}"
        raise Differs(f"{what}: {found}, PyTorch's {other.dtype}{list(other.shape)}")
    if not theirs.numel():
        return
    a, b = mine.to(ht.float64).numpy(), theirs.to(torch.float64).numpy()
    near = ROUNDING.get(other.dtype, 0.0)
    if not np.allclose(a, b, near, near, equal_nan=True):
        raise Differs(f"{what}: {other.dtype} {a.ravel()[:8]}, PyTorch's {b.ravel()[:8]}")


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    wrong, values = [], 0
    for seed in range(first, first + count):
        try:
            values += program(seed)
        except Differs as error:
            wrong.append(seed)
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count} programs, {values} values, {len(wrong)} differ: {wrong}\n")


if __name__ == "__main__":
    main()
