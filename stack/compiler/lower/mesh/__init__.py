"""Tile kernels to C text for cores that pass tiles along the rows and columns of a mesh."""

from stack.compiler.lower.mesh.render import render_athread

__all__ = ["render_athread"]
