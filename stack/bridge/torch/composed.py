"""Operators that torch has as one kernel for each of its devices, without a formula: here in terms
of other operators of this device."""

from __future__ import annotations

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


KERNELS: dict[str, Any] = {
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
