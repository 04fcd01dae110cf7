"""The whole table of operators: the rows of all modules that have some."""

from stack.bridge.torch import algebra, optimizers, rows, spatial

ROWS = rows.ROWS
"""By the operator's name, "add.Tensor"."""

MODULES = (rows, spatial, algebra, optimizers)
"""Those that fill it."""
