"""Tile kernels to C text in which a group of lanes runs an instance together."""

from stack.compiler.lower.simt.render import render_cuda, render_opencl

__all__ = ["render_cuda", "render_opencl"]
