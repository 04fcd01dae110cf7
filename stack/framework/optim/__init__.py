"""Optimizers and learning-rate schedules."""

from typing import TYPE_CHECKING, Any

from stack.framework.errors import absent
from stack.framework.optim import lr_scheduler
from stack.framework.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from stack.framework.optim.adaptive import Adadelta, Adagrad, RMSprop, Rprop
from stack.framework.optim.lbfgs import LBFGS
from stack.framework.optim.optimizer import Optimizer
from stack.framework.optim.sgd import SGD

__all__ = [
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("optim", name, __all__)
