"""Scaled dot-product attention as one operator, and one for its gradients, in the place of the
forty that torch's formula has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hal.tile.node import Node
from stack.bridge.torch.kernels import call
from stack.bridge.torch.rows import ROWS, pulled, row
from stack.framework.expr.attention import attended

_library = torch.library.Library("hal", "DEF")
_HOW = "Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, float? scale, bool shared"
_library.define(f"attention({_HOW}) -> Tensor")
_library.define(f"attention_backward(Tensor d, {_HOW}) -> (Tensor, Tensor, Tensor)")
_kept: list[torch.library.Library] = []


@row("hal::attention", pointwise=True)
def _attention(
    q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: float | None, shared: bool
) -> Node:
    return attended(q, k, v, mask, causal, scale, shared)


@row("hal::attention_backward")
def _attention_backward(
    d: Node, q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: float | None,
    shared: bool,
) -> list[Node | None]:  # fmt: skip
    return pulled(lambda q, k, v: attended(q, k, v, mask, causal, scale, shared), [q, k, v], d)


def _shape(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
    same = q.shape[-1] == v.shape[-1]
    return torch.empty_like(q) if same else q.new_empty((*q.shape[:-1], v.shape[-1]))


def _shapes(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Any:
    return tuple([torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        ctx.save_for_backward(*args[:4])
        ctx.how = args[4:]
        made: Tensor = torch.ops.hal.attention(*args)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, mask = ctx.saved_tensors
        how = ctx.how
        if torch.is_grad_enabled():  # somebody wants the gradients of the gradients
            needed = ctx.needs_input_grad[:3]
            q, k, v = parts = [x.view_as(x) for x in (q, k, v)]  # which may be one tensor
            y = _by_formula(q, k, v, mask, 0.0, *how)
            wanted = [x for x, is_one in zip(parts, needed, strict=True) if is_one]
            found = iter(torch.autograd.grad(y, wanted, grads[0], create_graph=True))
            made = [next(found) if is_one else None for is_one in needed]
        else:
            made = torch.ops.hal.attention_backward(grads[0], q, k, v, mask, *how)
        return (*made, None, None, None, None)


def _by_formula(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool,
    scale: float | None, shared: bool,
) -> Tensor:  # fmt: skip
    made: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout, causal, scale=scale, enable_gqa=shared
    )[0]
    return made


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """What torch calls for `scaled_dot_product_attention`. Its own formula serves what has dropout,
    a mask that learns, or no elements, and refuses shapes that do not meet."""
    args = (query, key, value, attn_mask)
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    fits = (
        query.dim() >= 2 and query.dim() == key.dim() == value.dim()
        and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
        and key.shape[:-2] == value.shape[:-2]
        and (enable_gqa or query.shape[:-2] == key.shape[:-2])
        and (attn_mask is None or not (is_causal or attn_mask.requires_grad))
        and all(x is None or (x.device == query.device and x.numel()) for x in args)
    )  # fmt: skip
    if dropout_p or not fits:
        return _by_formula(*args, dropout_p, is_causal, scale, enable_gqa)
    how = (is_causal, scale, enable_gqa)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    made: Tensor = (_Attention.apply if learns else torch.ops.hal.attention)(*args, *how)
    return made


def install() -> None:
    """Let torch call this for tensors of the device."""
    own = torch.library.Library("aten", "IMPL")
    _kept.append(own)
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        own.impl("scaled_dot_product_attention", attention, key)
    forward, backward = ROWS["hal::attention"], ROWS["hal::attention_backward"]
    for name, kernel, meta in (
        ("attention", lambda *args: call(forward, args, {})[0], _shape),
        ("attention_backward", lambda *args: tuple(call(backward, args, {})), _shapes),
    ):
        _library.impl(name, kernel, "PrivateUse1")
        _library.impl(name, meta, "Meta")
