"""The sizes of the GPT-2 that is trained here and by the peer, and its batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BATCH = 2
CONTEXT = 256
LAYERS = 12
WIDTH = 768
HEADS = 12
VOCABULARY = 50257
PLACES = 1024
RATE = 3e-4
WEIGHT_DECAY = 0.1
CLIP = 1.0
TOKENS = BATCH * CONTEXT


def batch() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inputs and targets of one step: the same tokens for everybody."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, VOCABULARY, (BATCH, CONTEXT + 1), np.int64)
    return np.ascontiguousarray(drawn[:, :-1]), np.ascontiguousarray(drawn[:, 1:])
