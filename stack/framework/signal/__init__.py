"""Signals: the windows of `torch.signal`."""

from stack.framework.signal import windows

__all__ = ["windows"]
