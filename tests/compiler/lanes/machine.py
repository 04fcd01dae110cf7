"""What programs in the prototype's format call: lanes of numpy on one flat memory."""

import struct

import numpy as np

from hal.core.values import ParamKind
from hal.tile.numeric import NUMPY, elementwise
from stack.compiler.text.llvm import render
from tests.compiler.lanes.text import python
from tests.compiler.llvm.machine import info

KINDS = {"double": np.float64, "float": np.float32, "half": np.float16, "i1": np.bool_}
KINDS |= {"ptr": np.int64, **{f"i{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)}}
OPS = {"fadd": "add", "fsub": "sub", "fmul": "mul", "fdiv": "div", "frem": "rem", "fneg": "neg"}
OPS |= {"sdiv": "div", "udiv": "div", "srem": "rem", "urem": "rem", "ashr": "shr", "lshr": "shr"}
RELATIONS = {"oeq": "eq", "une": "ne", "eq": "eq", "ne": "ne", "olt": "lt", "ole": "le"}
RELATIONS |= {"slt": "lt", "ult": "lt", "sle": "le", "ule": "le"}
CALLS = {
    "minimum": "min",
    "maximum": "max",
    "smin": "min",
    "smax": "max",
    "umin": "min",
    "umax": "max",
    "fabs": "abs",
    "fma": "fma",
}
CALLS |= {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "roundeven": "round"}


def numpy(kind):
    """The element type and the lanes of an LLVM type; 0 lanes: a scalar."""
    lanes, _, scalar = kind.strip("<>").rpartition(" x ")
    return np.dtype(KINDS[scalar]), int(lanes or 0)


def unsigned(x):
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x


class Machine:
    def __init__(self, nbytes):
        self.bytes, self.top = np.zeros(nbytes, np.uint8), 64

    def room(self, count, kind):
        size = int(count) * max(np.dtype(KINDS[kind]).itemsize, 1)
        start, self.top = self.top, self.top + -(-size // 64) * 64
        return np.asarray(start)

    def constant(self, kind, text):
        dtype, lanes = numpy(kind)
        if isinstance(text, list):
            return np.concatenate(
                [self.constant(f"<1 x {kind.split()[-1][:-1]}>", t) for t in text]
            )
        number = {"zeroinitializer": 0, "poison": 0, "true": 1, "false": 0}.get(text)
        if number is None and text.startswith("0xH"):
            number = struct.unpack("<e", struct.pack("<H", int(text[3:], 16)))[0]
        elif number is None and text.startswith("0x"):
            number = struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0]
        value = np.asarray(int(text) if number is None else number).astype(dtype)
        return np.broadcast_to(value, (lanes,) if lanes else ())

    def place(self, kind, base, index):
        return np.asarray(base + index * numpy(kind)[0].itemsize)

    def load(self, kind, where):
        dtype, lanes = numpy(kind)
        raw = (
            self.bytes[int(where) : int(where) + max(lanes, 1) * dtype.itemsize].view(dtype).copy()
        )
        return raw if lanes else raw[0:1].reshape(())

    def store(self, where, value):
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self.bytes[int(where) : int(where) + raw.size] = raw

    def compute(self, op, *xs):
        if op in ("udiv", "urem", "lshr"):
            return elementwise(OPS[op], *map(unsigned, xs)).view(xs[0].dtype)
        if op == "fneg":
            return -xs[0]
        return elementwise(OPS.get(op, op), *xs)

    def compare(self, how, a, b):
        relation = how[5:]
        a, b = (unsigned(x) if relation[0] == "u" else x for x in (a, b))
        if relation in ("ogt", "sgt", "ugt"):
            return elementwise("lt", b, a)
        if relation == "uno":
            return np.isnan(a) | np.isnan(b)
        return elementwise(RELATIONS[relation], a, b)

    def convert(self, op, kind, x):
        dtype, _ = numpy(kind)
        if op == "bitcast":
            found = np.ascontiguousarray(x).view(dtype)
            return found.reshape(x.shape)
        wide = unsigned(x) if op in ("zext", "uitofp") else x
        return np.asarray(wide.astype(dtype))

    def select(self, c, a, b):
        return np.where(c, a, b)

    def insertelement(self, vector, value, lane):
        found = np.array(vector)
        found[int(lane)] = value
        return found

    def extractelement(self, vector, lane):
        return np.asarray(vector[int(lane)])

    def shufflevector(self, a, b, lanes):
        return np.concatenate([a, b])[lanes]

    def call(self, name, *xs):
        op = name.split(".")[1]
        if name.startswith("llvm.masked.load"):
            where, _, mask, other = xs
            kept = np.array(other)
            for i in np.flatnonzero(mask):
                kept[i] = self.load(_kind(kept.dtype), where + i * kept.dtype.itemsize)
            return kept
        if name.startswith("llvm.masked.store"):
            value, where, _, mask = xs
            for i in np.flatnonzero(mask):
                self.store(where + i * value.dtype.itemsize, value[i])
            return None
        if op == "prefetch":
            return None  # it changes nothing but when a line comes
        if op == "memcpy":
            to, of, n, _ = map(int, xs)
            self.bytes[to : to + n] = self.bytes[of : of + n].copy()
            return None
        signless = map(unsigned, xs) if op in ("umin", "umax") else xs
        return elementwise(CALLS[op], *signless).view(xs[0].dtype)


def _kind(dtype):
    return next(name for name, d in KINDS.items() if np.dtype(d) == dtype)


def run(kernel, grid, buffers, scalars):
    """Run a kernel over a grid, changing the buffers."""
    source = render(kernel, info())
    m = Machine(1 << 20)
    names = {"m": m}
    exec(python(source.text), names)
    args, places = m.room(max(len(source.params), 1), "i64"), {}
    for i, p in enumerate(source.params):
        slot = args + 8 * i
        if p.kind is ParamKind.BUFFER:
            places[p.name] = m.room(buffers[p.name].nbytes, "i8")
            m.store(places[p.name], buffers[p.name].view(np.uint8))
            m.store(slot, np.int64(places[p.name]))
        else:
            m.store(slot, np.asarray(scalars[p.name], NUMPY[p.dtype]))
    sizes = np.array((*grid, 1, 1)[:3], np.int64)
    where = m.room(3, "i64")
    m.store(where, sizes)
    with np.errstate(all="ignore"):
        names["run"](m, args, where, np.asarray(0), np.asarray(int(sizes.prod())))
    for name, place in places.items():
        raw = m.bytes[int(place) : int(place) + buffers[name].nbytes]
        buffers[name].view(np.uint8)[:] = raw
