"""Products on cores that pass tiles along the rows and columns of a mesh."""

from stack.compiler.mesh.block import Elements
from stack.compiler.mesh.template import mesh_matmul, on_mesh

__all__ = ["Elements", "mesh_matmul", "on_mesh"]
