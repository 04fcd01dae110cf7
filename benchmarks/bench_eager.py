"""What an operation costs that is neither captured nor new, beside PyTorch's: our own, and that
of PyTorch on its device "hal"."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch

import stack.framework as ht
from benchmarks.row import Bar, Row
from stack.bridge import torch as bridge

OPERATIONS = 100
"""In one sample, before something is read."""
LARGE = 1 << 20
"""Rows of a large tensor."""
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
    z.tolist()


def row_of(x: Any, y: Any) -> None:
    x[7] = y
    x[7].sum().item()


CASES: tuple[tuple[str, Program, float, float], ...] = (
    ("a new tensor", new, 8, 12),
    ("a change in place", in_place, 6, 8),
    ("a view", view, 3, 5),
)
"""What is done, and the most microseconds of our own and on PyTorch's device "hal"."""


def rows(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    bridge.register()
    samples = 50 if quick else 400
    for name, program, own, device in CASES:
        ours, hal, theirs = (1e6 * t / OPERATIONS for t in _in_turns(program, samples))
        note = "processor time of an operation on a path that came before, in turns"
        yield Row(name, "us", ours, theirs, "PyTorch", Bar(limit=own), note=note)
        claim = f'{name}, PyTorch on "hal"'
        yield Row(claim, "us", hal, theirs, "PyTorch", Bar(limit=device), note=note)
    ours, hal, theirs = (1e6 * t for t in _in_turns(chain, samples))
    claim = f"{OPERATIONS} chained additions of 16 numbers, and the result read"
    note = f"{ours / theirs:.2f} times PyTorch's"
    yield Row(claim, "us", ours, theirs, "PyTorch", Bar(ratio=1 / 1.5), note=note)
    note = f"{hal / theirs:.2f} times PyTorch's"
    yield Row(f'{claim}, PyTorch on "hal"', "us", hal, theirs, "PyTorch", note=note)
    ours, hal, theirs = (1e6 * t for t in _in_turns(row_of, samples, (LARGE, 16)))
    claim = "a row of 16 numbers of 64 MB written, and its sum read"
    yield Row(claim, "us", ours, theirs, "PyTorch", Bar(limit=1000))
    yield Row(f'{claim}, PyTorch on "hal"', "us", hal, theirs, "PyTorch", Bar(limit=1000))


def _in_turns(
    program: Program, samples: int, shape: tuple[int, ...] = (16,)
) -> tuple[float, float, float]:
    """The medians in seconds of processor time of ours, of PyTorch on "hal", and of PyTorch."""
    ones = (ht.ones, partial(torch.ones, device="hal"), torch.ones)
    sides = [(one(*shape), one(16)) for one in ones]
    if program is in_place:  # the factor is 1: values stay
        sides = [(x, y * 1) for x, y in sides]
    times: tuple[list[float], ...] = ([], [], [])
    for sample in range(samples + 3):
        for (x, y), own in zip(sides, times, strict=True):
            begin = time.process_time()
            program(x, y)
            spent = time.process_time() - begin
            (x if shape == y.shape else x[0]).tolist()
            torch.accelerator.synchronize()  # what waits is no part of the next sample
            if sample >= 3:
                own.append(spent)
    ours, hal, theirs = map(median, times)
    return ours, hal, theirs
