"""Tile kernels to C text for cores whose scratchpads are filled by DMA."""

from stack.compiler.lower.scratchpad.render import render_athread

__all__ = ["render_athread"]
