"""The training script with a model small enough for tests: `python tiny.py ARGUMENTS`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import corpus  # noqa: F401  (tests take it from here, where its folder is known)
import train_gpt
from gpt import GPTConfig

train_gpt.MODEL = GPTConfig(layers=1, width=16, heads=2, context=16)
train_gpt.BATCH = 2
train_gpt.VALIDATE_EVERY = 4
train_gpt.SAVE_EVERY = 4
train_gpt.VALIDATION_BATCHES = 2
train_gpt.SAMPLE_BYTES = 12

if __name__ == "__main__":
    sys.exit(train_gpt.main())
