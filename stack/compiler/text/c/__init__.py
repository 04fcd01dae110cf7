"""Tile kernels to C text for compilers of devices; a dialect says what differs between them."""

from stack.compiler.text.c.render import render_opencl

__all__ = ["render_opencl"]
