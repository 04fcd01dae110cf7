"""Operators that torch has as one kernel for each of its devices, without a formula: here in terms
of other operators of this device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Bags of embeddings

_SUM, _MEAN, _MAX = range(3)


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = _SUM, sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The bags; of each index its bag; the indices that count in each bag; for the maximum the
    index that gave it."""
    starts = offsets[:-1] if include_last_offset else offsets
    bags = starts.numel()
    places = torch.arange(indices.numel(), device=weight.device)
    bag_of = torch.searchsorted(starts.contiguous(), places, right=True) - 1
    bag_of = bag_of.to(indices.dtype)
    counted = indices != padding_idx
    sizes = indices.new_zeros(bags).index_add(0, bag_of, counted.to(indices.dtype))
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    most = indices.new_empty(0)
    if mode != _MAX:
        made = weight.new_zeros(bags, weight.shape[1])
        made = made.index_add(0, bag_of, rows * counted.unsqueeze(1).to(rows.dtype))
        if mode == _MEAN:
            made = made / sizes.clamp(min=1).unsqueeze(1).to(made.dtype)
        return made, bag_of, sizes, most
    low = weight.new_full((bags, weight.shape[1]), -torch.inf)
    wide = bag_of.unsqueeze(1).expand(rows.shape)
    rows = rows.masked_fill(~counted.unsqueeze(1), -torch.inf)
    high = low.scatter_reduce(0, wide, rows, "amax")
    # The first index of a bag that gives the maximum of a column has it.
    first = torch.where(rows == high.index_select(0, bag_of), places.unsqueeze(1), places.numel())
    at = first.new_full(high.shape, places.numel()).scatter_reduce(0, wide, first, "amin")
    some = (sizes > 0).unsqueeze(1)
    most = torch.cat([indices, indices.new_full((1,), -1)])[at]
    return torch.where(some, high, 0.0), bag_of, sizes, most


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, most: Tensor, count: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient by the weights."""
    made = grad.new_zeros(count, grad.shape[1])
    if mode == _MAX:
        kept = grad.masked_fill(most < 0, 0.0)
        return made.scatter_add(0, most.clamp(min=0), kept)
    rows = grad.index_select(0, offset2bag)
    if mode == _MEAN:
        rows = rows / bag_size.index_select(0, offset2bag).unsqueeze(1).to(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        often = torch.bincount(indices, minlength=count).index_select(0, indices)
        rows = rows / often.unsqueeze(1).to(rows.dtype)
    rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0)
    return made.index_add(0, indices, rows)


def _bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor,
    most: Tensor, count: int, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    if sparse:
        raise NotImplementedError(f"embedding_bag with sparse=True on {grad.device}: take False")
    return embedding_bag_backward(
        grad, indices, offset2bag, bag_size, most, count, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


def bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient by the weights of samples."""
    rows = weight.index_select(0, indices) * grad.index_select(0, offset2bag)
    return torch.where(indices != padding_idx, rows.sum(1), 0.0)


# What transformers of torch.nn call where nothing learns

_PLACES, _KEYS = 0, 1
"""Kinds of masks: [places, places], [batch, places]; others are as the weights."""


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and the weights if they are needed; batches first."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    open_ = None
    if mask is not None:
        shape = {_PLACES: (1, 1, *mask.shape), _KEYS: (mask.shape[0], 1, 1, mask.shape[-1])}
        open_ = mask.view(shape.get(-1 if mask_type is None else mask_type, mask.shape))
        open_ = ~open_ if open_.dtype is torch.bool else open_
    weights = query.new_empty(0)
    if need_weights:
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        if open_ is not None and open_.dtype is torch.bool:
            scores = scores.masked_fill(~open_, -torch.inf)
        elif open_ is not None:
            scores = scores + open_
        weights = scores.softmax(-1)
        made = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        made = F.scaled_dot_product_attention(q, k, v, open_)
    return F.linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor, ffn_weight_1: Tensor,
    ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """A layer of `nn.TransformerEncoder`."""

    def attend(x: Tensor) -> Tensor:
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            need_weights=False, mask_type=mask_type,
        )[0]  # fmt: skip

    def forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, weight_1, bias_1))
        return x + forward(norm(x, weight_2, bias_2))
    x = norm(src + attend(src), weight_1, bias_1)
    return norm(x + forward(x), weight_2, bias_2)


