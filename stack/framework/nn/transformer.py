"""Attention with several heads, and the encoders and decoders made of it: Vaswani et al.,
https://arxiv.org/abs/1706.03762."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import full, zeros
from stack.framework.functions import where
from stack.framework.nn import init
from stack.framework.nn.containers import ModuleList
from stack.framework.nn.layers import Linear
from stack.framework.nn.module import Module, Parameter
from stack.framework.nn.norms import LayerNorm
from stack.framework.nn.rows import Dropout
from stack.framework.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask that is added to scores: -inf where a bool one is True."""
    if mask.dtype is not DType.BOOL:
        return mask
    zero = zeros(*mask.shape, dtype=like.dtype, device=like.device)
    return where(mask, -math.inf, zero)


class MultiheadAttention(Module):
    """Attention of query [L, N, E] to key and value [S, N, E] with num_heads heads; batch_first
    exchanges the first two axes; without N they are one sequence.

    Gives the output and, with need_weights, the weights [N, L, S], averaged over the heads or [N,
    heads, L, S]. A bool mask is True where attention is forbidden; another one is added. The
    options add_bias_kv and add_zero_attn are not here.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if add_bias_kv or add_zero_attn:
            raise NotImplementedError("MultiheadAttention has no add_bias_kv and no add_zero_attn")
        if embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide embed_dim {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim, self.batch_first = embed_dim // num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        kind = dtype or DType.F32

        def made(*shape: int) -> Parameter:
            return Parameter(zeros(*shape, dtype=kind, device=device))

        same = self.kdim == self.vdim == embed_dim
        self.in_proj_weight = made(3 * embed_dim, embed_dim) if same else None
        self.q_proj_weight = None if same else made(embed_dim, embed_dim)
        self.k_proj_weight = None if same else made(embed_dim, self.kdim)
        self.v_proj_weight = None if same else made(embed_dim, self.vdim)
        self.in_proj_bias = made(3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        for name, p in self.named_parameters():
            if name.endswith("proj_weight"):
                init.xavier_uniform_(p)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            weights = list(self.in_proj_weight.chunk(3))
        else:
            each = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = [w for w in each if w is not None]
        own = self.in_proj_bias
        biases: list[Tensor | None] = [None] * 3 if own is None else list(own.chunk(3))
        return [
            F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)
        ]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask, which must be given, too")
        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        n, length, width = query.shape
        q, k, v = (
            x.reshape(n, x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)
            for x in self._projected(query, key, value)
        )
        mask = None if attn_mask is None else _added(attn_mask, q)
        if mask is not None and mask.ndim == 3:
            mask = mask.reshape(n, self.num_heads, length, -1)
        if key_padding_mask is not None:
            padding = _added(key_padding_mask, q).reshape(n, 1, 1, -1)
            mask = padding if mask is None else mask + padding
        p = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(self.head_dim))
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            y = F.dropout(weights, p) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, p)
        out: Tensor = self.out_proj(y.transpose(1, 2).reshape(n, length, width))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    if callable(given):
        return given
    if given not in ("relu", "gelu"):
        raise ValueError(f'activation is "relu", "gelu" or a function, got {given!r}')
    found: Callable[[Tensor], Tensor] = getattr(F, given)
    return found


class TransformerEncoderLayer(Module):
    """Attention to itself and two linear layers, each added to its input and normalised: before
    with norm_first, else behind."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            masks = src_key_padding_mask, False, src_mask, True, is_causal
            y = self.self_attn(x, x, x, *masks)[0]
            out: Tensor = self.dropout1(y)
            return out

        def feed(x: Tensor) -> Tensor:
            hidden = self.dropout(self.activation(self.linear1(x)))
            out: Tensor = self.dropout2(self.linear2(hidden))
            return out

        x: Tensor = src
        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed(self.norm2(x))
        x = self.norm1(x + attend(x))
        out: Tensor = self.norm2(x + feed(x))
        return out


class TransformerDecoderLayer(Module):
    """An encoder layer with attention to the memory between its two parts."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        for name in ("self_attn", "multihead_attn"):
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
            )
            setattr(self, name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        for i in (1, 2, 3):
            norm = LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)
            setattr(self, f"norm{i}", norm)
        for i in (1, 2, 3):
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            masks = tgt_key_padding_mask, False, tgt_mask, True, tgt_is_causal
            y = self.self_attn(x, x, x, *masks)[0]
            out: Tensor = self.dropout1(y)
            return out

        def remember(x: Tensor) -> Tensor:
            masks = memory_key_padding_mask, False, memory_mask, True, memory_is_causal
            y = self.multihead_attn(x, memory, memory, *masks)[0]
            out: Tensor = self.dropout2(y)
            return out

        def feed(x: Tensor) -> Tensor:
            hidden = self.dropout(self.activation(self.linear1(x)))
            out: Tensor = self.dropout3(self.linear2(hidden))
            return out

        x: Tensor = tgt
        parts = ((attend, self.norm1), (remember, self.norm2), (feed, self.norm3))
        for part, norm in parts:
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after the other, and a norm."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList(deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(
                x,
                src_mask=mask,
                is_causal=bool(is_causal),
                src_key_padding_mask=src_key_padding_mask,
            )
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Copies of a decoder layer, one after the other, and a norm."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(deepcopy(decoder_layer) for _ in range(num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder of the source and a decoder of the target, each with a norm behind."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        sizes = d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps
        ways = batch_first, norm_first, bias, device, dtype

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*sizes, *ways), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*sizes, *ways), num_decoder_layers, norm()
        )
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: str | None = None, dtype: DType | None = None
    ) -> Tensor:
        """[sz, sz]: -inf above the diagonal, 0 elsewhere."""
        return full((sz, sz), -math.inf, dtype=dtype or DType.F32, device=device).triu(1)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        out: Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return out
