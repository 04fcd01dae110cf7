"""Tensor operations as graph expressions: functions from nodes to nodes with PyTorch's meaning, no
state. Importing it fills the table of operators that users call."""

from stack.framework.expr import (
    activation,
    attention,
    contract,
    convolution,
    create,
    elementwise,
    index,
    linear,
    loss,
    movement,
    norm,
    pool,
    quantize,
    reduce,
    resample,
    rotary,
    sort,
    special,
    spectral,
)
from stack.framework.expr.public import of_tensors, publish
from stack.ops import OPS

for _row in OPS.values():
    if _row.face is not None:
        publish(of_tensors(_row, _row.face))

__all__ = [
    "activation",
    "attention",
    "contract",
    "convolution",
    "create",
    "elementwise",
    "index",
    "linear",
    "loss",
    "movement",
    "norm",
    "pool",
    "quantize",
    "reduce",
    "resample",
    "rotary",
    "sort",
    "special",
    "spectral",
]
