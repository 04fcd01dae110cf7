"""Layers of several tensors, some of which say where others lie: made of other operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hal.core.dtypes import DType
from stack.framework.control import scan
from stack.framework.counted import repeat_interleave, where
from stack.framework.create import arange, full, tensor, zeros
from stack.framework.errors import TensorError
from stack.framework.expr import index, loss, movement, resample, sort
from stack.framework.expr.public import F, operator
from stack.framework.tensor import Tensor, apply


def _layer(name: str = "", **face: Any) -> Callable[[F], F]:
    return operator(name, waits=True, function=False, method=False, layer=True, **face)


def _cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    return apply(movement.cat, parts, dim)


def _reduced(each: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return each
    if reduction not in ("mean", "sum"):
        raise TensorError(f'reduction is "none", "mean" or "sum", got {reduction!r}')
    return each.mean() if reduction == "mean" else each.sum()


_NEVER = -1e30
"""The logarithm of a probability of 0, whose differences are no NaN."""


@_layer(aten="ctc_loss")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that log_probs [T, N, C] (or [T, C]), of input_lengths, read without
    repetitions and blanks, are the targets [N, S], or one after the other, of target_lengths; the
    mean is that of the losses divided by the target lengths. By the forward recursion of Graves et
    al. (2006), a loop over T."""
    single = log_probs.ndim == 2
    lp = log_probs.unsqueeze(1) if single else log_probs
    steps, n, _ = lp.shape
    device = lp.device

    def lengths(given: Any) -> Tensor:
        made = given if isinstance(given, Tensor) else tensor(list(given), device=device)
        return made.to(device).long().reshape(n)

    long, wide = lengths(input_lengths), lengths(target_lengths)
    if targets.ndim == 1:
        targets = targets.unsqueeze(0) if single else _in_rows(targets, wide.tolist())
    labels = targets.long()
    extended = full((n, 2 * labels.shape[1] + 1), blank, dtype=DType.I64, device=device)
    extended[:, 1::2] = labels
    width = extended.shape[1]
    at = arange(width, device=device)
    repeats = _cat([extended[:, :2] * 0 + blank, extended[:, :-2]], 1)[:, :width]
    skips = (extended != blank) & (extended != repeats) & (at >= 2)
    inside = at < 2 * wide.unsqueeze(1) + 1

    seen = lp.gather(2, extended.expand(steps, n, width)).clamp(min=_NEVER)
    runs = (arange(1, steps, device=device).unsqueeze(1) < long).unsqueeze(2)

    def step(alpha: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
        said, is_read = now
        one = _cat([full((n, 1), _NEVER, dtype=alpha.dtype, device=device), alpha[:, :-1]], 1)
        two = _cat([full((n, 2), _NEVER, dtype=alpha.dtype, device=device), alpha[:, :-2]], 1)
        ways = alpha.logaddexp(one).logaddexp(where(skips, two[:, :width], _NEVER))
        new = where(inside, (ways + said).clamp(min=_NEVER), _NEVER)
        return where(is_read, new, alpha), ()

    alpha = where((at < 2) & inside, seen[0], _NEVER)
    if steps > 1:
        alpha, _ = scan(step, alpha, (seen[1:], runs))
    last = alpha.gather(1, (2 * wide).unsqueeze(1))
    before = alpha.gather(1, (2 * wide - 1).clamp(min=0).unsqueeze(1))
    before = where(wide.unsqueeze(1) > 0, before, _NEVER)
    total = last.logaddexp(before).squeeze(1)
    valid = (arange(steps, device=device).unsqueeze(1) < long).unsqueeze(2)
    whole = where(valid, lp, -math.inf).exp().sum((0, 2))
    total = total - (whole - whole.detach())  # PyTorch's gradient: as if they were normalised here
    losses = where(total <= _NEVER / 2, 0.0 if zero_infinity else math.inf, -total)
    if reduction == "mean":
        losses = losses / wide.clamp(min=1).to(losses.dtype)
    return _reduced(losses.squeeze(0) if single else losses, reduction)


def _in_rows(flat: Tensor, counts: list[int]) -> Tensor:
    """Rows of these lengths, one after the other, as one matrix."""
    rows, width = [], max(counts, default=0)
    for i, count in enumerate(counts):
        start = sum(counts[:i])
        rows.append(apply(movement.pad, flat[start : start + count], (0, width - count)))
    return apply(movement.stack, rows)


@_layer(aten="embedding_bag")
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or max of the rows of weight that each bag names: a row [B, N] of input, or
    what lies between its offset and the next one. An empty bag gives 0."""
    if mode not in ("sum", "mean", "max"):
        raise TensorError(f'mode is "sum", "mean" or "max", got {mode!r}')
    if max_norm is not None or scale_grad_by_freq:
        raise TensorError("embedding_bag has no max_norm and no scale_grad_by_freq")
    if sparse:
        raise TensorError("gradients are dense here; leave sparse=True out")
    if per_sample_weights is not None and mode != "sum":
        raise TensorError('per_sample_weights are for mode "sum"')
    if input.ndim == 2:
        bags, size = input.shape
        bag = repeat_interleave(arange(bags, device=input.device), size)
        flat = input.reshape(-1)
    elif offsets is None:
        raise TensorError("embedding_bag of one axis takes offsets")
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        flat, bags = input, starts.shape[0]
        number = arange(flat.shape[0], device=input.device).to(starts.dtype)
        bag = apply(sort.searchsorted, starts, number, right=True) - 1
    rows = apply(index.embedding, flat, weight)
    counts = zeros(bags, dtype=weight.dtype, device=weight.device)
    kept = flat.new_ones(flat.shape[0]).to(weight.dtype)
    if padding_idx is not None:
        kept = (flat != padding_idx % weight.shape[0]).to(weight.dtype)
    counts = counts.index_add(0, bag, kept)
    made = zeros(bags, weight.shape[1], dtype=weight.dtype, device=weight.device)
    if mode == "max":
        if padding_idx is not None:
            rows = where(kept.unsqueeze(1) > 0, rows, -math.inf)
        best = (made - math.inf).index_reduce(0, bag, rows, "amax")
        return where(counts.unsqueeze(1) > 0, best, 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    total = made.index_add(0, bag, rows * kept.unsqueeze(1))
    return total / counts.clamp(min=1).unsqueeze(1) if mode == "mean" else total


def _unpool(d: int) -> None:
    def max_unpool(
        input: Tensor,
        indices: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor:
        def each(value: Any) -> list[int]:
            return [value] * d if isinstance(value, int) else list(value)

        sizes = zip(
            input.shape[-d:], each(kernel_size), each(stride or kernel_size), each(padding),
            strict=True,
        )  # fmt: skip
        planes = [(n - 1) * step - 2 * pad + k for n, k, step, pad in sizes]
        planes = planes if output_size is None else list(output_size)[-d:]
        lead = input.shape[:-d]
        flat = zeros(math.prod(lead), math.prod(planes), dtype=input.dtype, device=input.device)
        rows = math.prod(lead), math.prod(input.shape[-d:])
        placed = flat.scatter(1, indices.reshape(rows), input.reshape(rows))
        return placed.reshape(*lead, *planes)

    max_unpool.__doc__ = (
        f"The elements of max_pool{d}d at the places where they were, and 0 elsewhere."
    )
    _layer(aten=f"max_unpool{d}d", name=f"max_unpool{d}d")(max_unpool)


for _d in (1, 2, 3):
    _unpool(_d)


@_layer(aten="")
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for a distance d; with swap the
    nearer of two distances to negative."""

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return (distance_function or partial(apply, loss.pairwise_distance))(a, b)

    near, away = distance(anchor, positive), distance(anchor, negative)
    if swap:
        away = away.minimum(distance(positive, negative))
    return _reduced((near - away + margin).clamp(min=0), reduction)


@_layer(aten="")
def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """interpolate, under its older name."""
    return apply(resample.interpolate, input, size, scale_factor, mode, align_corners)
