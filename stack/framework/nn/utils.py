"""PyTorch's place for gradient clipping."""

from stack.framework.optim.clip import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
