"""Layers that learn, and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import ones, zeros
from stack.framework.nn import init
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor


def _parameter(*size: int, dtype: DType, device: str | None) -> Parameter:
    return Parameter(zeros(*size, dtype=dtype, device=device))


class Linear(Module):
    """x @ weight.T + bias for x[..., in_features]."""

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType = DType.F32,
    ) -> None:
        super().__init__()
        self.weight = _parameter(out_features, in_features, dtype=dtype, device=device)
        self.bias = _parameter(out_features, dtype=dtype, device=device) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both uniformly within +-1 / sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(self.weight.shape[1], 1))
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"in_features={inputs}, out_features={outputs}, bias={self.bias is not None}"


class Embedding(Module):
    """The rows of a table at integers in [0, num_embeddings)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: str | None = None,
        dtype: DType = DType.F32,
    ) -> None:
        super().__init__()
        self.weight = _parameter(num_embeddings, embedding_dim, dtype=dtype, device=device)
        init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.weight.shape))


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: DType = DType.F32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        size = self.normalized_shape
        affine = elementwise_affine
        self.weight = Parameter(ones(size, dtype=dtype, device=device)) if affine else None
        self.bias = Parameter(zeros(size, dtype=dtype, device=device)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """x / sqrt(mean(x * x) + eps) * weight over the last axes."""

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: DType = DType.F32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        made = ones(self.normalized_shape, dtype=dtype, device=device)
        self.weight = Parameter(made) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class Dropout(Module):
    """In training, elements become 0 with probability p and the others are scaled by 1 / (1 -
    p)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


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
        dtype: DType = DType.F32,
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
