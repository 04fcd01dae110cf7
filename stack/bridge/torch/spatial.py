"""Rows of pools, of images at other sizes, and of what is around them, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.rows import pulled, row
from stack.framework.errors import TensorError
from stack.framework.expr import contract, movement, pool, resample
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import text


def _each(size: Any) -> Any:
    """A size for each axis, or one for all."""
    return size if isinstance(size, int) else size[0] if len(size) == 1 else tuple(size)


def _max_pools(d: int) -> None:
    def forward(x: Node, at: Sequence[Any], places: bool) -> Any:
        size, stride, padding, dilation, ceil = at
        by = None if stride in ((), []) else _each(stride)
        return pool._max_pool(d, x, _each(size), by, _each(padding), _each(dilation), ceil, places)

    @row(f"max_pool{d}d_with_indices")
    def max_pool(
        x: Node, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> Any:  # fmt: skip
        return forward(x, (size, stride, padding, dilation, ceil), True)

    @row(f"max_pool{d}d_with_indices_backward")
    def backward(d: Node, x: Node, *rest: Any) -> Node | None:
        return pulled(lambda v: forward(v, rest[:5], False), [x], d)[0]


def _avg_pools(d: int) -> None:
    @row(f"avg_pool{d}d")
    def avg_pool(
        x: Node, size: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        padded: bool = True, divisor: int | None = None,
    ) -> Node:  # fmt: skip
        by = None if stride in ((), []) else _each(stride)
        return pool._avg_pool(d, x, _each(size), by, _each(padding), ceil, padded, divisor)

    @row(f"avg_pool{d}d_backward")
    def backward(d: Node, x: Node, *rest: Any) -> Node | None:
        return pulled(lambda v: avg_pool(v, *rest), [x], d)[0]


def _adaptive_pools(d: int) -> None:
    @row(f"_adaptive_avg_pool{d}d")
    def avg_pool(x: Node, size: Any) -> Node:
        return pool.adaptive_avg(d, x, list(size))

    @row(f"_adaptive_avg_pool{d}d_backward")
    def avg_backward(grad: Node, x: Node) -> Node | None:
        return pulled(lambda v: pool.adaptive_avg(d, v, list(grad.shape[-d:])), [x], grad)[0]

    @row(f"adaptive_max_pool{d}d")
    def max_pool(x: Node, size: Any) -> Any:
        return pool._adaptive_max(d, x, list(size), True)

    @row(f"adaptive_max_pool{d}d_backward")
    def max_backward(grad: Node, x: Node, places: Node) -> Node | None:
        size = list(grad.shape[-d:])
        return pulled(lambda v: pool._adaptive_max(d, v, size, False), [x], grad)[0]


for _d in (2, 3):
    _max_pools(_d)
    _avg_pools(_d)
    _adaptive_pools(_d)


def _resampling(name: str, mode: str, cornered: bool) -> None:
    """Forward and gradient of one of torch's operators. One whose corners may lie on corners has
    that argument before the scales."""

    @row(name)
    def forward(x: Node, size: Sequence[int], *rest: Any) -> Node:
        # An image at another size. Places follow from a scale where one is given, else from sizes.
        corners = bool(cornered and rest[0])
        scales = rest[cornered:]
        if min((*x.shape[2:], *size)) < 1:
            raise TensorError(f"{text(x)} at sizes {list(size)}: each is at least 1")
        wide = g.cast(x, x.dtype.computed_in)
        for i, out in enumerate(size):
            a, scale = 2 + i, scales[i] if i < len(scales) else None
            step = 1 / scale if scale else x.shape[a] / out
            if mode.startswith("nearest"):
                wide = resample._nearest(
                    wide, a, out, step, 0.5 if mode == "nearest-exact" else 0.0
                )
            else:
                wide = resample._between(wide, a, out, step, corners, mode == "bicubic")
        return g.cast(wide, x.dtype)

    @row(f"{name}_backward")
    def backward(d: Node, size: Sequence[int], given: Sequence[int], *rest: Any) -> Node | None:
        x = g.full(tuple(given), 0, d.dtype)  # the gradient does not depend on the image
        return pulled(lambda v: forward(v, size, *rest), [x], d)[0]


for _d, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _resampling(f"upsample_nearest{_d}d", "nearest", cornered=False)
    _resampling(f"_upsample_nearest_exact{_d}d", "nearest-exact", cornered=False)
    _resampling(f"upsample_{_linear}{_d}d", _linear, cornered=True)
_resampling("upsample_bicubic2d", "bicubic", cornered=True)


def _cubic(away: Node) -> Node:
    """Keys' with -1/2, which Pillow has."""
    near = e.add(e.mul(e.mul(e.sub(e.mul(away, 1.5), 2.5), away), away), 1.0)
    far = e.mul(e.add(e.mul(e.sub(away, 5.0), away), 8.0), away)
    return e.where(
        e.lt(away, 1.0), near, e.where(e.lt(away, 2.0), e.mul(e.sub(4.0, far), 0.5), 0.0)
    )


