"""Training that goes on when ranks die: what they hold is declared, a step may be run again."""

from stack.fault.training import Training

__all__ = ["Training"]
