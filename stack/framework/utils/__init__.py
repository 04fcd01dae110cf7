"""Data for training, and recomputation."""

from stack.framework.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