def _blended(
    shape: Callable[[Node], Node], given: int, wanted: int, corners: bool, scale: float | None
) -> Node:
    """f32[wanted, given]: how much of each element is in each new one, by their distance where each
    is of this shape, and as wide as what it covers."""
    if corners:
        step = (given - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        step = 1 / scale if scale else given / wanted
    centre = e.mul(e.add(g.arange(wanted, DType.F32), 0.5), step)
    at = e.add(g.arange(given, DType.F32), 0.5)
    away = g.abs(e.sub(at, g.reshape(centre, (wanted, 1))))
    weight = shape(e.div(away, max(step, 1.0)))
    return e.div(weight, r.sum(weight, 1, keepdim=True))


def _smoothing(name: str, shape: Callable[[Node], Node]) -> None:
    @row(name)
    def smoothed(
        x: Node, size: Sequence[int], corners: bool, scale_h: float | None = None,
        scale_w: float | None = None,
    ) -> Node:  # fmt: skip
        wide = g.cast(x, x.dtype.computed_in)
        high, across = (
            g.cast(_blended(shape, given, wanted, corners, scale), wide.dtype)
            for given, wanted, scale in zip(x.shape[-2:], size, (scale_h, scale_w), strict=True)
        )
        made = contract.matmul(high, contract.matmul(wide, g.transpose(across)))
        return g.cast(made, x.dtype)

    @row(f"{name}_backward")
    def backward(d: Node, size: Sequence[int], given: Sequence[int], *rest: Any) -> Node | None:
        x = g.full(tuple(given), 0, d.dtype)  # the gradient does not depend on the image
        return pulled(lambda v: smoothed(v, size, *rest), [x], d)[0]


_smoothing("_upsample_bilinear2d_aa", lambda away: e.clamp(e.sub(1.0, away), min=0.0))
_smoothing("_upsample_bicubic2d_aa", _cubic)


def _padding(kind: str, d: int, mode: str) -> None:
    @row(f"{kind}_pad{d}d")
    def forward(x: Node, by: Sequence[int]) -> Node:
        return movement.pad(x, list(by), mode)

    @row(f"{kind}_pad{d}d_backward")
    def backward(grad: Node, x: Node, by: Sequence[int]) -> Node | None:
        return pulled(lambda v: movement.pad(v, list(by), mode), [x], grad)[0]


for _d in (1, 2, 3):
    _padding("replication", _d, "replicate")
    _padding("reflection", _d, "reflect")


_MODES: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("bilinear", "nearest", "bicubic"),
    ("zeros", "border", "reflection"),
)


def _sampler(d: int) -> None:
    def at(x: Node, grid: Node, mode: int, around: int, corners: bool) -> Node:
        return resample.grid_sample(x, grid, _MODES[0][mode], _MODES[1][around], corners)

    row(f"grid_sampler_{d}d")(at)

    @row(f"grid_sampler_{d}d_backward")
    def backward(
        grad: Node, x: Node, grid: Node, mode: int, around: int, corners: bool,
        mask: Sequence[bool],
    ) -> list[Node | None]:  # fmt: skip
        forward: Callable[..., Node] = lambda v, w: at(v, w, mode, around, corners)
        found = pulled(forward, [x, grid], grad)
        zero = [
            g.full_like(v, 0) if f is None else f for v, f in zip((x, grid), found, strict=True)
        ]
        return [z if wanted else None for z, wanted in zip(zero, mask, strict=True)]


_sampler(2)
_sampler(3)
