"""The sizes of the GPT that is trained here and by the peer, and its batch."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

BATCH = int(os.environ.get("HAL_BENCH_BATCH", "8"))
CONTEXT = int(os.environ.get("HAL_BENCH_CONTEXT", "256"))
LAYERS = 6
WIDTH = 384
HEADS = 6
VOCABULARY = 256
RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
TOKENS = BATCH * CONTEXT
MODEL = f"{LAYERS} layers, width {WIDTH}, batch {BATCH} of {CONTEXT} bytes"


def operations(batch: int, context: int) -> int:
    """Those of a training step's products, a multiplication and an addition being two: what a
    causal mask leaves of attention, and nothing computed again."""
    weights = LAYERS * 12 * WIDTH**2 + WIDTH * VOCABULARY
    attention = LAYERS * 2 * context * WIDTH // 2
    return 3 * 2 * batch * context * (weights + attention)


def batch() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inputs and targets of one step: the same bytes for everybody."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, VOCABULARY, (BATCH, CONTEXT + 1), np.int64)
    return np.ascontiguousarray(drawn[:, :-1]), np.ascontiguousarray(drawn[:, 1:])
