"""Worker: training steps of the GPT in examples/gpt.py.

`python -m benchmarks.our_gpt DTYPE [DEVICE]`, without a device on the first processor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext

from benchmarks import gpt
from benchmarks.machine import ROOT
from benchmarks.serving import serve

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig, decay_groups

import stack.framework as ht
from stack.framework import optim
from stack.runtime import engine_for

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu:0"


def prepare() -> Callable[[], float]:
    dtype = sys.argv[1]
    ht.manual_seed(0)
    model = GPT(GPTConfig(gpt.LAYERS, gpt.WIDTH, gpt.HEADS, gpt.CONTEXT, gpt.VOCABULARY))
    groups = decay_groups(model, gpt.WEIGHT_DECAY)
    optimizer = optim.AdamW(groups, lr=gpt.RATE, betas=gpt.BETAS)

    def train(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        with nullcontext() if dtype == "float32" else ht.autocast(getattr(ht, dtype)):
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, batch = ht.jit(train), gpt.batch()
    return lambda: float(step(*batch).item())


def counts() -> dict[str, int]:
    """Memory as the device counts it, and what the largest plan needs."""
    engine = engine_for(DEVICE)
    stats = engine.device.stats("")
    return {
        "peak_nbytes": stats.peak_nbytes,
        "allocations": stats.allocations,
        "live_nbytes": max(plan.live_nbytes for plan in engine.plans()),
        "in_use_nbytes": engine.pool.stats().allocated_nbytes,
        "fallbacks": engine.fallbacks.total(),
    }


if __name__ == "__main__":
    ht.set_default_device(DEVICE)
    serve(prepare, counts)
