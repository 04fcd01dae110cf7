"""What calls of a process group must look like. A wrong one is refused before it begins, in the
words of torch's own backend gloo, by which torch's tests and callers know it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stack.bridge.torch.errors import check, refuse


def check_root(what: str, root: int, size: int) -> None:
    """A root is a rank of the group."""
    check(0 <= root < size, what, f"invalid root rank: {root}; the group has {size} ranks")


def check_root_tensor(what: str, number: int, tensors: Sequence[Tensor]) -> None:
    """It is one of those that the root gives."""
    check(0 <= number < len(tensors), what, f"invalid root tensor: {number} of {len(tensors)}")


def check_single(what: str, tensors: Sequence[object], which: str) -> None:
    """A list has one element."""
    check(len(tensors) == 1, what, f"requires a single-element {which}; it has {len(tensors)}")


def check_some(what: str, tensors: Sequence[object], which: str = "tensor list") -> None:
    """A list is not empty."""
    check(tensors, what, f"requires non-empty {which}")


def check_alike(what: str, tensors: Sequence[Tensor], of: Tensor | None = None) -> None:
    """All tensors have the layout, element type and shape of `of`, by default of the first one."""
    model = tensors[0] if of is None else of
    for i, tensor in enumerate(tensors):
        for which, found, wanted in (
            ("layout", tensor.layout, model.layout),
            ("type", tensor.dtype, model.dtype),
            ("size", list(tensor.shape), list(model.shape)),
        ):
            if found != wanted:
                why = f"invalid tensor {which} at index {i} (expected {wanted}, got {found})"
                refuse(what, why)


def check_coalesced(what: str, tensors: Sequence[Tensor]) -> None:
    """Tensors that go in one buffer are dense and of one element type."""
    check_some(what, tensors)
    for i, tensor in enumerate(tensors):
        alike = tensor.layout == tensors[0].layout
        check(alike, what, f"invalid tensor layout at index {i}: {tensor.layout}")
        check(tensor.dtype == tensors[0].dtype, what, "tensors must all have the same type")
    dense = tensors[0].layout is torch.strided
    check(dense, what, f"unsupported layout: {tensors[0].layout}")


def check_pairs(what: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """There is an output for each input."""
    check_some(what, inputs, "input tensor list")
    same = len(outputs) == len(inputs)
    check(same, what, "requires input/output tensor lists to have the same length")


def check_list_size(what: str, which: str, tensors: Sequence[Tensor], size: int) -> None:
    """There is one tensor for each rank."""
    check(
        len(tensors) == size,
        what,
        f"Incorrect {which} list size {len(tensors)}. {which.capitalize()} list size should be "
        f"{size}, same as size of the process group.",
    )


def check_gathered(
    what: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
) -> None:
    """For each input there is a list of what all ranks' inputs fill."""
    check_some(what, inputs, "input tensor list")
    same = len(outputs) == len(inputs)
    check(same, what, "requires input/output tensor lists to have the same length")
    for i, parts in enumerate(outputs):
        wanted = len(inputs) * size
        lengths = f"(expected length {wanted}, got {len(parts)})"
        check(len(parts) == wanted, what, f"invalid output tensor list at index {i} {lengths}")
    check_alike(what, inputs)
    for parts in outputs:
        check_alike(what, parts, inputs[0])


def check_gathered_coalesced(
    what: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
) -> None:
    """For each rank there is a list of what its inputs fill."""
    check_some(what, inputs, "input tensor list")
    check(len(outputs) == size, what, "output lists should be equal to world size")
    for parts in outputs:
        why = f"invalid output size: (expected length {len(inputs)}, got {len(parts)})"
        check(len(parts) == len(inputs), what, why)
        for i, (part, own) in enumerate(zip(parts, inputs, strict=True)):
            wanted = f"(expected {list(own.shape)}, got {list(part.shape)})"
            why = f"invalid size of output tensor at index {i} {wanted}"
            check(part.shape == own.shape, what, why)
            wanted = f"(expected {own.dtype}, got {part.dtype})"
            check(part.dtype == own.dtype, what, f"invalid tensor type at index {i} {wanted}")


def check_splits(what: str, tensor: Tensor, splits: Sequence[int] | None, size: int) -> list[int]:
    """How many of a tensor's rows each rank has; equally many without `splits`."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not splits:
        check(rows % size == 0, what, f"{rows} rows do not divide equally among {size} ranks")
        return [rows // size] * size
    check(len(splits) == size, what, f"{len(splits)} splits are not one for each of {size} ranks")
    whole = min(splits) >= 0 and sum(splits) == rows
    check(whole, what, f"Split sizes {list(splits)} doesn't match total dim 0 size {rows}")
    return list(splits)
