"""Discrete Fourier transforms under PyTorch's names, along axes of real tensors and complex ones.

`norm` says what is divided by the number of elements: "backward" (as None) the inverse transform,
"forward" the other one, "ortho" both by its square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hal.core.dtypes import DType
from stack.framework.create import arange
from stack.framework.errors import TensorError, absent, where_called
from stack.framework.expr import fft as expr
from stack.framework.expr import movement
from stack.framework.pairs import ComplexTensor, parts, view_as_real
from stack.framework.tensor import Tensor, apply, call

Input = Tensor | ComplexTensor
Axes = int | Sequence[int] | None

_OPPOSITE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _one(x: Input, n: int | None, dim: int, norm: str | None, inverse: bool) -> ComplexTensor:
    size = x.shape[dim] if n is None else n
    if size < 1:
        raise TensorError(f"a transform of {size} elements\n  called at {where_called()}")
    if norm not in _OPPOSITE:
        raise TensorError(
            f'norm is "backward", "forward" or "ortho", got {norm!r}\n  called at {where_called()}'
        )
    if norm == "ortho":
        scale = 1 / math.sqrt(size)
    else:
        scale = 1 / size if inverse == (norm != "forward") else 1.0
    return ComplexTensor(*call(expr.transform, *parts(x), dim, n, 1 if inverse else -1, scale))


def _each(x: Input, s: Axes, dim: Axes) -> list[tuple[int, int | None]]:
    """The axes, last first, with their sizes. Sizes without axes are those of the last ones."""
    sizes = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is None:
        axes = list(range(x.ndim)) if sizes is None else list(range(-len(sizes), 0))
    else:
        axes = [dim] if isinstance(dim, int) else list(dim)
    if sizes is not None and len(sizes) != len(axes):
        raise TensorError(
            f"{len(sizes)} sizes do not fit {len(axes)} axes\n  called at {where_called()}"
        )
    given = [None] * len(axes) if sizes is None else [None if n == -1 else n for n in sizes]
    return list(zip(axes, given, strict=True))


def fft(
    input: Input, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexTensor:
    """The sums of x[j] exp(-2 pi i j k / n) along an axis."""
    return _one(input, n, dim, norm, False)


def ifft(
    input: Input, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexTensor:
    """What `fft` gives this for."""
    return _one(input, n, dim, norm, True)


def fftn(input: Input, s: Axes = None, dim: Axes = None, norm: str | None = None) -> ComplexTensor:
    """`fft` along several axes, all without any."""
    return _several(input, s, dim, norm, False)


def ifftn(input: Input, s: Axes = None, dim: Axes = None, norm: str | None = None) -> ComplexTensor:
    """What `fftn` gives this for."""
    return _several(input, s, dim, norm, True)


def _several(x: Input, s: Axes, dim: Axes, norm: str | None, inverse: bool) -> ComplexTensor:
    for axis, n in reversed(_each(x, s, dim)):
        x = _one(x, n, axis, norm, inverse)
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x, x * 0.0)


def rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> ComplexTensor:
    """The first n // 2 + 1 elements of `fft` of a real tensor: the others are their conjugates."""
    if isinstance(input, ComplexTensor):
        raise TensorError(f"rfft takes a real tensor\n  called at {where_called()}")
    whole = _one(input, n, dim, norm, False)
    return ComplexTensor(*(apply(expr.half, part, dim) for part in (whole.real, whole.imag)))


