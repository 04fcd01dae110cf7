"""Training data: token arrays and tar shards, read in an order that any number of ranks shares."""

from stack.storage.data.order import permuted
from stack.storage.data.samples import DataPosition, Samples
from stack.storage.data.shards import add_tar, add_tokens, damage_of, shards_in

__all__ = [
    "DataPosition",
    "Samples",
    "add_tar",
    "add_tokens",
    "damage_of",
    "permuted",
    "shards_in",
]
