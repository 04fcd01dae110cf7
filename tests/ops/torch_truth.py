"""What PyTorch computes for each operation, from its own functions."""

import math

import numpy as np
import torch

from hal.core.dtypes import DType
from stack.ops import OPS

TYPES = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
"""Element types with full arithmetic in PyTorch."""


def to_torch(array, dtype):
    """A tensor of the array's values."""
    if dtype is DType.BF16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def from_torch(tensor):
    """The values as an array; bfloat16 as float32, which holds them exactly."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().numpy()


def _nonzero(function):
    """Integer division where PyTorch has one; by zero gives 0."""

    def divide(n, a, b):
        if a.dtype.is_floating_point:
            return function(a, b)
        return torch.where(b == 0, 0, function(a, torch.where(b == 0, 1, b)))

    return divide


def _shift(function, beyond):
    def shift(n, a, b):
        fits = (b >= 0) & (b < n.dtype.bits)
        return torch.where(fits, function(a, torch.where(fits, b, 0)), beyond(a))

    return shift


def _reduce(n, x):
    """One axis after the other, since PyTorch's prod takes only one."""
    for axis in n["axes"]:
        if n["kind"] in ("min", "max"):
            x = (torch.amin if n["kind"] == "min" else torch.amax)(x, axis, keepdim=True)
        else:
            wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
            x = getattr(torch, n["kind"])(x, axis, keepdim=True, dtype=wide)
    return x.to(TYPES[n.dtype])


def _argsort(n, x):
    return torch.sort(x, dim=n["axis"], descending=n["descending"], stable=True).indices


def _scan(n, x):
    kind, axis = n["kind"], n["axis"]
    if kind in ("min", "max"):
        return getattr(torch, f"cum{kind}")(x, axis).values
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return getattr(torch, f"cum{kind}")(x, axis, dtype=wide).to(x.dtype)


def _matmul(n, a, b):
    wide = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    return torch.matmul(a.to(wide), b.to(wide)).to(TYPES[n.dtype])


def _grouped_matmul(n, x, w, group):
    known = (group >= 0) & (group < w.shape[0])
    chosen = torch.where(known, group, w.shape[0]).long()
    each = torch.cat([w, w.new_zeros(1, *w.shape[1:])])[chosen]
    return _matmul(n, x[:, None], each)[:, 0]


def _grouped_outer(n, x, y, group):
    found = [_matmul(n, (x * (group == i)[:, None]).T, y) for i in range(n["groups"])]
    return torch.stack(found) if found else x.new_zeros(n.shape)


def _places(n, x, index):
    """Positions for each element of [rows, positions, after] in a table with one place more, the
    last, for those out of range."""
    axis = n["axis"]
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    each = index.reshape(before if n["batch"] else 1, -1 if index.numel() else 0).long()
    inside = (each >= 0) & (each < x.shape[axis])
    each = torch.where(inside, each, x.shape[axis])
    return each[:, :, None].expand(before, each.shape[1], after)


