"""Worker: training steps of GPT-2 by our own framework: `python -m benchmarks.our_gpt2 DTYPE`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from benchmarks import gpt2
from benchmarks.machine import ROOT
from benchmarks.serving import serve

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig

import stack.framework as ht
from stack.framework import nn, optim
from stack.runtime import engine_for

DEVICE = "cpu:0"


def prepare() -> Callable[[], float]:
    dtype = sys.argv[1]
    ht.manual_seed(0)
    model = GPT(GPTConfig(gpt2.LAYERS, gpt2.WIDTH, gpt2.HEADS, gpt2.PLACES, gpt2.VOCABULARY))
    model.head.weight = model.token.weight
    optimizer = optim.AdamW(model.parameters(), lr=gpt2.RATE, weight_decay=gpt2.WEIGHT_DECAY)

    def train(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        with nullcontext() if dtype == "float32" else ht.autocast(getattr(ht, dtype)):
            loss = model.loss(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP)
        optimizer.step()
        return loss.detach()

    step, batch = ht.jit(train), gpt2.batch()
    return lambda: float(step(*batch).item())


def counts() -> Mapping[str, int]:
    """The most memory that the process had, and that the device counted."""
    return {
        "resident_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_nbytes": engine_for(DEVICE).device.stats("").peak_nbytes,
    }


if __name__ == "__main__":
    ht.set_default_device(DEVICE)
    serve(prepare, counts)
