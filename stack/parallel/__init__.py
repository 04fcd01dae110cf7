"""Training on several devices: a mesh of ranks, and functions that spread a model over it."""

from stack.parallel.data import DataParallel, data_parallel
from stack.parallel.mesh import Mesh
from stack.parallel.placement import Sharded
from stack.parallel.ranks import Ranks
from stack.parallel.spread import Parallel, parallel
from stack.parallel.strategy import Strategy

__all__ = [
    "DataParallel",
    "Mesh",
    "Parallel",
    "Ranks",
    "Sharded",
    "Strategy",
    "data_parallel",
    "parallel",
]
