"""Layers that take the number of their input's channels from the first input."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Signature, signature
from typing import Any

from stack.framework.nn.convolutions import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from stack.framework.nn.layers import Linear
from stack.framework.nn.module import Module, UninitializedParameter
from stack.framework.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from stack.framework.tensor import Tensor


class Lazy(Module):
    """A layer of the kind `becomes`, given all that this takes but its first argument, which is the
    size of `axis` of the first input. The first forward draws its parameters and makes it one of
    that kind."""

    becomes: type[Module]
    axis: int
    usual: Mapping[str, Any] = {}
    """Arguments that are others than the layer's where they are not given."""
    __signature__: Signature

    def __init_subclass__(cls) -> None:
        _, *taken = signature(cls.becomes).parameters.values()
        own = [p.replace(default=cls.usual.get(p.name, p.default)) for p in taken]
        cls.__signature__ = Signature(own)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        self._given = given.arguments
        affine, device, dtype = (self._given.get(k) for k in ("affine", "device", "dtype"))
        for name in ("weight", "bias"):
            if affine is not False and self._given.get(name, True):
                self.register_parameter(name, UninitializedParameter(device, dtype))

    def has_uninitialized_params(self) -> bool:
        """Whether it waits for its first input."""
        return type(self) is not self.becomes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given: Any = args[0] if args else kwargs["input"]
        self.initialize_parameters(given)
        return self(*args, **kwargs)

    def initialize_parameters(self, input: Tensor) -> None:
        """Become the layer for inputs like this one."""
        size = input.shape[self.axis]
        given = dict(self._given)
        for p in self.parameters(recurse=False):
            given["device"], given["dtype"] = p.device, p.dtype
        made: Any = self.becomes
        built = vars(made(size, **given))
        del self._given
        vars(self).update({k: v for k, v in built.items() if k not in ("training", "_hooks")})
        object.__setattr__(self, "__class__", self.becomes)

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self._given.items())


class LazyLinear(Lazy):
    """`Linear(in_features, ...)`."""

    becomes, axis = Linear, -1


class LazyConv1d(Lazy):
    """`Conv1d(in_channels, ...)`."""

    becomes, axis = Conv1d, -2


class LazyConv2d(Lazy):
    """`Conv2d(in_channels, ...)`."""

    becomes, axis = Conv2d, -3


class LazyConv3d(Lazy):
    """`Conv3d(in_channels, ...)`."""

    becomes, axis = Conv3d, -4


class LazyConvTranspose1d(Lazy):
    """`ConvTranspose1d(in_channels, ...)`."""

    becomes, axis = ConvTranspose1d, -2


class LazyConvTranspose2d(Lazy):
    """`ConvTranspose2d(in_channels, ...)`."""

    becomes, axis = ConvTranspose2d, -3


class LazyConvTranspose3d(Lazy):
    """`ConvTranspose3d(in_channels, ...)`."""

    becomes, axis = ConvTranspose3d, -4


class LazyBatchNorm1d(Lazy):
    """`BatchNorm1d(num_features, ...)`."""

    becomes, axis = BatchNorm1d, 1


class LazyBatchNorm2d(Lazy):
    """`BatchNorm2d(num_features, ...)`."""

    becomes, axis = BatchNorm2d, 1


class LazyBatchNorm3d(Lazy):
    """`BatchNorm3d(num_features, ...)`."""

    becomes, axis = BatchNorm3d, 1


_RUNNING = {"affine": True, "track_running_stats": True}


class LazyInstanceNorm1d(Lazy):
    """`InstanceNorm1d(num_features, ...)`, with parameters and running statistics."""

    becomes, axis, usual = InstanceNorm1d, -2, _RUNNING


class LazyInstanceNorm2d(Lazy):
    """`InstanceNorm2d(num_features, ...)`, with parameters and running statistics."""

    becomes, axis, usual = InstanceNorm2d, -3, _RUNNING


class LazyInstanceNorm3d(Lazy):
    """`InstanceNorm3d(num_features, ...)`, with parameters and running statistics."""

    becomes, axis, usual = InstanceNorm3d, -4, _RUNNING
