"""Operations as functions: those that are also methods, and those that take several tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.framework.expr import elementwise as e
from stack.framework.expr import movement
from stack.framework.expr.create import one_hot as _one_hot
from stack.framework.tensor import Scalar, Tensor, apply

add = Tensor.add
sub = Tensor.sub
mul = Tensor.mul
div = Tensor.div
pow = Tensor.pow
matmul = Tensor.matmul
minimum = Tensor.minimum
maximum = Tensor.maximum
logical_and = Tensor.logical_and
logical_or = Tensor.logical_or
logical_not = Tensor.logical_not
neg = Tensor.neg
abs = Tensor.abs
sign = Tensor.sign
exp = Tensor.exp
log = Tensor.log
log2 = Tensor.log2
log10 = Tensor.log10
sin = Tensor.sin
cos = Tensor.cos
tan = Tensor.tan
tanh = Tensor.tanh
sigmoid = Tensor.sigmoid
erf = Tensor.erf
sqrt = Tensor.sqrt
rsqrt = Tensor.rsqrt
floor = Tensor.floor
ceil = Tensor.ceil
round = Tensor.round
isnan = Tensor.isnan
isinf = Tensor.isinf
isfinite = Tensor.isfinite
clamp = Tensor.clamp
relu = Tensor.relu
sum = Tensor.sum
mean = Tensor.mean
prod = Tensor.prod
amax = Tensor.amax
amin = Tensor.amin
max = Tensor.max
min = Tensor.min
argmax = Tensor.argmax
argmin = Tensor.argmin
any = Tensor.any
all = Tensor.all
var = Tensor.var
std = Tensor.std
norm = Tensor.norm
logsumexp = Tensor.logsumexp
softmax = Tensor.softmax
log_softmax = Tensor.log_softmax
cumsum = Tensor.cumsum
cumprod = Tensor.cumprod
reshape = Tensor.reshape
permute = Tensor.permute
transpose = Tensor.transpose
flatten = Tensor.flatten
squeeze = Tensor.squeeze
unsqueeze = Tensor.unsqueeze
flip = Tensor.flip
split = Tensor.split
chunk = Tensor.chunk
tril = Tensor.tril
triu = Tensor.triu
gather = Tensor.gather
index_select = Tensor.index_select


def where(condition: Tensor, x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x where the condition holds, else y."""
    return apply(e.where, condition, x, y)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along an axis, in their common element type."""
    return apply(movement.cat, list(tensors), dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, one after the other along a new axis."""
    return apply(movement.stack, list(tensors), dim)


def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere."""
    return apply(_one_hot, index, num_classes)


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether both have one shape and equal elements."""
    same: Any = x.shape == y.shape and (x == y).all().item()
    return bool(same)
