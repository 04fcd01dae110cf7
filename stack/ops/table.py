"""How a record is written down, and how references treat element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.ir.claims import CLAIMS, HALVES
from stack.ir.record import Gradient, Lower, NDArray, OpKind, OpRecord, Reference

Function = Callable[..., Any]
"""A numpy function of the operands."""


def record(
    name: str,
    kind: OpKind,
    meaning: str,
    reference: Reference,
    gradient: Gradient | None = None,
    lower: Lower | None = None,
) -> OpRecord:
    """A record that claims the element types of the type rules."""
    return OpRecord(name, kind, CLAIMS[name], meaning, reference, gradient, lower)


def elementwise(
    name: str,
    meaning: str,
    reference: Reference,
    gradient: Gradient | None = None,
    lower: Lower | None = None,
) -> OpRecord:
    """A record of an elementwise operation; without `lower` it is the tile operation of its
    name."""
    return record(name, OpKind.ELEMENTWISE, meaning, reference, gradient, lower or same_name)


def same_name(n: Node, xs: tuple[Node, ...]) -> Node:
    """The tile operation of the same name and operands."""
    return tile.unary(n.op, *xs) if len(xs) == 1 else tile.binary(n.op, *xs)


def widened(x: NDArray) -> NDArray:
    """f16 and bf16 as f32; anything else as it is."""
    return x.astype(np.float32) if x.dtype in _HALVES else x


def doubled(x: NDArray) -> NDArray:
    """Floats as f64; anything else as it is."""
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def rounded(y: Any, dtype: DType) -> NDArray:
    """A result in its element type; f16 and bf16 round once."""
    with np.errstate(all="ignore"):
        return np.asarray(y).astype(NUMPY[dtype])


def by(function: Function) -> Reference:
    """A numpy function as a reference; f16 and bf16 are computed in f32."""
    return _through(function, widened)


def exactly(function: Function) -> Reference:
    """A numpy function as a reference; every float is computed in f64, so that the result is nearly
    exact."""
    return _through(function, doubled)


def _through(function: Function, convert: Callable[[NDArray], NDArray]) -> Reference:
    def reference(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
        with np.errstate(all="ignore"):
            return rounded(function(*map(convert, xs)), n.dtype)

    return reference


_HALVES = frozenset(NUMPY[d] for d in HALVES)