def irfft(input: Input, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The n real numbers for which `rfft` gives this; 2 (m - 1) of m without n."""
    real, imag = parts(input)
    imag = real * 0.0 if imag is None else imag
    whole = ComplexTensor(*call(expr.from_half, real, imag, dim, n))
    return _one(whole, None, dim, norm, True).real


def rfftn(
    input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None
) -> ComplexTensor:
    """`rfft` along the last of several axes, `fft` along the others."""
    (last, n), *others = reversed(_each(input, s, dim))
    x: ComplexTensor = rfft(input, n, last, norm)
    for axis, size in others:
        x = _one(x, size, axis, norm, False)
    return x


def irfftn(input: Input, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """What `rfftn` gives this for."""
    *others, (last, n) = _each(input, s, dim)
    x = input
    for axis, size in others:
        x = _one(x, size, axis, norm, True)
    return irfft(x, n, last, norm)


def _conjugate(x: Input) -> Input:
    return x.conj()


def hfft(input: Input, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """`fft` of n numbers of which this is the first half, and the others are its conjugates."""
    return irfft(_conjugate(input), n, dim, _OPPOSITE[norm])


def ihfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> ComplexTensor:
    """What `hfft` gives this for."""
    return rfft(input, n, dim, _OPPOSITE[norm]).conj()


def hfftn(input: Input, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """`hfft` along the last of several axes, `fft` along the others."""
    return irfftn(_conjugate(input), s, dim, _OPPOSITE[norm])


def ihfftn(
    input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None
) -> ComplexTensor:
    """What `hfftn` gives this for."""
    return rfftn(input, s, dim, _OPPOSITE[norm]).conj()


def fft2(
    input: Input, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None
) -> ComplexTensor:
    """`fftn` along two axes."""
    return fftn(input, s, dim, norm)


def ifft2(
    input: Input, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None
) -> ComplexTensor:
    """`ifftn` along two axes."""
    return ifftn(input, s, dim, norm)


def rfft2(
    input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None
) -> ComplexTensor:
    """`rfftn` along two axes."""
    return rfftn(input, s, dim, norm)


def irfft2(input: Input, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` along two axes."""
    return irfftn(input, s, dim, norm)


def hfft2(input: Input, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """`hfftn` along two axes."""
    return hfftn(input, s, dim, norm)


def ihfft2(
    input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None
) -> ComplexTensor:
    """`ihfftn` along two axes."""
    return ihfftn(input, s, dim, norm)


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """The frequencies of the elements of a transform of n numbers that lie d apart."""
    k = arange(n, dtype=DType.F64, device=device)
    found: Tensor = ((k + n // 2) % n - n // 2) / (n * d)
    return found.to(dtype or DType.F32)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """`fftfreq` of the first half, none of which is negative."""
    k = arange(n // 2 + 1, dtype=DType.F64, device=device)
    found: Tensor = k / (n * d)
    return found.to(dtype or DType.F32)


def _shifted(x: Input, dim: Axes, back: bool) -> Input:
    axes = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    by = [(x.shape[a] + back) // 2 for a in axes]
    return x.roll(by, axes)


def fftshift(input: Input, dim: Axes = None) -> Input:
    """The frequency 0 in the middle of axes."""
    return _shifted(input, dim, False)


def ifftshift(input: Input, dim: Axes = None) -> Input:
    """What `fftshift` gives this for."""
    return _shifted(input, dim, True)


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Any:
    """[..., frequencies, frames]: transforms of windows of n_fft elements of rows, hop_length
    (n_fft // 4) apart; with center each is around its place, in rows that are padded.
    Without return_complex the parts are on a last axis."""
    hop, x = hop_length or n_fft // 4, input
    if center:
        sides = n_fft // 2, n_fft // 2
        padded = apply(movement.pad, x.reshape(1, -1, x.shape[-1]), sides, pad_mode)
        x = padded.reshape(*x.shape[:-1], padded.shape[-1])
    frames = x.unfold(-1, n_fft, hop)
    frames = frames * _centred(window, win_length or n_fft, n_fft, x)
    norm = "ortho" if normalized else None
    found = fft(frames, norm=norm) if onesided is False else rfft(frames, norm=norm)
    turned: ComplexTensor = found.transpose(-2, -1)
    return view_as_real(turned) if return_complex is False else turned


def _centred(window: Tensor | None, length: int, n_fft: int, like: Tensor) -> Tensor:
    """The window, or ones, in the middle of n_fft elements."""
    window = like.detach().new_ones(length) if window is None else window
    left = (n_fft - window.shape[0]) // 2
    sides = (left, n_fft - window.shape[0] - left)
    return apply(movement.pad, window, sides)


def istft(
    input: ComplexTensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """What `stft` gives this for: windows are added where they overlap, and divided by the sum of
    the squares of the window."""
    if return_complex:
        raise TensorError(f"istft gives real numbers\n  called at {where_called()}")
    hop, norm = hop_length or n_fft // 4, "ortho" if normalized else None
    turned = input.transpose(-2, -1)
    if onesided is False:
        turned = turned.narrow(-1, 0, n_fft // 2 + 1)
    frames = irfft(turned, n_fft, norm=norm)
    own = _centred(window, win_length or n_fft, n_fft, frames)
    added = apply(expr.added, frames * own, hop)
    weights = apply(expr.added, (own * own).expand(frames.shape[-2], n_fft), hop)
    start = n_fft // 2 if center else 0
    total: int = added.shape[-1]
    end = start + length if length is not None else total - start
    weights = weights[start : min(end, total)]
    row = added[..., start : min(end, total)] / weights
    return row if end <= total else apply(movement.pad, row, (0, end - total))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("fft", name, [n for n in globals() if not n.startswith("_")])
