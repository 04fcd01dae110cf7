"""Tensors of torch as arrays of numpy that share their memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from hal.core.errors import InvalidCall

Array = NDArray[Any]


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a contiguous tensor of the host, in one dimension; complex ones as pairs.

    Raises InvalidCall for tensors of other devices, with gaps, and of types without arithmetic.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise InvalidCall(
            f"backend hal moves dense tensors of the host; this one is {tensor.layout} on "
            f"{tensor.device}"
        )
    if not tensor.is_contiguous():
        raise InvalidCall("backend hal takes contiguous tensors; call .contiguous()")
    flat = tensor.detach().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    if flat.dtype is torch.bfloat16:
        return _shared(flat.view(torch.int16)).view(ml_dtypes.bfloat16)
    try:
        return _shared(flat)
    except TypeError as error:
        raise InvalidCall(f"backend hal has no element type {tensor.dtype}") from error


def bytes_of(tensor: torch.Tensor) -> Array:
    """The same memory as bytes, for operations that only move elements."""
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return _shared(tensor.detach().view(-1).view(torch.uint8))
    return array_of(tensor).view(np.uint8)


def _shared(flat: torch.Tensor) -> Array:
    array: Array = flat.numpy()
    return array
