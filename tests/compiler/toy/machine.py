"""A device that runs programs in toy-python/1, and what they may call."""

from dataclasses import replace
from itertools import product

import numpy as np

from hal.core.description import DeviceSummary, Feature
from hal.core.dtypes import DType
from hal.core.errors import CompileError
from hal.core.spec import hookimpl
from hal.core.values import ParamKind
from hal.hosted.device import HostedDevice
from hal.hosted.order import AdversarialOrder
from hal.reference.describe import describe
from hal.reference.machine import ReferenceMachine
from hal.tile.errors import TileError
from hal.tile.numeric import NUMPY, bitcast, constant, convert, elementwise, quiet
from hal.tile.ops import ATOMICS, COMBINE
from tests.compiler.toy.text import FORMAT

FEATURES = (Feature.MAP, Feature.GRAPH, Feature.HOST_CALL, Feature.STATS, Feature.TIMESTAMPS)


@hookimpl
def enumerate_devices():
    return [DeviceSummary(0, "Python")]


@hookimpl
def open_device(index, options):
    # Python on a busy machine is slow, which is no hang.
    info = describe(0, 1, 64 << 20, 10.0)
    info = replace(info, name="toy:0", plugin="toy", formats=(FORMAT,))
    return HostedDevice(
        replace(info, features=frozenset(FEATURES)), Machine(0), AdversarialOrder(0)
    )


class Machine(ReferenceMachine):
    def compile(self, source):
        if source.options:
            raise CompileError(f"{FORMAT} has no build options")
        names = dict(NAMES)
        try:
            exec(source.text, names)
        except SyntaxError as error:
            raise CompileError(f"not Python: {error}", str(error)) from error
        return source.params, names["instance"]

    def run(self, program, args, grid):
        params, instance = program
        memories, scalars = {}, {}
        for p, arg in zip(params, args, strict=True):
            if p.kind is ParamKind.SCALAR:
                scalars[p.name] = constant(arg, p.dtype)
                continue
            size = arg.nbytes // p.dtype.nbytes * p.dtype.nbytes
            part = arg.memory.array[arg.offset : arg.offset + size]
            memories[p.name] = part.view(NUMPY[p.dtype])
        sizes = (*grid, 1, 1)[:3]
        with quiet():
            for at in product(*map(range, sizes)):
                instance(memories, at, sizes, scalars)


# what programs call


def full(shape, text, dtype):
    dtype = DType(dtype)
    value = text == "True" if dtype is DType.BOOL else float(text) if dtype.is_float else int(text)
    return np.broadcast_to(constant(value, dtype), shape)


def whole(numbers, dtype):
    return convert(np.asarray(numbers, np.int64), DType(dtype))


def apply(op, given, *srcs):
    dtype = DType(given["dtype"])
    if op == "where":
        return np.asarray(np.where(*srcs))
    if op == "cast":
        return convert(srcs[0], dtype)
    if op == "bitcast":
        return bitcast(srcs[0], dtype)
    if op == "broadcast":
        return np.broadcast_to(srcs[0], given["shape"])
    if op == "reshape":
        return srcs[0].reshape(given["shape"])
    if op == "transpose":
        return srcs[0].transpose(given["perm"])
    if op in ("reduce", "scan"):
        return combined(op, given, dtype, *srcs)
    if op == "dot":
        a, b, total = (convert(x, dtype.computed_in) for x in srcs)
        for i in range(a.shape[1]):
            total = total + a[:, i, None] * b[None, i, :]
        return convert(total, dtype)
    return elementwise(op, *srcs)


def combined(op, given, dtype, x):
    wide = convert(x, dtype.computed_in)
    slices = list(np.moveaxis(wide, given["axis"], 0))
    for i in range(1, len(slices)):
        slices[i] = elementwise(COMBINE[given["kind"]], slices[i - 1], slices[i])
    return convert(slices[-1] if op == "reduce" else np.stack(slices, given["axis"]), dtype)


def block(memory, offset, strides, limits, shape):
    """Where the valid elements of a block are, and which are valid."""
    indices, valid = np.full(shape, offset), np.ones(shape, bool)
    for i, stride, limit in zip(np.indices(shape), strides, limits, strict=True):
        indices = indices + i * stride
        if limit is not None:
            valid &= i < limit
    return indices, valid


def inside(memory, indices):
    if indices.size and not 0 <= indices.min() <= indices.max() < memory.size:
        raise TileError(f"an index from {indices.min()} to {indices.max()} of {memory.size}")
    return indices


def gather(memory, indices, mask, other):
    valid = np.ones(indices.shape, bool) if mask is None else np.broadcast_to(mask, indices.shape)
    blank = np.zeros((), memory.dtype) if other is None else other
    tile = np.array(np.broadcast_to(blank, indices.shape))
    tile[valid] = memory[inside(memory, indices[valid])]
    return tile


def load(memory, offset, strides, limits, shape, other):
    return gather(memory, *block(memory, offset, strides, limits, shape), other)


def scatter(memory, indices, tile, mask):
    valid = np.ones(indices.shape, bool) if mask is None else np.broadcast_to(mask, indices.shape)
    memory[inside(memory, indices[valid])] = tile[valid]


def store(memory, offset, strides, limits, tile):
    indices, valid = block(memory, offset, strides, limits, tile.shape)
    scatter(memory, indices, tile, valid)


def atomic(kind, memory, indices, tile, mask):
    valid = np.ones(indices.shape, bool) if mask is None else np.broadcast_to(mask, indices.shape)
    op = ATOMICS[kind]
    for i, x in zip(inside(memory, indices[valid]), tile[valid], strict=True):
        memory[i] = x if op is None else elementwise(op, np.asarray(memory[i]), np.asarray(x))


def scratch(size, dtype):
    """Undefined: bytes that are no zeros."""
    return np.full(size * DType(dtype).nbytes, 0xAB, np.uint8).view(NUMPY[DType(dtype)])


def copy(target, source, shape):
    to, may = block(*target, shape)
    of, can = block(*source, shape)
    both = may & can
    target[0][inside(target[0], to[both])] = source[0][inside(source[0], of[both])]


NAMES = {
    f.__name__: f for f in (full, whole, apply, load, gather, store, scatter, atomic, scratch, copy)
}
