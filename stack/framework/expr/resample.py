"""Images at other sizes and places: interpolation along axes, and at points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import text
from stack.framework.expr.pool import adaptive_avg
from stack.framework.expr.public import layer
from stack.framework.expr.windows import each

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area")
SMALL = 1 << 10
"""Below which a fraction's denominator is small: such products with sizes are not rounded."""
_RANK = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


@layer(aten="upsample", onnx="Resize")
def interpolate(
    input: Node,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Node:
    """input [N, C, sizes] at another size, or so many times its own: the nearest element, between
    neighbours (linear, bilinear, trilinear, bicubic) or by means of areas."""
    d = len(input.shape) - 2
    if mode not in MODES or _RANK.get(mode, d) != d or antialias:
        raise TensorError(f"mode {mode!r}, antialias {antialias}, of {text(input)} is not known")
    if (size is None) == (scale_factor is None):
        raise TensorError("needs a size or a scale_factor, and not both")
    sizes = input.shape[2:]
    factors: list[float | None] = [None] * d
    if size is not None:
        wanted = each(size, d, "size")
    else:
        assert scale_factor is not None, "checked above"
        scales = [scale_factor] * d if isinstance(scale_factor, int | float) else [*scale_factor]
        wanted = [_scaled(n, s) for n, s in zip(sizes, scales, strict=True)]
        factors = [None] * d if recompute_scale_factor else [float(s) for s in scales]
    if min((*sizes, *wanted)) < 1:
        raise TensorError(f"{text(input)} at sizes {wanted}: each is at least 1")
    if mode == "area":
        return adaptive_avg(d, input, wanted)
    x = g.cast(input, input.dtype.computed_in)
    for i, (n, out, factor) in enumerate(zip(sizes, wanted, factors, strict=True)):
        step = 1 / factor if factor else n / out
        if mode.startswith("nearest"):
            x = _nearest(x, 2 + i, out, step, 0.5 if mode == "nearest-exact" else 0.0)
        else:
            x = _between(x, 2 + i, out, step, bool(align_corners), mode == "bicubic")
    return g.cast(x, input.dtype)


def _scaled(n: int, scale: float) -> int:
    """floor(n * scale); by whole numbers where the scale is a fraction of small ones, so that n may
    be known only when a plan runs."""
    above, below = scale.as_integer_ratio() if math.isfinite(scale) else (0, SMALL)
    return n * above // below if below < SMALL else math.floor(n * scale)


def _nearest(x: Node, a: int, out: int, step: float, offset: float) -> Node:
    n = x.shape[a]
    if out % n == 0 and step == n / out:
        apart = g.reshape(x, (*x.shape[: a + 1], 1, *x.shape[a + 1 :]))
        grown = g.expand(apart, (*x.shape[: a + 1], out // n, *x.shape[a + 1 :]))
        return g.reshape(grown, (*x.shape[:a], out, *x.shape[a + 1 :]))
    place = g.floor(e.mul(e.add(g.arange(out, DType.F32), offset), step))
    return g.gather(x, e.clamp(g.cast(place, DType.I64), 0, n - 1), a)


def _between(x: Node, a: int, out: int, step: float, corners: bool, cubic: bool) -> Node:
    """Along one axis, between two neighbours or among four."""
    n = x.shape[a]
    number = g.arange(out, x.dtype)
    if corners:
        place = e.mul(number, (n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        place = e.sub(e.mul(e.add(number, 0.5), step), 0.5)
        place = place if cubic else e.clamp(place, min=0.0)
    low = g.floor(place)
    weight = e.sub(place, low)
    line = (out, *[1] * (len(x.shape) - a - 1))

    def at(offset: int) -> Node:
        return g.gather(x, e.clamp(g.cast(e.add(low, offset), DType.I64), 0, n - 1), a)

    if not cubic:
        return e.lerp(at(0), at(1), g.reshape(weight, line))
    parts = [
        e.mul(at(k), g.reshape(w, line)) for k, w in zip(range(-1, 3), _cubic(weight), strict=True)
    ]
    return e.add(e.add(parts[0], parts[1]), e.add(parts[2], parts[3]))


def _cubic(t: Node, a: float = -0.75) -> list[Node]:
    """The weights of four neighbours at t behind the second (Keys, 1981)."""

    def near(x: Node) -> Node:
        return e.add(e.mul(e.sub(e.mul(x, a + 2), a + 3), e.mul(x, x)), 1.0)

    def far(x: Node) -> Node:
        return e.mul(e.sub(e.mul(e.add(e.mul(e.sub(x, 5), x), 8), x), 4), a)

    back = e.sub(1.0, t)
    return [far(e.add(t, 1.0)), near(t), near(back), far(e.add(back, 1.0))]


@layer(aten="upsample_nearest2d")
def upsample_nearest(
    input: Node,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Node:
    """interpolate by the nearest element."""
    return interpolate(input, size, scale_factor)


@layer(aten="upsample_bilinear2d")
def upsample_bilinear(
    input: Node,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Node:
    """interpolate between neighbours, corners on corners."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


@layer(aten="affine_grid_generator", onnx="AffineGrid")
def affine_grid(theta: Node, size: Sequence[int], align_corners: bool | None = None) -> Node:
    """The places, [N, sizes, d], where an affine map theta [N, d, d + 1] puts those of an image of
    this size [N, C, sizes]."""
    sizes = list(size)[2:]
    d = len(sizes)
    lines = []
    for i, n in enumerate(sizes):
        scale = 1.0 if align_corners or n < 1 else (n - 1) / n
        steps = e.sub(e.mul(g.arange(n, theta.dtype), 2 / max(1, n - 1)), 1.0)
        steps = e.mul(steps if n > 1 else g.full((n,), 0, theta.dtype), scale)
        shape = [n if j == i else 1 for j in range(d)]
        lines.append(g.broadcast(g.reshape(steps, shape), sizes))
    ones = g.full(sizes, 1, theta.dtype)
    points = g.concat([g.reshape(v, (*sizes, 1)) for v in (*lines[::-1], ones)], d)
    flat = g.reshape(points, (1, math.prod(sizes), d + 1))
    flat = g.expand(flat, (theta.shape[0], *flat.shape[1:]))
    return g.reshape(g.matmul(flat, g.transpose(theta)), (theta.shape[0], *sizes, d))


@layer(aten="grid_sampler", onnx="GridSample")
def grid_sample(
    input: Node,
    grid: Node,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Node:
    """input [N, C, sizes] at the places [N, outputs, d] from -1 to 1 of a grid, whose last axis
    begins with the last of the sizes; by the nearest element, between neighbours, or bicubic."""
    d = len(input.shape) - 2
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and d != 2):
        raise TensorError(f"mode {mode!r} of {text(input)} is not known")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise TensorError(f"padding_mode {padding_mode!r} is not known")
    if len(grid.shape) != d + 2 or (grid.shape[0], grid.shape[-1]) != (input.shape[0], d):
        wanted = f"{d + 2} axes, {input.shape[0]} the first and {d} the last"
        raise TensorError(f"the grid of {text(input)} has {wanted}; got {text(grid)}")
    sizes, corners = input.shape[2:], bool(align_corners)
    places = []
    for i, n in enumerate(sizes):
        at = g.slice_axis(grid, -1, d - 1 - i, d - i)
        at = g.reshape(at, (grid.shape[0], at.type.size // max(1, grid.shape[0])))
        scaled = e.mul(e.add(at, 1.0), (n - 1) / 2 if corners else n / 2)
        places.append(scaled if corners else e.sub(scaled, 0.5))
    if mode != "bicubic":
        places = [_held(p, n, padding_mode, corners) for p, n in zip(places, sizes, strict=True)]
    look = _Look(input, padding_mode, corners)
    if mode == "nearest":
        found = look(tuple(g.round(p) for p in places))
    else:
        found = _weighed(look, places, mode == "bicubic")
    return g.reshape(found, (*input.shape[:2], *grid.shape[1:-1]))


def _weighed(look: Any, places: Sequence[Node], cubic: bool) -> Node:
    """The sum over all neighbours of what is there times the product of their weights."""
    lows = [g.floor(p) for p in places]
    rests = [e.sub(p, low) for p, low in zip(places, lows, strict=True)]
    offsets = range(-1, 3) if cubic else range(2)
    weights = [_cubic(t) if cubic else [e.sub(1.0, t), t] for t in rests]
    total: Node | None = None
    for number in range(len(offsets) ** len(places)):
        factor: Node | None = None
        at = []
        for i, low in enumerate(lows):
            k = number // len(offsets) ** i % len(offsets)
            at.append(e.add(low, offsets[k]))
            factor = weights[i][k] if factor is None else e.mul(factor, weights[i][k])
        assert factor is not None, "an image has axes"
        part = e.mul(look(tuple(at)), g.reshape(factor, (factor.shape[0], 1, factor.shape[1])))
        total = part if total is None else e.add(total, part)
    assert total is not None, "there are neighbours"
    return total


class _Look:
    """Elements of images at whole places."""

    def __init__(self, x: Node, padding: str, corners: bool) -> None:
        self._sizes, self._padding, self._corners = x.shape[2:], padding, corners
        count = math.prod(self._sizes)
        flat = g.reshape(x, (*x.shape[:2], count))
        self._rows = g.permute(flat, (0, 2, 1))

    def __call__(self, places: Sequence[Node]) -> Node:
        """[N, C, outputs] at places [N, outputs] on each axis."""
        linear: Node | None = None
        inside: Node | None = None
        for p, n in zip(places, self._sizes, strict=True):
            p = p if self._padding == "zeros" else _held(p, n, self._padding, self._corners)
            here = g.and_(e.le(0, p), e.lt(p, n))
            whole = g.cast(p, DType.I64)
            linear = whole if linear is None else e.add(e.mul(linear, n), whole)
            inside = here if inside is None else g.and_(inside, here)
        assert linear is not None, "an image has axes"
        assert inside is not None, "an image has axes"
        found = g.gather(self._rows, e.where(inside, linear, -1), 1, batch=True)
        return g.permute(found, (0, 2, 1))


def _held(p: Node, n: int, padding: str, corners: bool) -> Node:
    """A place within the axis, by what lies around it."""
    if padding == "reflection":
        low, span = (0.0, 2.0 * (n - 1)) if corners else (-0.5, 2.0 * n)
        if not span:
            return g.full_like(p, 0)
        away = g.abs(e.sub(p, low))
        turn = e.remainder(away, span)
        p = e.add(e.minimum(turn, e.sub(span, turn)), low)
    return e.clamp(p, 0.0, float(n - 1)) if padding != "zeros" else p
