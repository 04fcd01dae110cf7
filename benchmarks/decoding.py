"""A GPT that writes a token at a time, in PyTorch's names: the same program for PyTorch and for
here. As a worker, `python -m benchmarks.decoding {ours,torch} MODEL {written,captured}`: a step is
some tokens, all from the first one on; captured, a token's program is compiled once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import gpt, gpt2
from benchmarks.serving import serve

CACHES = "grown", "preallocated", "masked"


@dataclass(frozen=True, slots=True)
class Model:
    """A GPT's sizes."""

    layers: int
    heads: int
    width: int
    vocabulary: int


MODELS = {
    "GPT of 10.9M": Model(gpt.LAYERS, gpt.HEADS, gpt.WIDTH, gpt.VOCABULARY),
    "GPT-2 of 124M": Model(gpt2.LAYERS, gpt2.HEADS, gpt2.WIDTH, gpt2.VOCABULARY),
}
SMALL = MODELS["GPT of 10.9M"]
WRITTEN = 64
"""Tokens of a worker's step."""


def decoder(
    lib: Any, cache: str, tokens: int, model: Model = SMALL, captured: bool = False
) -> Callable[[int], int]:
    """A function from the place of a token to the token: greedy, after a token 1 at place 0, with
    the keys and values of all before in a cache that is grown by `cat`, or written in place, and
    then read as far as it was written, or whole under a mask: this last one is `captured` by what
    compiles programs of each library. `tokens` are the most that it writes."""
    nn, F = lib.nn, lib.nn.functional
    lib.manual_seed(0)
    heads, wide = model.heads, model.width // model.heads
    embed, place = nn.Embedding(model.vocabulary, model.width), nn.Embedding(tokens, model.width)
    blocks = [
        nn.ModuleList(
            [
                *(nn.LayerNorm(model.width), nn.Linear(model.width, 3 * model.width)),
                *(nn.Linear(model.width, model.width), nn.LayerNorm(model.width)),
                *(nn.Linear(model.width, 4 * model.width), nn.Linear(4 * model.width, model.width)),
            ]
        )
        for _ in range(model.layers)
    ]
    norm, head = nn.LayerNorm(model.width), nn.Linear(model.width, model.vocabulary, bias=False)
    begin = 0 if cache == "grown" else tokens
    caches = [[lib.zeros(1, heads, begin, wide) for _ in range(2)] for _ in blocks]
    last = lib.tensor([[1]])

    def seen(held: list[Any], which: int, new: Any, at: Any) -> Any:
        if cache == "masked":
            return held[which].index_copy_(2, at, new)
        if cache == "grown":
            held[which] = lib.cat([held[which], new], 2)
            return held[which]
        held[which][:, :, at : at + 1] = new
        return held[which][:, :, : at + 1]

    def following(last: Any, at: Any) -> Any:
        masked = cache == "masked"
        with lib.no_grad():
            x = embed(last) + (place(at) if masked else place.weight[at : at + 1])
            mask = (lib.arange(tokens) <= at)[None] if masked else None
            for (norm1, qkv, out, norm2, up, down), held in zip(blocks, caches, strict=True):
                parts = qkv(norm1(x)).reshape(1, 1, 3, heads, wide)
                q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
                k, v = seen(held, 0, k, at), seen(held, 1, v, at)
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                x = x + out(y.transpose(1, 2).reshape(1, 1, model.width))
                x = x + down(F.gelu(up(norm2(x)), approximate="tanh"))
            return head(norm(x)).argmax(-1)

    if captured:
        following = lib.compile(following) if lib.__name__ == "torch" else lib.jit(following)

    def step(at: int) -> int:
        nonlocal last
        last = following(last, lib.tensor([at]) if cache == "masked" else at)
        return int(last.item())

    return step


def prepare() -> Callable[[], float]:
    library, name, how = sys.argv[1:]
    lib: Any
    if library == "ours":
        import stack.framework as ht  # noqa: PLC0415 - the other contender runs without it

        lib = ht
    else:
        import torch  # noqa: PLC0415 - the other contender runs without it

        lib = torch
    captured = how == "captured"
    cache = "masked" if captured else "preallocated"
    step = decoder(lib, cache, WRITTEN + 1, MODELS[name], captured)
    return lambda: float([step(at) for at in range(WRITTEN)][-1])


if __name__ == "__main__":
    serve(prepare)