def _grown(n, x):
    """x as [rows, size + 1, after]."""
    axis = n["axis"]
    flat = x.reshape(math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    return torch.cat([flat, flat.new_zeros(flat.shape[0], 1, flat.shape[2])], 1)


def _loop(n, condition, carried, rows):
    stacked = torch.zeros((len(rows), 2, *carried.shape), dtype=carried.dtype)
    for i in reversed(range(len(rows))) if n["reverse"] else range(len(rows)):
        stacked[i] = carried
        carried = torch.where(condition, rows[i], carried)
    return torch.cat((carried.reshape(-1), stacked.reshape(-1)))


def _gather(n, x, index):
    return torch.gather(_grown(n, x), 1, _places(n, x, index)).reshape(n.shape)


_REDUCTIONS = {"sum": "sum", "prod": "prod", "min": "amin", "max": "amax"}


def _scatter(n, base, index, updates):
    wide = torch.float32 if base.dtype in (torch.float16, torch.bfloat16) else base.dtype
    wide = torch.uint8 if wide is torch.bool else wide
    table, places = _grown(n, base.to(wide)), _places(n, base, index)
    flat = updates.to(wide).reshape(places.shape)
    if n["kind"] == "set":  # PyTorch leaves open which of several updates is the last
        for k in range(places.shape[1]):
            table = table.scatter(1, places[:, k : k + 1], flat[:, k : k + 1])
    else:
        table = table.scatter_reduce(1, places, flat, _REDUCTIONS[n["kind"]])
    return table[:, :-1].reshape(base.shape).to(base.dtype)


def _overwrite(n, x, part):
    whole = x.clone()
    whole[tuple(slice(lo, lo + m) for lo, m in zip(n["start"], part.shape, strict=True))] = part
    return whole


def _pad(n, x):
    sides = [side for pair in zip(n["lo"], n["hi"], strict=True) for side in reversed(pair)]
    return torch.nn.functional.pad(x, sides[::-1], value=n["value"])


def _slice(n, x):
    bounds = zip(n["start"], n["stop"], n["step"], strict=True)
    return x[tuple(slice(*b) for b in bounds)]


def _named(name):
    return lambda n, *xs: getattr(torch, name)(*xs)


def _window(n, x):
    axis, step = n["axis"], n["dilation"]
    spread = x.unfold(axis, (n["size"] - 1) * step + 1, n["stride"])[..., ::step]
    return spread.movedim(-1, axis + 1)


def _overlap_add(n, x):
    axis = n["axis"]
    total = torch.zeros(n.shape, dtype=x.dtype)
    for i in range(x.shape[axis]):
        for k in range(x.shape[axis + 1]):
            place = total.select(axis, i * n["stride"] + k * n["dilation"])
            place += x.select(axis + 1, k).select(axis, i)
    return total


TORCH = {
    "erfcx": lambda n, x: torch.special.erfcx(x.double()).to(x.dtype),
    "popcount": lambda n, x: sum((x >> i) & 1 for i in range(n.dtype.bits)),
    "zeta": lambda n, x: torch.special.zeta(float(n["order"]), x.double()).to(x.dtype),
    "trunc": lambda n, x: torch.trunc(x),
    "fmod": _nonzero(torch.fmod),
    **{op: _named(op) for op in ("floor", "ceil", "round", "add", "sub", "mul", "div", "pow")},
    **{op: _named(op) for op in ("eq", "ne", "lt", "le", "where")},
    "not": _named("bitwise_not"),
    "min": _named("minimum"),
    "max": _named("maximum"),
    "and": _named("bitwise_and"),
    "or": _named("bitwise_or"),
    "xor": _named("bitwise_xor"),
    "shl": _shift(torch.bitwise_left_shift, torch.zeros_like),
    "shr": _shift(torch.bitwise_right_shift, lambda a: torch.where(a < 0, -1, 0).to(a.dtype)),
    "floordiv": _nonzero(torch.floor_divide),
    "mod": _nonzero(torch.remainder),
    "cast": lambda n, x: x.to(TYPES[n.dtype]),
    "bitcast": lambda n, x: x.view(TYPES[n.dtype]),
    "arange": lambda n: torch.arange(n.shape[0]).to(TYPES[n.dtype]),
    "reshape": lambda n, x: x.reshape(n.shape),
    "permute": lambda n, x: x.permute(n["perm"]),
    "expand": lambda n, x: x.expand(n.shape),
    "slice": _slice,
    "flip": lambda n, x: x.flip(n["axes"]),
    "pad": _pad,
    "window": _window,
    "overlap_add": _overlap_add,
    "concat": lambda n, *xs: torch.cat(xs, n["axis"]),
    "overwrite": _overwrite,
    "contiguous": lambda n, x: x.contiguous(),
    "reduce": _reduce,
    "extreme": _reduce,
    "argsort": _argsort,
    "argmax": lambda n, x: x.argmax(n["axis"], keepdim=True),
    "argmin": lambda n, x: x.argmin(n["axis"], keepdim=True),
    "scan": _scan,
    "loop": _loop,
    "detached": lambda n, x: x,
    "matmul": _matmul,
    "grouped_matmul": _grouped_matmul,
    "grouped_outer": _grouped_outer,
    "gather": _gather,
    "scatter": _scatter,
}
"""Operator: (its node, operands as tensors) -> tensor."""


def truth_of(op):
    """What to compare an operator with, or None: its row in TORCH, or the ATen operator that its
    face names."""
    face = OPS[op].face
    return TORCH.get(op) or (face and face.aten and _named(face.aten)) or None
