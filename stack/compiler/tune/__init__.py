"""What tuning may choose from: the kernels of a graph that have a choice, and for each family of
kernels the schedules that exist, in the order of a cost model's prediction."""

from stack.compiler.tune.candidates import Candidate, candidates, cost_of
from stack.compiler.tune.tunable import Tunable, tunables

__all__ = ["Candidate", "Tunable", "candidates", "cost_of", "tunables"]
