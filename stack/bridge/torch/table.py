"""The whole table of operators: the rows of all modules that have some."""

from stack.bridge.torch import (
    algebra,
    attention,
    incomplete,
    optimizers,
    quantizing,
    rows,
    sampled,
    spatial,
    special,
)

ROWS = rows.ROWS
"""By the operator's name, "add.Tensor"."""

MODULES = (rows, spatial, algebra, optimizers, attention, sampled, special, incomplete, quantizing)
"""Those that fill it."""
