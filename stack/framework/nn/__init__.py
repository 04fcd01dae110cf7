"""Layers, losses and the base to write more of them."""

from stack.framework import functional
from stack.framework.nn import init, utils
from stack.framework.nn.activations import (
    GELU,
    CrossEntropyLoss,
    Flatten,
    Identity,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from stack.framework.nn.containers import ModuleDict, ModuleList, Sequential
from stack.framework.nn.layers import (
    CausalSelfAttention,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    RMSNorm,
)
from stack.framework.nn.module import Module, Parameter
from stack.framework.optim.clip import clip_grad_norm_

__all__ = [
    "GELU",
    "CausalSelfAttention",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "clip_grad_norm_",
    "functional",
    "init",
    "utils",
]
