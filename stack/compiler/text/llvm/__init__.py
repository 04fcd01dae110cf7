"""Tile kernels to LLVM IR text for cores with SIMD registers."""

from stack.compiler.text.llvm.render import render

__all__ = ["render"]
