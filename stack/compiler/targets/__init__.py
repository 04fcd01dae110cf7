"""What the compiler makes kernels for: asked once for each device, kept as a value."""

from stack.compiler.targets.table import choose
from stack.compiler.targets.target import Target

__all__ = ["Target", "choose"]
