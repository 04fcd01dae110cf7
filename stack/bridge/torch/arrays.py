"""Tensors of torch as arrays of numpy that share their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import torch
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from stack.bridge.torch.names import NAME

Array = NDArray[Any]
_NUMBERS = {
    torch.bool,
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
}
"""The element types that groups know."""


_BY_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
"""Element types that numpy knows by ml_dtypes alone."""


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a `packed` tensor of the host, in one dimension; complex ones as pairs.

    Raises InvalidCall for tensors of other devices or layouts, and of types without arithmetic.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise InvalidCall(
            f"backend hal moves dense tensors of the host and of {NAME}; this one is "
            f"{tensor.layout} on {tensor.device}"
        )
    flat = tensor.detach().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    if flat.dtype in _BY_BITS:
        bits, dtype = _BY_BITS[flat.dtype]
        return _shared(flat.view(bits)).view(dtype)
    try:
        return _shared(flat)
    except TypeError as error:
        raise InvalidCall(f"backend hal has no element type {tensor.dtype}") from error


def elements_of(tensor: torch.Tensor) -> Array:
    """As `array_of`, for operations that only move elements: those without arithmetic as bytes."""
    known = tensor.dtype in _NUMBERS or tensor.is_complex()
    return array_of(tensor if known else tensor.detach().view(-1).view(torch.uint8))


def count_of(tensor: torch.Tensor) -> int:
    """How many elements `elements_of` has."""
    if tensor.dtype in _NUMBERS:
        return int(tensor.numel())
    return int(2 * tensor.numel() if tensor.is_complex() else tensor.nbytes)


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is of the host and has no gaps, else a copy that is so; of one of
    the device it waits for what computes it."""
    if tensor.layout is not torch.strided:
        return tensor  # which array_of refuses
    return (tensor.detach().cpu() if is_away(tensor) else tensor.detach()).contiguous()


def is_away(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of the device, and so goes through a copy of the host."""
    return bool(tensor.device.type == NAME)


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether `packed` gives the tensor's own memory."""
    return tensor.is_contiguous() and not is_away(tensor)


def give(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write into a tensor, whatever the thread that does it."""
    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(values)


def unpack(
    copies: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
) -> Callable[[], None] | None:
    """What gives tensors the values of what `packed` made of them; None where they have them."""
    pairs = [(t, copy) for t, copy in zip(tensors, copies, strict=True) if not is_packed(t)]
    if not pairs:
        return None

    def unpacked() -> None:
        for tensor, copy in pairs:
            give(tensor, copy)

    return unpacked


def _shared(flat: torch.Tensor) -> Array:
    array: Array = flat.numpy()
    return array
