"""A small Llama that learns a text by heart and writes it with a cache, on any device.

    python examples/generate.py --device cpu:0

RMSNorm, rotary positions, SwiGLU, four heads that share two of keys and values, trained on the
bytes of the Zen of Python. Generation reads the prompt at once, and then one byte a step: keys and
values of what was before are in a cache whose memory is there from the beginning, so every step is
the same plan. The picture shows the loss and what the model wrote.
"""

from __future__ import annotations

import codecs
import contextlib
import io

import numpy as np
import small
from matplotlib.figure import Figure

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.nn import functional as F

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13").encode()
CONTEXT = 192
"""How many bytes the model learns to see, and how many it writes, the prompt included."""
BATCH = 8
PROMPT = b"Beautiful is "
WIDTH, LAYERS, HEADS, SHARED = 64, 2, 4, 2
"""SHARED: heads of keys and values."""
HEAD = WIDTH // HEADS


Cache = tuple[ht.Tensor, ht.Tensor]
"""Keys and values (1, SHARED, CONTEXT, HEAD) of a layer, those of later positions zero."""


def rotate(x: ht.Tensor, at: ht.Tensor) -> ht.Tensor:
    """x (B, heads, T, HEAD) turned by its positions `at` (T,) (RoPE, Su et al. 2021)."""
    angles = at[:, None].float() * 1000.0 ** (-ht.arange(0, HEAD, 2).float() / HEAD)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)
    return ht.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward network, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * SHARED) * HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: ht.Tensor, at: ht.Tensor, cache: Cache | None) -> ht.Tensor:
        B, T, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, -1, HEAD).transpose(1, 2)
        q, k, v = heads.split([HEADS, SHARED, SHARED], dim=1)
        q, k = rotate(q, at), rotate(k, at)
        if cache is not None:
            k, v = (all_of.index_copy_(2, at, x) for all_of, x in zip(cache, (k, v), strict=True))
        mask = at[:, None] >= ht.arange(k.shape[2])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, WIDTH))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Logits (B, T, 256) for bytes (B, T) at positions `at` (T,)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(
        self, tokens: ht.Tensor, at: ht.Tensor, caches: list[Cache] | None = None
    ) -> ht.Tensor:
        x = self.token(tokens)
        for block, cache in zip(self.blocks, caches or [None] * LAYERS, strict=True):
            x = block(x, at, cache)
        return self.head(self.norm(x))


def write(model: Llama) -> bytes:
    """What the model writes behind PROMPT: always the byte that it takes for the likeliest."""
    size = 1, SHARED, CONTEXT, HEAD
    caches = [(ht.zeros(size), ht.zeros(size)) for _ in range(LAYERS)]

    @ht.jit
    def following(tokens: ht.Tensor, at: ht.Tensor) -> ht.Tensor:
        return model(tokens, at, caches)[:, -1].argmax(dim=-1)

    written = bytearray(PROMPT)
    read = 0
    with ht.no_grad():
        while len(written) < CONTEXT:
            tokens = ht.tensor([list(written[read:])])
            found = following(tokens, ht.arange(read, len(written)))
            read = len(written)
            written.append(found.item())
    return bytes(written)


def run(options: small.Options) -> None:
    text = ht.from_numpy(np.frombuffer(TEXT, np.uint8).astype(np.int64))
    model = Llama()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)

    @ht.jit
    def step() -> ht.Tensor:
        at = ht.arange(CONTEXT)
        window = text[ht.randint(0, len(text) - CONTEXT, (BATCH, 1)) + ht.arange(CONTEXT + 1)]
        logits = model(window[:, :-1], at)
        loss = F.cross_entropy(logits.reshape(-1, 256), window[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = small.train(options, step)
    written = write(model).decode("ascii", "replace")
    print(written)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(losses) + 1), losses)
    left.set(xlabel="step", ylabel="loss (nats per byte)")
    shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in written)
    style = {"family": "monospace", "fontsize": 7, "parse_math": False, "in_layout": False}
    right.text(0, 1, shown, va="top", **style)
    right.axis("off")
    small.save(figure, options)


if __name__ == "__main__":
    small.main(__doc__, 300, run)
