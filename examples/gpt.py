"""A small GPT: pre-norm transformer blocks over bytes, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import stack.framework as ht
from stack.framework import nn
from stack.framework.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """The model's sizes. `width` is a multiple of `heads`. With `experts` each block has a mixture
    of so many networks, of which a token takes two, instead of one."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    vocabulary: int = 256
    dropout: float = 0.0
    experts: int = 0


BALANCE = 0.01
Z = 0.001
"""What a mixture's losses count in that of the model."""


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and what is before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_BTC: ht.Tensor) -> ht.Tensor:
        B, T, C = x_BTC.shape
        qkv = self.qkv(x_BTC).reshape(B, T, 3, self.heads, C // self.heads)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y_BHTD = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y_BHTD.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """Attention and a feed-forward network, each added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.mixture = None
        if config.experts:
            self.mixture = nn.MixtureOfExperts(config.width, 4 * config.width, config.experts)
        else:
            self.up = nn.Linear(config.width, 4 * config.width)
            self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x_BTC: ht.Tensor) -> tuple[ht.Tensor, ht.Tensor | float]:
        """The stream, and what a mixture adds to the loss."""
        x_BTC = x_BTC + self.dropout(self.attention(self.norm1(x_BTC)))
        if self.mixture is not None:
            y_BTC, routed = self.mixture(self.norm2(x_BTC))
            return x_BTC + self.dropout(y_BTC), BALANCE * routed.balance + Z * routed.z
        hidden = F.gelu(self.up(self.norm2(x_BTC)), approximate="tanh")
        return x_BTC + self.dropout(self.down(hidden)), 0.0


class GPT(nn.Module):
    """Logits (B, T, vocabulary) for byte indices (B, T), T at most `config.context`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self._init_weights()

    def _init_weights(self) -> None:
        """The GPT-2 initialisation: normal weights, residual projections scaled by depth."""
        residual = 0.02 / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                ends = "out.weight", "down.weight", "mixture.down"
                std = residual if name.endswith(ends) else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens_BT: ht.Tensor) -> ht.Tensor:
        return self._run(tokens_BT)[0]

    def _run(self, tokens_BT: ht.Tensor) -> tuple[ht.Tensor, ht.Tensor | float]:
        T = tokens_BT.shape[1]
        x_BTC = self.token(tokens_BT) + self.position.weight[:T]
        added: ht.Tensor | float = 0.0
        for block in self.blocks:
            x_BTC, more = block(x_BTC)
            added = added + more
        return self.head(self.norm(x_BTC)), added

    def loss(self, tokens_BT: ht.Tensor, targets_BT: ht.Tensor) -> ht.Tensor:
        """Mean cross-entropy in nats per byte; in training with the losses of mixtures."""
        mixed = self.training and self.config.experts
        logits, added = self._run(tokens_BT) if mixed else (self(tokens_BT), 0.0)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets_BT.reshape(-1))
        return loss + added if mixed else loss


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Optimizer groups: weight decay for matrices, none for vectors."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
