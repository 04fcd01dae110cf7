"""Training on several devices: a mesh of ranks, and functions that spread a model over it."""

from stack.parallel.data import DataParallel, data_parallel
from stack.parallel.mesh import Mesh
from stack.parallel.ranks import Ranks

__all__ = ["DataParallel", "Mesh", "Ranks", "data_parallel"]
