"""Tensor operations as graph expressions: functions from nodes to nodes with PyTorch's meaning, no
state. Importing it fills the table of operators that users call."""

from stack.framework.expr import (
    activation,
    attention,
    contract,
    convolution,
    create,
    elementwise,
    index,
    linear,
    loss,
    movement,
    norm,
    pool,
    quantize,
    reduce,
    resample,
    rotary,
    sort,
    special,
    spectral,
)
from stack.framework.expr.public import (
    FUNCTIONS,
    LAYERS,
    LINALG,
    SPECIAL,
    Public,
    of_tensors,
    publish,
)
from stack.ops import OPS
from stack.ops.operator import Face

for _row in OPS.values():
    if _row.face is not None:
        publish(of_tensors(_row, _row.face))

for _name in (
    *("avg_pool1d", "bilinear", "celu", "cosine_similarity", "group_norm", "hardshrink"),
    *("layer_norm", "max_pool1d", "max_pool2d", "max_pool3d", "pairwise_distance", "pdist"),
    *("selu", "threshold"),
):
    FUNCTIONS.setdefault(_name, LAYERS[_name])
for _name in ("det", "slogdet"):
    FUNCTIONS.setdefault(_name, LINALG[_name])
for _name in (
    *("digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "log_softmax", "logit"),
    *("logsumexp", "round", "sinc", "softmax", "xlogy"),
    *("expit=sigmoid", "gammaln=lgamma", "multigammaln=mvlgamma", "psi=digamma"),
):
    _own, _, _of = _name.partition("=")
    SPECIAL.setdefault(_own, FUNCTIONS[_of or _own])
for _name in (
    *("diagonal", "narrow", "permute", "select", "split_with_sizes", "squeeze", "t", "transpose"),
    *("unbind", "unsqueeze"),
):  # the same elements in memory of their own
    _view = FUNCTIONS[_name]
    _face = Face(f"{_name}_copy", method=False, sizes=_view.face.sizes)
    publish(Public(_view.expression, _face))

__all__ = [
    "activation",
    "attention",
    "contract",
    "convolution",
    "create",
    "elementwise",
    "index",
    "linear",
    "loss",
    "movement",
    "norm",
    "pool",
    "quantize",
    "reduce",
    "resample",
    "rotary",
    "sort",
    "special",
    "spectral",
]
