"""PyTorch's places of layers, by which programs name base classes and pairs of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stack.framework.nn import containers, convolutions, layers, module, norms, transformer
from stack.framework.nn.module import Buffer, Parameter, UninitializedParameter
from stack.framework.platforms import Namespace


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """What makes n numbers of one; several stay as they are."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


_pair = _ntuple(2, "_pair")


def _classes(of: Any) -> dict[str, Any]:
    """The layers that a file makes."""
    own = vars(of).items()
    return {n: c for n, c in own if isinstance(c, type) and c.__module__ == of.__name__}


parameter = Namespace(
    "nn.parameter",
    "Where PyTorch has parameters.",
    Parameter=Parameter,
    Buffer=Buffer,
    UninitializedParameter=UninitializedParameter,
)
modules = Namespace(
    "nn.modules",
    __doc__,
    Module=module.Module,
    module=Namespace("nn.modules.module", "The base of layers.", Module=module.Module),
    utils=Namespace(
        "nn.modules.utils",
        "Numbers for each axis.",
        _ntuple=_ntuple,
        _single=_ntuple(1, "_single"),
        _pair=_pair,
        _triple=_ntuple(3, "_triple"),
        _quadruple=_ntuple(4, "_quadruple"),
    ),
    batchnorm=Namespace("nn.modules.batchnorm", norms.__doc__, **_classes(norms)),
    normalization=Namespace("nn.modules.normalization", norms.__doc__, **_classes(norms)),
    conv=Namespace(
        "nn.modules.conv",
        convolutions.__doc__,
        _ConvNd=convolutions._Convolution,
        **_classes(convolutions),
    ),
    container=Namespace("nn.modules.container", containers.__doc__, **_classes(containers)),
    linear=Namespace("nn.modules.linear", layers.__doc__, **_classes(layers)),
    transformer=Namespace("nn.modules.transformer", transformer.__doc__, **_classes(transformer)),
)
