"""States of all kinds, and how ranks cut them."""

from math import prod

import numpy as np

from stack.storage import Box, CheckpointLimits, FlatRange, TensorShard
from stack.storage.layout import DTYPES
from stack.storage.store import BlobStore

SMALL = CheckpointLimits(block=4096, file_nbytes=50_000, window=60_000)
"""Blocks, files and windows so small that a few tensors fill many."""
WAYS = ["rows", "columns", "whole", "flat", "one"]


def random_bits(rng, shape, dtype):
    """An array of any bits, NaNs with payloads and denormals among them; bools are bools."""
    data = rng.integers(0, 256, prod(shape) * dtype.itemsize, np.uint8)
    return (data & 1 if dtype == np.bool_ else data).view(dtype).reshape(shape)


def state(seed=0, scale=1):
    """Tensors of all element types, and of awkward shapes, in two groups."""
    rng = np.random.default_rng(seed)
    model = {f"t.{code}": random_bits(rng, (13, 5), dtype) for code, dtype in DTYPES.items()}
    shapes = {"0d": (), "none": (0, 3), "wide": (7, 33 * scale), "deep": (6, 5, 4, 3 * scale)}
    model |= {name: random_bits(rng, s, np.dtype("f4")) for name, s in shapes.items()}
    big = {"m": random_bits(rng, (97 * scale, 65), np.dtype("f4"))}
    return {"model": model, "optimizer": big | {"v": random_bits(rng, (50,), np.dtype("f8"))}}


def cut(n, rank, size, uneven):
    """A rank's range of n: equal ones, or ones of which some are empty."""
    edges = [n * (i * i if uneven else i) // (size * size if uneven else size) for i in range(size)]
    return (*edges, n)[rank], (*edges, n)[rank + 1]


def shard(whole, way, rank, size):
    """A rank's part."""
    if way == "flat":
        start, stop = cut(whole.size, rank, size, True)
        part = whole.reshape(-1)[start:stop].copy()
        return TensorShard(part, whole.shape, whole.dtype, FlatRange(start, stop))
    offsets, lengths = [0] * whole.ndim, list(whole.shape)
    if whole.ndim and way in ("rows", "columns"):
        d = 0 if way == "rows" else whole.ndim - 1
        start, stop = cut(whole.shape[d], rank, size, way == "rows")
        offsets[d], lengths[d] = start, stop - start
    if way == "one" and rank:
        lengths = [0] * whole.ndim
        if not whole.ndim:
            return TensorShard(whole.reshape(1)[:0], (), whole.dtype, FlatRange(0, 0))
    where = tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))
    part = np.ascontiguousarray(whole[where]).reshape(lengths).copy()
    return TensorShard(part, whole.shape, whole.dtype, Box(tuple(offsets), tuple(lengths)))


def shards(state, way, rank, size):
    """A rank's part of everything."""
    return {
        group: {name: shard(whole, way, rank, size) for name, whole in members.items()}
        for group, members in state.items()
    }


def blank(tensors):
    """The same parts, with other bytes."""
    return {
        group: {
            name: TensorShard(np.full_like(s.array, 1), s.shape, s.dtype, s.part)
            for name, s in members.items()
        }
        for group, members in tensors.items()
    }


def differs(got, want):
    """The names of tensors that are not bit-equal; of parts or arrays."""

    def data(x):
        return (x.array if isinstance(x, TensorShard) else x).tobytes()

    return [
        f"{group}/{name}"
        for group, members in want.items()
        for name in members
        if data(got[group][name]) != data(members[name])
    ]


class Wrapped(BlobStore):
    """A store that does what another one does; tests change a call of it."""

    def __init__(self, inside):
        self.inside, self.where, self.in_place = inside, inside.where, inside.in_place

    def take(self, name, size):
        return self.inside.take(name, size)

    def put(self, destination, offset, data, nbytes):
        return self.inside.put(destination, offset, data, nbytes)

    def sync(self):
        self.inside.sync()

    def finish(self, written):
        self.inside.finish(written)

    def commit(self, name, data, replace=False):
        return self.inside.commit(name, data, replace)

    def read(self, name, offset, out):
        return self.inside.read(name, offset, out)

    def list(self, prefix=""):
        return self.inside.list(prefix)

    def delete(self, names):
        self.inside.delete(names)

    def lease(self, owner):
        return self.inside.lease(owner)

    def close(self):
        self.inside.close()
