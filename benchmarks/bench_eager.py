"""What an operation costs that is neither captured nor new, beside PyTorch's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch

import stack.framework as ht
from benchmarks.row import Bar, Row

OPERATIONS = 100
"""In one sample, before something is read."""
Program = Callable[[Any, Any], None]


def new(x: Any, y: Any) -> None:
    for _ in range(OPERATIONS):
        x + y


def in_place(x: Any, y: Any) -> None:
    for _ in range(OPERATIONS):
        x.mul_(y)


def view(x: Any, y: Any) -> None:
    for _ in range(OPERATIONS):
        x.view(4, 4)


def chain(x: Any, y: Any) -> None:
    z = x
    for _ in range(OPERATIONS):
        z = z + y
    z.numpy()


CASES: tuple[tuple[str, Program, float], ...] = (
    ("a new tensor", new, 8),
    ("a change in place", in_place, 6),
    ("a view", view, 3),
)


def rows(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    samples = 50 if quick else 400
    for name, program, limit in CASES:
        ours, theirs = (1e6 * t / OPERATIONS for t in _in_turns(program, samples))
        note = "processor time of an operation on a path that came before, in turns"
        yield Row(name, "us", ours, theirs, "PyTorch", Bar(limit=limit), note=note)
    ours, theirs = (1e6 * t for t in _in_turns(chain, samples))
    claim = f"{OPERATIONS} chained additions of 16 numbers, and the result read"
    note = f"{ours / theirs:.2f} times PyTorch's"
    yield Row(claim, "us", ours, theirs, "PyTorch", Bar(ratio=1 / 1.5), note=note)


def _in_turns(program: Program, samples: int) -> tuple[float, float]:
    """The medians of both in seconds of processor time."""
    sides = [(lib.ones(16), lib.ones(16)) for lib in (ht, torch)]
    if program is in_place:  # the factor is 1: values stay
        sides = [(x, y * 1) for x, y in sides]
    times: tuple[list[float], list[float]] = [], []
    for sample in range(samples + 3):
        for (x, y), own in zip(sides, times, strict=True):
            begin = time.process_time()
            program(x, y)
            spent = time.process_time() - begin
            np.asarray(x.numpy())  # what waits is no part of the next sample
            if sample >= 3:
                own.append(spent)
    ours, theirs = map(median, times)
    return ours, theirs
