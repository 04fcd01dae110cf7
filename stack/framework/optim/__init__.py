"""Optimizers and learning-rate schedules."""

from stack.framework.optim import lr_scheduler
from stack.framework.optim.adam import Adam, AdamW
from stack.framework.optim.optimizer import Optimizer
from stack.framework.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
