"""Tensors, automatic differentiation, captured training steps, layers and optimizers.

PyTorch's names and meaning; a tensor is lazy. docs/coming-from-pytorch.md lists what differs:

    import stack.framework as ht
    from stack.framework import nn, optim
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stack.collector import loading

with loading():  # all of the package
    from stack.framework import (
        amp,
        array_api,
        autograd,
        control,
        fft,
        func,
        functional,
        functions,
        linalg,
        nn,
        optim,
        platforms,
        random,
        signal,
        special,
    )

from stack.framework.amp import GradScaler
from stack.framework.control import associative_scan, cond, scan, while_loop
from stack.framework.create import (
    arange,
    as_tensor,
    asarray,
    bartlett_window,
    blackman_window,
    combinations,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    hamming_window,
    hann_window,
    kaiser_window,
    linspace,
    logspace,
    ones,
    ones_like,
    scalar_tensor,
    tensor,
    tril_indices,
    triu_indices,
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
from stack.framework.facts import (
    SCRIPTING,
    are_deterministic_algorithms_enabled,
    broadcast_shapes,
    can_cast,
    clone,
    compile,
    detach,
    e,
    get_default_dtype,
    get_float32_matmul_precision,
    get_num_threads,
    inf,
    is_floating_point,
    is_nonzero,
    is_same_size,
    is_signed,
    is_tensor,
    layout,
    memory_format,
    nan,
    newaxis,
    numel,
    pi,
    promote_types,
    result_type,
    set_default_dtype,
    set_float32_matmul_precision,
    set_num_threads,
    set_printoptions,
    unravel_index,
    use_deterministic_algorithms,
)
from stack.framework.fft import istft, stft
from stack.framework.func import vmap
from stack.framework.functions import *
from stack.framework.jit import (
    jit,
)
from stack.framework.layout import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    preserve_format,
    strided,
)
from stack.framework.modes import (
    autocast,
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
)
from stack.framework.modes import grad_enabled as is_grad_enabled
from stack.framework.pairs import (
    ComplexTensor,
    cdouble,
    cfloat,
    complex64,
    complex128,
    imag,
    is_complex,
    is_conj,
    polar,
    real,
    view_as_complex,
    view_as_real,
)
from stack.framework.pairs import complex_ as complex
from stack.framework.platforms import accelerator, backends, cuda, mps, version, xpu
from stack.framework.random import (
    Generator,
    bernoulli,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)
from stack.framework.realize import (
    realize,
)
from stack.framework.tensor import Extents as Size
from stack.framework.tensor import (
    Tensor,
    equal,
    grad,
)
from stack.framework.typed import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)

if TYPE_CHECKING:
    from stack.framework import checkpoint, distributions, utils
    from stack.framework.checkpoint import load, save
    from stack.framework.distributions.discrete import poisson

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "CheckpointError",
    "ComplexTensor",
    "DoubleTensor",
    "FloatTensor",
    "Generator",
    "GradScaler",
    "GradientError",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "RangeError",
    "ShortTensor",
    "Size",
    "Tensor",
    "TensorError",
    "TracingError",
    "accelerator",
    "amp",
    "arange",
    "are_deterministic_algorithms_enabled",
    "array_api",
    "as_tensor",
    "asarray",
    "associative_scan",
    "autocast",
    "autograd",
    "backends",
    "bartlett_window",
    "bernoulli",
    "bfloat16",
    "blackman_window",
    "bool",
    "broadcast_shapes",
    "can_cast",
    "cdouble",
    "cfloat",
    "channels_last",
    "channels_last_3d",
    "checkpoint",
    "clone",
    "combinations",
    "compile",
    "complex",
    "complex64",
    "complex128",
    "cond",
    "contiguous_format",
    "control",
    "cuda",
    "default_device",
    "default_generator",
    "detach",
    "device",
    "distributions",
    "double",
    "dtype",
    "e",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "eye",
    "fft",
    "finfo",
    "float",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "functional",
    "get_default_device",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
    "get_rng_state",
    "grad",
    "half",
    "hamming_window",
    "hann_window",
    "iinfo",
    "imag",
    "inf",
    "inference_mode",
    "initial_seed",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_complex",
    "is_conj",
    "is_floating_point",
    "is_grad_enabled",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_tensor",
    "istft",
    "jit",
    "kaiser_window",
    "layout",
    "linalg",
    "linspace",
    "load",
    "logspace",
    "long",
    "manual_seed",
    "memory_format",
    "mps",
    "nan",
    "newaxis",
    "nn",
    "no_grad",
    "numel",
    "ones",
    "ones_like",
    "optim",
    "pi",
    "platforms",
    "poisson",
    "polar",
    "preserve_format",
    "promote_types",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "real",
    "realize",
    "result_type",
    "save",
    "scalar_tensor",
    "scan",
    "seed",
    "set_default_device",
    "set_default_dtype",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_num_threads",
    "set_printoptions",
    "set_rng_state",
    "short",
    "signal",
    "special",
    "stft",
    "strided",
    "tensor",
    "tril_indices",
    "triu_indices",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unravel_index",
    "use_deterministic_algorithms",
    "utils",
    "version",
    "view_as_complex",
    "view_as_real",
    "vmap",
    "while_loop",
    "xpu",
    "zeros",
    "zeros_like",
]
__all__ += functions.__all__

# What programs write around Python for PyTorch's compiler of it: here `jit` captures functions.
vars(jit).update(SCRIPTING)

_LATER = ("checkpoint", "distributions", "utils")
_HOMES = {"load": "checkpoint", "save": "checkpoint", "poisson": "distributions.discrete"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What many programs do not use, from its module, which is then loaded; else an operator
        that was added since."""
        if name in _LATER:
            return import_module(f"{__name__}.{name}")
        if name in _HOMES:
            home = import_module(f"{__name__}.{_HOMES[name]}")
            value = globals()[name] = getattr(home, name)
            return value
        return getattr(functions, name)
