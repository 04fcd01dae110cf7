"""Tensors, automatic differentiation, captured training steps, layers and optimizers.

PyTorch's names and meaning; a tensor is lazy. docs/coming-from-pytorch.md lists what differs:

    import stack.framework as ht
    from stack.framework import nn, optim
"""

from typing import TYPE_CHECKING, Any

from stack.framework import (
    amp,
    autograd,
    checkpoint,
    distributions,
    func,
    functional,
    functions,
    linalg,
    nn,
    optim,
    random,
    special,
    utils,
)
from stack.framework.checkpoint import (
    load,
    save,
)
from stack.framework.create import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from stack.framework.devices import Device as device
from stack.framework.devices import (
    default_device,
    get_default_device,
    set_default_device,
)
from stack.framework.dtypes import (
    bfloat16,
    double,
    dtype,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    half,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    long,
    short,
    uint8,
    uint16,
    uint32,
    uint64,
)
from stack.framework.dtypes import bool_ as bool
from stack.framework.dtypes import float_ as float
from stack.framework.dtypes import int_ as int
from stack.framework.errors import (
    CheckpointError,
    GradientError,
    RangeError,
    TensorError,
    TracingError,
)
from stack.framework.functions import *
from stack.framework.jit import (
    jit,
)
from stack.framework.mode import (
    autocast,
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
)
from stack.framework.mode import grad_enabled as is_grad_enabled
from stack.framework.random import (
    Generator,
    bernoulli,
    default_generator,
    manual_seed,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
)
from stack.framework.realize import (
    realize,
)
from stack.framework.tensor import (
    Tensor,
    equal,
    grad,
)

__all__ = [
    "CheckpointError",
    "Generator",
    "GradientError",
    "RangeError",
    "Tensor",
    "TensorError",
    "TracingError",
    "amp",
    "arange",
    "as_tensor",
    "autocast",
    "autograd",
    "bernoulli",
    "bfloat16",
    "bool",
    "checkpoint",
    "default_device",
    "default_generator",
    "device",
    "distributions",
    "double",
    "dtype",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "eye",
    "finfo",
    "float",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "functional",
    "get_default_device",
    "grad",
    "half",
    "iinfo",
    "inference_mode",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "jit",
    "linalg",
    "linspace",
    "load",
    "long",
    "manual_seed",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "optim",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "realize",
    "save",
    "set_default_device",
    "set_grad_enabled",
    "short",
    "special",
    "tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "utils",
    "zeros",
    "zeros_like",
]
__all__ += functions.__all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Operators that were added since."""
        return getattr(functions, name)
