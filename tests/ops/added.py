"""Operators that are added while a program runs. As a pytest plugin it adds them before tests are
collected, so that the sampled tests take them up."""

import math

import numpy as np
import torch

from hal.tile import build as tile
from stack import ops as g
from stack.framework.expr.public import of_tensors, publish
from stack.framework.faces import expose
from stack.ops.operator import Face
from stack.ops.table import FLOATS, by, exactly, unary
from tests.ops.torch_truth import TORCH


def _decomposed(n):
    (x,) = n.srcs
    return g.div(x, g.add(g.abs(x), g.full_like(x, 1)))


def _slope(n, d):
    below = g.add(g.abs(n.srcs[0]), g.full_like(n, 1))
    return (g.div(d, g.mul(below, below)),)


def add_softsign():
    """An operator that is made of others."""
    return unary(
        "softsign_added",
        FLOATS,
        "x / (1 + |x|)",
        by(lambda x: x / (1 + np.abs(x))),
        _slope,
        decompose=_decomposed,
        face=Face(in_place=True),
    )


def add_exp2():
    """An operator with a lowering of its own, for which ATen has a name."""
    return unary(
        "exp2_added",
        FLOATS,
        "2 to the x",
        exactly(np.exp2),
        lambda n, d: (g.mul(d, g.mul(n, g.full_like(n, math.log(2)))),),
        lower=lambda n, xs: tile.unary("exp", tile.mul(xs[0], math.log(2))),
        face=Face(aten="exp2"),
    )


def show(row):
    """Make the operator a function and a method."""
    expose(publish(of_tensors(row, row.face)))


def pytest_configure():
    add_softsign()
    add_exp2()
    TORCH["softsign_added"] = lambda n, x: torch.nn.functional.softsign(x)
