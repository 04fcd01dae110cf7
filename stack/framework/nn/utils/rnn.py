"""Sequences of several lengths: padded to one, or packed without the padding, as recurrent layers
take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stack.framework.create import full, tensor
from stack.framework.errors import TensorError, where_called
from stack.framework.functions import cat, stack
from stack.framework.tensor import Tensor
from stack.framework.within import values_of

Integers = npt.NDArray[np.int64]


class PackedSequence(NamedTuple):
    """Sequences, the longest first, as the steps of all: `data` has first the step 0 of each, then
    the step 1 of those that have one, and so on; `batch_sizes` (on the host's processor) how many
    have each step. `sorted_indices` is which of the given sequences each one is, `unsorted_indices`
    where each given one is; None where they were sorted."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def with_data(self, data: Tensor) -> PackedSequence:
        """The same lengths with other values."""
        return self._replace(data=data)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With `data` moved or converted as by `Tensor.to`; the order moves with it."""
        data = self.data.to(*args, **kwargs)
        orders = (
            None if x is None else x.to(data.device)
            for x in (self.sorted_indices, self.unsorted_indices)
        )  # fmt: skip
        return PackedSequence(data, self.batch_sizes, *orders)

    @property
    def device(self) -> str:
        return self.data.device

    @property
    def lengths(self) -> Integers:
        """The length of each sequence, the longest first."""
        sizes = integers(self.batch_sizes)
        has = sizes[None, :] > np.arange(sizes[0])[:, None]
        return np.asarray(has.sum(1), np.int64)


def integers(x: Any) -> Integers:
    """The integers of a tensor, which may be read while a function is traced if they were given
    from the host; or of a sequence."""
    if not isinstance(x, Tensor):
        return np.asarray(x, np.int64)
    known = values_of(x.node)
    return np.asarray(x.numpy() if known is None else known.all, np.int64)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Where each number is."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Sequences of [time, batch, ...], or with batch_first [batch, time, ...], without what is
    beyond their lengths, a list or a tensor of integers. With enforce_sorted the longest come
    first. Raises TensorError for lengths that are in another order, or none of the input's."""
    x = input.transpose(0, 1) if batch_first else input
    sizes, order = integers(lengths), None
    steps, count = x.shape[:2]
    if sizes.shape != (count,) or sizes.min(initial=1) < 1 or sizes.max(initial=1) > steps:
        raise TensorError(
            f"pack_padded_sequence: lengths {sizes.tolist()[:8]} are not 1 to {steps} for each of "
            f"{count} sequences\n  called at {where_called()}"
        )
    if not enforce_sorted:
        order = np.argsort(-sizes, kind="stable")
        x, sizes = x[:, tensor(order, device=x.device)], sizes[order]
    elif (np.diff(sizes) > 0).any():
        raise TensorError(
            f"pack_padded_sequence: lengths {sizes.tolist()[:8]} do not fall; sort the sequences, "
            f"or give enforce_sorted=False\n  called at {where_called()}"
        )
    width = int(sizes.max(initial=0))
    has = np.arange(width)[:, None] < sizes[None, :]
    places = tensor(np.flatnonzero(has), device=x.device)
    data = x[:width].reshape(width * count, *x.shape[2:])[places]
    batch_sizes = tensor(has.sum(1), device="cpu:0")
    if order is None:
        return PackedSequence(data, batch_sizes)
    there, back = (tensor(o, device=x.device) for o in (order, np.argsort(order)))
    return PackedSequence(data, batch_sizes, there, back)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequences as [time, batch, ...], or with batch_first [batch, time, ...], in the order in
    which they were given, and their lengths. `total_length` is the least time. Raises TensorError
    where a sequence is longer."""
    padded, lengths = padded_by_steps(sequence, padding_value), sequence.lengths
    steps = padded.shape[0]
    if total_length is not None and total_length < steps:
        raise TensorError(
            f"pad_packed_sequence: total_length {total_length} is less than the longest sequence's "
            f"{steps}\n  called at {where_called()}"
        )
    if total_length is not None and total_length > steps:
        more = (total_length - steps, *padded.shape[1:])
        rest = full(more, padding_value, dtype=padded.dtype, device=padded.device)
        padded = cat([padded, rest], 0)
    if sequence.unsorted_indices is not None:
        padded = padded[:, sequence.unsorted_indices]
        lengths = lengths[integers(sequence.unsorted_indices)]
    found = tensor(lengths, device="cpu:0")
    return (padded.transpose(0, 1) if batch_first else padded), found


def padded_by_steps(sequence: PackedSequence, padding_value: float) -> Tensor:
    """[time, batch, ...] of a packed sequence, the longest first."""
    data, sizes = sequence.data, integers(sequence.batch_sizes)
    begins = np.cumsum(sizes) - sizes
    has = np.arange(sizes[0])[None, :] < sizes[:, None]
    places = np.where(has, begins[:, None] + np.arange(sizes[0])[None, :], 0)
    found = data[tensor(places, device=data.device)]
    mask = tensor(has.reshape(*has.shape, *[1] * (data.ndim - 1)), device=data.device)
    return found.masked_fill(~mask, padding_value)


def packed_by_steps(x: Tensor, like: PackedSequence) -> PackedSequence:
    """[time, batch, ...], the longest first, with the lengths of another one."""
    sizes = integers(like.batch_sizes)
    has = np.arange(sizes[0])[None, :] < sizes[:, None]
    places = tensor(np.flatnonzero(has), device=x.device)
    return like.with_data(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])[places])


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences [time, ...] of several lengths as one tensor [time, batch, ...], or with
    batch_first [batch, time, ...], filled up at the right or the left."""
    if padding_side not in ("left", "right"):
        raise ValueError(f'padding_side is "left" or "right", got {padding_side!r}')
    longest, whole = max(len(x) for x in sequences), []
    for x in sequences:
        more = (longest - len(x), *x.shape[1:])
        rest = full(more, padding_value, dtype=x.dtype, device=x.device)
        whole.append(cat([rest, x] if padding_side == "left" else [x, rest], 0))
    return stack(whole, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of `pad_sequence` again."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[: int(n)] for row, n in zip(x, integers(lengths), strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences [time, ...] of several lengths, packed."""
    lengths = [len(x) for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of `pack_sequence` again."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))
