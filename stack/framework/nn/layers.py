"""Layers that learn: products, tables, attention."""

from __future__ import annotations

import math
from typing import Self

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import full, zeros
from stack.framework.functions import where
from stack.framework.modes import no_grad
from stack.framework.nn import init
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor


def _parameter(*size: int, dtype: DType | None, device: str | None) -> Parameter:
    return Parameter(zeros(*size, dtype=dtype or DType.F32, device=device))


class Linear(Module):
    """x @ weight.T + bias for x[..., in_features]."""

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _parameter(out_features, in_features, dtype=dtype, device=device)
        self.bias = _parameter(out_features, dtype=dtype, device=device) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both uniformly within +-1 / sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(self.weight.shape[1], 1))
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}"


class Bilinear(Module):
    """The sum over i and j of x1[..., i] * weight[o, i, j] * x2[..., j], plus bias, for each
    output o."""

    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        self.weight = _parameter(
            out_features, in1_features, in2_features, dtype=dtype, device=device
        )
        self.bias = _parameter(out_features, dtype=dtype, device=device) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both uniformly within +-1 / sqrt(in1_features)."""
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        outputs, first, second = self.weight.shape
        rows = input1 @ self.weight.permute(1, 0, 2).reshape(first, outputs * second)
        pairs = rows.reshape(*rows.shape[:-1], outputs, second) * input2.unsqueeze(-2)
        return pairs.sum(-1) if self.bias is None else pairs.sum(-1) + self.bias


class Embedding(Module):
    """The rows of a table at integers in [0, num_embeddings). The row `padding_idx` begins as 0 and
    gathers no gradient."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise NotImplementedError(
                "Embedding has no max_norm, scale_grad_by_freq or sparse gradients; leave them out"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            size = num_embeddings, embedding_dim
            self.weight = _parameter(*size, dtype=dtype, device=device)
            self.reset_parameters()
        else:
            self.weight = Parameter(_weight)
        self.weight.requires_grad_(not _freeze)

    def reset_parameters(self) -> None:
        """Draw the table from the normal distribution, but for the padding's row of zeros."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Self:
        """A layer with this table, held fixed or not."""
        rows, width = embeddings.shape
        return cls(rows, width, padding_idx, _weight=embeddings, _freeze=freeze)

    def forward(self, input: Tensor) -> Tensor:
        rows = F.embedding(input, self.weight)
        if self.padding_idx is None:
            return rows
        fixed = (input == self.padding_idx).unsqueeze(-1)
        return where(fixed, rows.detach(), rows)

    def extra_repr(self) -> str:
        shown = f"{self.num_embeddings}, {self.embedding_dim}"
        return shown if self.padding_idx is None else f"{shown}, padding_idx={self.padding_idx}"


class EmbeddingBag(Module):
    """`functional.embedding_bag` with a learned weight [num_embeddings, embedding_dim]."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise NotImplementedError(
                "EmbeddingBag has no max_norm, scale_grad_by_freq or sparse gradients; leave them "
                "out"
            )
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset, self.padding_idx = include_last_offset, padding_idx
        made = _parameter(num_embeddings, embedding_dim, dtype=dtype, device=device)
        self.weight = made if _weight is None else Parameter(_weight)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from the normal distribution; the row of padding_idx is 0."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode}"


class PReLU(Module):
    """x where it is positive, else weight * x, with one weight or one for each channel, axis 1."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(
            full((num_parameters,), init, dtype=dtype or DType.F32, device=device)
        )

    def forward(self, input: Tensor) -> Tensor:
        behind = (1,) * (input.ndim - 2)
        slope = self.weight.reshape(-1, *behind) if self.num_parameters > 1 else self.weight
        return where(input > 0, input, slope * input)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class CausalSelfAttention(Module):
    """Multi-head attention of x[batch, time, embed_dim] to itself, each position to itself and
    those before.

    `qkv` makes queries, keys and values in one product; `proj` mixes the heads.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        dropout: float = 0.0,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide embed_dim {embed_dim}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = Linear(embed_dim, 3 * embed_dim, bias, device, dtype)
        self.proj = Linear(embed_dim, embed_dim, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.qkv(x).reshape(batch, time, 3, self.num_heads, width // self.num_heads)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(batch, time, width))
        return out

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, dropout={self.dropout}"
