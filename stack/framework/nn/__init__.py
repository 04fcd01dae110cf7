"""Layers, losses and the base to write more of them."""

import sys
from typing import TYPE_CHECKING, Any

from stack.framework import functional, optim
from stack.framework.errors import absent
from stack.framework.nn import averages, init, rows, utils
from stack.framework.nn.containers import (
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from stack.framework.nn.convolutions import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from stack.framework.nn.experts import MixtureOfExperts, Routing
from stack.framework.nn.layers import (
    Bilinear,
    CausalSelfAttention,
    Embedding,
    EmbeddingBag,
    Linear,
    PReLU,
)
from stack.framework.nn.lazy import (
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
    LazyLinear,
)
from stack.framework.nn.module import Buffer, Module, Parameter, UninitializedParameter
from stack.framework.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from stack.framework.nn.places import modules, parameter
from stack.framework.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from stack.framework.nn.shapes import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    Flatten,
    Identity,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Unflatten,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from stack.framework.nn.transformer import (
    MultiheadAttention,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from stack.framework.optim.clip import clip_grad_norm_

# `import ...nn.functional as F` finds it as it finds PyTorch's.
sys.modules[f"{__name__}.functional"] = functional
# The averages are of modules, which lie above optimizers.
sys.modules[f"{optim.__name__}.swa_utils"] = averages
vars(optim)["swa_utils"] = averages

if TYPE_CHECKING:
    from stack.framework.nn.rows import *

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Buffer",
    "CausalSelfAttention",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LSTMCell",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PReLU",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "RNNCell",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Routing",
    "Sequential",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "UninitializedParameter",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "clip_grad_norm_",
    "functional",
    "init",
    "modules",
    "parameter",
    "utils",
]
__all__ += rows.__all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A module of the table of rows, which is then made."""
        if name in rows.__all__:
            value = globals()[name] = getattr(rows, name)
            return value
        raise absent("nn", name, __all__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *rows.__all__})