# Least squares


def least_squares(
    A: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The solution of the least norm, the squares of what remains, ranks, and singular values: of
    each what torch's CPU device gives for the driver, the others empty."""
    if A.dim() < 2 or b.dim() < 1:
        raise RuntimeError(f"linalg.lstsq: {list(A.shape)} and {list(b.shape)}: needs matrices")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(f"linalg.lstsq: driver {driver!r}: gels, gelsy, gelsd or gelss")
    is_vector = b.dim() == 1 or (b.dim() == A.dim() - 1 and b.shape == A.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    rows, columns = A.shape[-2:]
    none = A.new_empty(0)
    found = torch.linalg.pinv(A, rtol=rcond) @ right
    ranks, values, rest = none.to(torch.int64), none, none
    full = True
    if driver != "gels":
        ranks = torch.linalg.matrix_rank(A, rtol=rcond)
        full = rows <= columns or bool((ranks == columns).all())
    if driver in ("gelsd", "gelss"):
        values = torch.linalg.svdvals(A)
    if rows > columns and full and driver not in (None, "gelsy"):
        rest = (A @ found - right).square().sum(-2)
    return found.squeeze(-1) if is_vector else found, rest, ranks, values


# Segments of an axis, given by their lengths or ends


def _segments(lengths: Tensor | None, offsets: Tensor | None, data: Tensor, axis: int) -> Any:
    """Which places are in each segment, bool[..., segments, places, 1...], and the lengths, as
    [..., segments, 1...]."""
    if offsets is None:
        assert lengths is not None, "torch asks for one of both"
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    places = torch.arange(data.shape[axis], device=data.device)
    inside = (places >= starts.unsqueeze(-1)) & (places < ends.unsqueeze(-1))
    after = [1] * (data.dim() - axis - 1)
    counts = (ends - starts).view(*starts.shape, *after)
    return inside.view(*inside.shape, *after), counts


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}


def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Tensor:  # fmt: skip
    inside, counts = _segments(lengths, offsets, data, axis)
    first = _NEUTRAL[reduce] if initial is None else initial
    parts = torch.where(inside, data.unsqueeze(axis), _NEUTRAL[reduce])
    along = axis + 1
    if reduce in ("sum", "mean"):
        made = parts.sum(along) + first
    elif reduce == "prod":
        made = parts.prod(along) * first
    else:
        made = parts.amax(along) if reduce == "max" else parts.amin(along)
        made = made.clamp(min=first) if reduce == "max" else made.clamp(max=first)
    if reduce == "mean":
        empty = torch.nan if initial is None else initial
        made = torch.where(counts > 0, made / counts.clamp(min=1), empty)
    return made


def segment_reduce_backward(
    grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: Any = None,
) -> Tensor:  # fmt: skip
    """The gradient by the data; of equal extremes each has an equal share."""
    inside, counts = _segments(lengths, offsets, data, axis)
    wide, along = data.unsqueeze(axis), axis + 1
    share = grad.unsqueeze(along)
    if reduce == "mean":
        share = share / counts.clamp(min=1).unsqueeze(along)
    elif reduce in ("max", "min"):
        hit = inside & (wide == output.unsqueeze(along))
        share = torch.where(hit, share / hit.sum(along, keepdim=True).clamp(min=1), 0.0)
    elif reduce == "prod":
        is_zero = inside & (wide == 0)
        zeros = is_zero.sum(along, keepdim=True)
        others = torch.where(inside & ~is_zero, wide, 1.0).prod(along, keepdim=True)
        others = others * (1.0 if initial is None else initial)
        rest = others / torch.where(is_zero, 1.0, wide)
        kept = (zeros == 0) | ((zeros == 1) & is_zero)
        share = share * torch.where(kept, rest, 0.0)
    return torch.where(inside, share, 0.0).sum(axis)


# Rows of different lengths, one behind the other (`torch.nested` in its layout `jagged`)


def padded(
    values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding_value: float = 0
) -> Tensor:
    """[rows, longest, ...]: each row from its start on, and padding behind its end."""
    starts, ends = (_only(offsets)[at].unsqueeze(1) for at in (slice(-1), slice(1, None)))
    at = starts + torch.arange(max_lengths[0], device=values.device)
    inside = (at < ends).view(*at.shape, *[1] * (values.dim() - 1))
    if not len(values):
        return values.new_full((*at.shape, *values.shape[1:]), padding_value)
    return torch.where(inside, values[torch.where(at < ends, at, 0)], padding_value)


def unpadded(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:
    """[total, ...]: of [rows, longest, ...] what lies within the rows' lengths."""
    ends = _only(offsets)
    count = int(ends[-1].item()) if total_L is None else total_L
    at = torch.arange(count, dtype=ends.dtype, device=dense.device)
    row = torch.searchsorted(ends, at, right=True) - 1
    place = at - ends[row]
    inside = (place < dense.shape[1]).view(-1, *[1] * (dense.dim() - 2))
    return torch.where(inside, dense[row, place.clamp(max=dense.shape[1] - 1)], 0)


def _only(offsets: Sequence[Tensor]) -> Tensor:
    if len(offsets) != 1:
        raise NotImplementedError(f"tensors with {len(offsets)} axes of different lengths: take 1")
    return offsets[0]


# Histograms


def _counted(
    points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool
) -> Tensor:
    """How many of the points [number, axes], or how much of their weight, lie in each box."""
    at = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    inside = torch.ones_like(at, dtype=torch.bool)
    for row, bins in zip(points.unbind(1), edges, strict=True):
        count = bins.numel() - 1
        place = torch.searchsorted(bins, row.contiguous(), right=True) - 1
        place = torch.where(row == bins[-1], count - 1, place)
        inside = inside & (row >= bins[0]) & (row <= bins[-1])
        at = at * count + place
    each = torch.ones_like(points[:, 0]) if weight is None else weight.reshape(-1)
    sizes = [bins.numel() - 1 for bins in edges]
    made = points.new_zeros(math.prod(sizes))
    made = made.index_add(0, torch.where(inside, at, 0), torch.where(inside, each, 0.0))
    made = made.view(sizes)
    if density:
        made = made / made.sum()
        for axis, bins in enumerate(edges):
            made = made / bins.diff().view(-1, *[1] * (len(edges) - axis - 1))
    return made


def _edges(x: Tensor, count: int, low: float | None, high: float | None) -> Tensor:
    """Equal distances, from the least element to the greatest without a range."""
    if low is None or high is None:
        low, high = (x.min().item(), x.max().item()) if x.numel() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return torch.linspace(low, high, count + 1, dtype=x.dtype, device=x.device)


def histogram(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counted(x.reshape(-1, 1), [bins], weight, density), bins


def histogram_of_count(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    edges = _edges(x, bins, *((None, None) if range is None else range))
    return histogram(x, edges, weight=weight, density=density)


def edges_of_axes(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> list[Tensor]:  # fmt: skip
    """For `histogramdd`, of the last axis of x."""
    ends = [None] * (2 * len(bins)) if range is None else list(range)
    columns = x.reshape(-1, x.shape[-1]).unbind(1)
    return [_edges(c, n, ends[2 * i], ends[2 * i + 1]) for i, (c, n) in
            enumerate(zip(columns, bins, strict=True))]  # fmt: skip


def histogram_of_axes(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counted(x.reshape(-1, x.shape[-1]), bins, weight, density)


def histogram_of_counts(x: Tensor, bins: Sequence[int], **options: Any) -> Tensor:
    given = {k: v for k, v in options.items() if k != "range"}
    return histogram_of_axes(x, edges_of_axes(x, bins, **options), **given)


# Pools of random places


def _random_starts(sample: Tensor, size: int, wanted: int, window: int) -> Tensor:
    """i64[..., wanted]: where windows begin, by Graham's sequence with a random first step."""
    last = size - window
    if wanted == 1:
        return torch.full((*sample.shape, 1), last, dtype=torch.int64, device=sample.device)
    step = last / (wanted - 1)
    first = sample.unsqueeze(-1)
    places = torch.arange(wanted - 1, device=sample.device)
    at = ((places + first) * step).trunc() - (first * step).trunc()
    end = torch.full_like(at[..., :1], last)
    return torch.cat([at, end], -1).to(torch.int64)


def _fractional(order: tuple[int, ...]) -> Any:
    """Of so many axes; `order` has of each axis the place of its random number."""
    d = len(order)

    def pool(
        x: Tensor, kernel_size: Any, output_size: Any, random_samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        batched = x if x.dim() == d + 2 else x.unsqueeze(0)
        at = torch.zeros(1, dtype=torch.int64, device=x.device)
        for i, (window, wanted) in enumerate(zip(kernel_size, output_size, strict=True)):
            size = batched.shape[2 + i]
            start = _random_starts(random_samples[..., order[i]], size, wanted, window)
            inner = start.unsqueeze(-1) + torch.arange(window, device=x.device)
            lead = [*start.shape[:2], *[wanted if j == i else 1 for j in range(d)]]
            inner = inner.view(*lead, *[window if j == i else 1 for j in range(d)])
            at = at * size + inner
        at = at.flatten(-d)
        flat = batched.flatten(2)
        values = flat.gather(2, at.flatten(2)).view(at.shape)
        best = values.argmax(-1, keepdim=True)
        made, places = (v.gather(-1, best).squeeze(-1) for v in (values, at))
        return (made, places) if x.dim() == d + 2 else (made[0], places[0])

    return pool


def fractional_backward(
    grad: Tensor, x: Tensor, kernel_size: Any, output_size: Any, indices: Tensor
) -> Tensor:
    d = len(output_size)
    row = x.new_zeros(x.shape).flatten(-d)
    return row.scatter_add(-1, indices.flatten(-d), grad.flatten(-d)).view(x.shape)


def embedding_renorm_(weight: Tensor, indices: Tensor, max_norm: float, kind: float) -> Tensor:
    """The rows that are looked up, made as short as they may be."""
    is_used = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    is_used = is_used.index_fill(0, indices.flatten(), True)
    norms = torch.linalg.vector_norm(weight, kind, 1)
    is_long = (is_used & (norms > max_norm)).unsqueeze(1)
    short = weight * (max_norm / (norms + 1e-7)).unsqueeze(1)
    return weight.copy_(torch.where(is_long, short, weight))


KERNELS: dict[str, Any] = {
    "embedding_renorm_": embedding_renorm_,
    **dict.fromkeys(("__lshift__.Scalar", "__lshift__.Tensor"), torch.bitwise_left_shift),
    **dict.fromkeys(("__rshift__.Scalar", "__rshift__.Tensor"), torch.bitwise_right_shift),
    "linalg_lstsq": least_squares,
    "segment_reduce": segment_reduce,
    "_jagged_to_padded_dense_forward": padded,
    "_padded_dense_to_jagged_forward": unpadded,
    "_segment_reduce_backward": segment_reduce_backward,
    "histogram.bins_tensor": histogram,
    "histogram.bin_ct": histogram_of_count,
    "_histogramdd_bin_edges": edges_of_axes,
    "_histogramdd_from_bin_cts": histogram_of_counts,
    "_histogramdd_from_bin_tensors": histogram_of_axes,
    "fractional_max_pool2d": _fractional((1, 0)),
    "fractional_max_pool2d_backward": fractional_backward,
    "fractional_max_pool3d": _fractional((0, 1, 2)),
    "fractional_max_pool3d_backward": fractional_backward,
    "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag,
    "_embedding_bag_backward": _bag_backward,
    "_embedding_bag_dense_backward": embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": bag_weights_backward,
    "_native_multi_head_attention": multi_head_attention,
    "_transformer_encoder_layer_fwd": encoder_layer,
    # Without nested tensors, padding is masked.
    "_nested_tensor_from_mask_left_aligned": lambda x, mask: False,
}
"""By operator."""
