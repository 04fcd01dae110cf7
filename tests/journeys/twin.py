"""The example's training and the same training in PyTorch, from the same weights on the same text.

    python -m tests.journeys.twin STEPS {float32,bfloat16} LAYERS WIDTH HEADS CONTEXT BATCH

prints how far they come apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import gpt, peer_gpt
from benchmarks.machine import ROOT
from stack.storage.data import Samples

sys.path.insert(0, str(ROOT / "examples"))

import train_gpt
from corpus import load, pairs, shard_of
from gpt import GPTConfig

SIZES = {"LAYERS": "layers", "WIDTH": "width", "HEADS": "heads", "CONTEXT": "context"}
RUN = train_gpt.Run("cpu:0", 100, "float32", (), Path(), "never", 10**9, None, None, None, seed=1)


@dataclass(frozen=True)
class Apart:
    """How far two trainings come apart: the largest relative difference of a step's loss, the
    largest absolute difference of a final weight; and the losses, first ours."""

    loss: float
    weight: float
    losses: Sequence[Any]


@contextmanager
def sizes(config: GPTConfig, rows: int) -> Iterator[None]:
    """Both sides have this model and batches of this many rows."""
    theirs = {name: getattr(config, field) for name, field in SIZES.items()}
    before = train_gpt.MODEL, train_gpt.BATCH, {name: getattr(gpt, name) for name in theirs}
    train_gpt.MODEL, train_gpt.BATCH = config, rows
    vars(gpt).update(theirs)
    try:
        yield
    finally:
        train_gpt.MODEL, train_gpt.BATCH = before[:2]
        vars(gpt).update(before[2])


def compare(config: GPTConfig, rows: int, steps: int, dtype: str, text: tuple[str, ...]) -> Apart:
    """Train on both sides."""
    with sizes(config, rows):
        run = replace(RUN, steps=steps, dtype=dtype)
        corpus = load(text, config.context)
        # Both sides' threads in one process wait for each other's by turning in circles.
        torch.set_num_threads(1)
        with TemporaryDirectory() as folder:
            tokens = shard_of(corpus.train, Path(folder), make=True)
            ours = train_gpt.Training(run, Samples(tokens, config.context, run.seed))
            theirs = Twin(ours, Samples(tokens, config.context, run.seed))
            losses = [(ours.advance(), theirs.advance()) for _ in range(steps)]
        mine, peers = zip(*losses, strict=True)
        apart = max(abs(a - b) / b for a, b in losses)
        return Apart(apart, theirs.distance(ours), (mine, peers))


class Twin:
    """The training in PyTorch: same weights, rates, groups, clipping."""

    def __init__(self, ours: train_gpt.Training, samples: Samples) -> None:
        self.run, self.samples = ours.run, samples
        self.model = peer_gpt.GPT()
        self.model.load_state_dict(
            {
                _peer(name): torch.from_numpy(t.numpy())
                for name, t in ours.model.state_dict().items()
            }
        )
        parameters = list(self.model.parameters())
        decay = {True: train_gpt.WEIGHT_DECAY, False: 0.0}
        groups = [
            {"params": [p for p in parameters if (p.ndim >= 2) is matrix], "weight_decay": rate}
            for matrix, rate in decay.items()
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=train_gpt.RATE, betas=(0.9, 0.95))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, ours._rate)

    def advance(self) -> float:
        """One step; gives its loss."""
        arrays = pairs(self.samples.batch(train_gpt.BATCH))
        tokens, targets = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.run.dtype == "bfloat16"):
            loss = self.model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), train_gpt.CLIP)
        self.optimizer.step()
        self.schedule.step()
        return float(loss.item())

    def distance(self, ours: train_gpt.Training) -> float:
        """The largest difference of a weight."""
        mine = {_peer(name): t.numpy() for name, t in ours.model.state_dict().items()}
        peers = self.model.state_dict()
        assert mine.keys() == peers.keys()
        return max(float(np.abs(mine[name] - peers[name].numpy()).max()) for name in mine)


def _peer(name: str) -> str:
    """The peer's name of a parameter: its attention is part of its block."""
    return name.replace(".attention.", ".")


if __name__ == "__main__":
    steps, dtype, *numbers = sys.argv[1:]
    layers, width, heads, context, rows = map(int, numbers)
    model = GPTConfig(layers, width, heads, context)
    found = compare(model, rows, int(steps), dtype, ())
    last = [losses[-1] for losses in found.losses]
    json.dump(asdict(replace(found, losses=last)) | asdict(model), sys.stdout)
