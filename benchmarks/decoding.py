"""A GPT that writes a token at a time, in PyTorch's names: the same program for PyTorch and for
here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import gpt

CACHES = "grown", "preallocated"


def decoder(lib: Any, cache: str, tokens: int) -> Callable[[int], int]:
    """A function from the place of a token to the token: greedy, after a token 1 at place 0, with
    the keys and values of all before in a cache that is grown by `cat`, or written in place.
    `tokens` are the most that it writes."""
    nn, F = lib.nn, lib.nn.functional
    lib.manual_seed(0)
    if hasattr(lib, "set_num_threads"):
        lib.set_num_threads(1)
    heads, wide = gpt.HEADS, gpt.WIDTH // gpt.HEADS
    embed, place = nn.Embedding(gpt.VOCABULARY, gpt.WIDTH), nn.Embedding(tokens, gpt.WIDTH)
    blocks = [
        nn.ModuleList(
            [
                *(nn.LayerNorm(gpt.WIDTH), nn.Linear(gpt.WIDTH, 3 * gpt.WIDTH)),
                *(nn.Linear(gpt.WIDTH, gpt.WIDTH), nn.LayerNorm(gpt.WIDTH)),
                *(nn.Linear(gpt.WIDTH, 4 * gpt.WIDTH), nn.Linear(4 * gpt.WIDTH, gpt.WIDTH)),
            ]
        )
        for _ in range(gpt.LAYERS)
    ]
    norm, head = nn.LayerNorm(gpt.WIDTH), nn.Linear(gpt.WIDTH, gpt.VOCABULARY, bias=False)
    begin = 0 if cache == "grown" else tokens
    caches = [[lib.zeros(1, heads, begin, wide) for _ in range(2)] for _ in blocks]
    last = lib.tensor([[1]])

    def seen(held: list[Any], which: int, new: Any, at: int) -> Any:
        if cache == "grown":
            held[which] = lib.cat([held[which], new], 2)
            return held[which]
        held[which][:, :, at : at + 1] = new
        return held[which][:, :, : at + 1]

    def step(at: int) -> int:
        nonlocal last
        with lib.no_grad():
            x = embed(last) + place.weight[at : at + 1]
            for (norm1, qkv, out, norm2, up, down), held in zip(blocks, caches, strict=True):
                parts = qkv(norm1(x)).reshape(1, 1, 3, heads, wide)
                q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
                k, v = seen(held, 0, k, at), seen(held, 1, v, at)
                y = F.scaled_dot_product_attention(q, k, v)
                x = x + out(y.transpose(1, 2).reshape(1, 1, gpt.WIDTH))
                x = x + down(F.gelu(up(norm2(x)), approximate="tanh"))
            last = head(norm(x)).argmax(-1)
        return int(last.item())

    return step
