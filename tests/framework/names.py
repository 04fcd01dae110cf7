"""PyTorch's public names that are here and that are not, as docs/torch-names.md.

python -m tests.framework.names
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch.overrides import get_testing_overrides

import stack.framework as ht
from stack.framework.expr.public import FUNCTIONS, LAYERS, LINALG, METHODS, OPERANDS, SPECIAL

PAGE = Path(__file__).parents[2] / "docs" / "torch-names.md"
SPACES = (
    ("torch", torch, ht),
    ("torch.Tensor", torch.Tensor, ht.Tensor),
    ("torch.nn", torch.nn, ht.nn),
    ("torch.nn.functional", torch.nn.functional, ht.nn.functional),
    ("torch.nn.init", torch.nn.init, ht.nn.init),
    ("torch.nn.utils", torch.nn.utils, ht.nn.utils),
    ("torch.optim", torch.optim, ht.optim),
    ("torch.optim.lr_scheduler", torch.optim.lr_scheduler, ht.optim.lr_scheduler),
    ("torch.linalg", torch.linalg, ht.linalg),
    ("torch.fft", torch.fft, ht.fft),
    ("torch.special", torch.special, ht.special),
    ("torch.utils.data", torch.utils.data, ht.utils.data),
    ("torch.distributions", torch.distributions, ht.distributions),
    ("torch.func", torch.func, ht.func),
)

OTHERWISE = {
    "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward": "nn.functional.adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "nn.functional.adaptive_avg_pool3d",
    "_cdist_forward": "cdist",
    "_embedding_bag": "nn.functional.embedding_bag",
    "_fft_c2r": "fft.irfft",
    "_fft_r2c": "fft.rfft",
    "_local_scalar_dense": "Tensor.item",
    "_log_softmax": "log_softmax",
    "_native_batch_norm_legit": "nn.functional.batch_norm",
    "_native_batch_norm_legit_no_training": "nn.functional.batch_norm",
    "_pdist_forward": "nn.functional.pdist",
    "_softmax": "softmax",
    "_to_copy": "Tensor.to",
    "alias": "Tensor.detach",
    "arange": "arange",
    "avg_pool2d_backward": "nn.functional.avg_pool2d",
    "clone": "Tensor.clone",
    "constant_pad_nd": "nn.functional.pad",
    "convolution": "nn.functional.conv2d",
    "convolution_backward": "nn.functional.conv2d",
    "copy": "Tensor.copy_",
    "embedding_dense_backward": "nn.functional.embedding",
    "empty": "empty",
    "full": "full",
    "full_like": "full_like",
    "grid_sampler_2d": "nn.functional.grid_sample",
    "index": "Tensor.__getitem__",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool2d_with_indices_backward": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "native_dropout": "nn.functional.dropout",
    "native_group_norm": "nn.functional.group_norm",
    "native_group_norm_backward": "nn.functional.group_norm",
    "native_layer_norm_backward": "nn.functional.layer_norm",
    "rand": "rand",
    "randn": "randn",
    "randperm": "randperm",
    "reflection_pad1d": "nn.functional.pad",
    "reflection_pad2d": "nn.functional.pad",
    "reflection_pad3d": "nn.functional.pad",
    "replication_pad2d": "nn.functional.pad",
    "replication_pad3d": "nn.functional.pad",
    "scalar_tensor": "scalar_tensor",
    "slice": "Tensor.__getitem__",
    "sym_numel": "Tensor.numel",
    "sym_size": "Tensor.size",
    "sym_storage_offset": "Tensor.storage_offset",
    "sym_stride": "Tensor.stride",
    "view": "Tensor.view",
}
"""What serves an operation of Core ATen that has another name here; gradients, their forward."""

ARRAY_API = """
e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64
complex64 complex128 arange asarray empty empty_like eye from_dlpack full full_like linspace
meshgrid ones ones_like tril triu zeros zeros_like astype broadcast_arrays broadcast_shapes
broadcast_to can_cast finfo iinfo isdtype result_type abs acos acosh add asin asinh atan atan2
atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift bitwise_xor
ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater greater_equal
hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and
logical_not logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive
pow real reciprocal remainder round sign signbit sin sinh square sqrt subtract tan tanh trunc
matmul matrix_transpose tensordot vecdot concat expand_dims flip moveaxis permute_dims repeat
reshape roll squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where
take take_along_axis unique_all unique_counts unique_inverse unique_values argsort sort
cumulative_prod cumulative_sum max mean min prod std sum var all any diff linalg.cholesky
linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh linalg.inv linalg.matmul
linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_transpose linalg.outer
linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot
linalg.trace linalg.vecdot linalg.vector_norm fft.fft fft.ifft fft.fftn fft.ifftn fft.rfft
fft.irfft fft.rfftn fft.irfftn fft.hfft fft.ihfft fft.fftfreq fft.rfftfreq fft.fftshift
fft.ifftshift
"""
"""The names of the array API standard 2024.12."""

IGNORED = {
    *("out", "layout", "memory_format", "pin_memory", "names", "args", "kwargs", "self"),
    *("_stacklevel", "size_average", "reduce", "orig_func", "out_dtype"),
}  # fmt: skip
"""Parameters that choose what we have one of, or that PyTorch has given up."""


def public(space: object) -> list[str]:
    """Names that a user is meant to call: without modules and underscores."""
    return sorted(
        name
        for name in dir(space)
        if not name.startswith("_") and not inspect.ismodule(getattr(space, name, None))
    )


def found(path: str, space: Any = ht) -> bool:
    """Whether there is something of that dotted name."""
    for part in path.split("."):
        if not hasattr(space, part):
            return False
        space = getattr(space, part)
    return True


def core() -> dict[str, bool]:
    """Whether each operation of Core ATen, as PyTorch tags them, is served."""
    names = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = packet.overloads() if hasattr(packet, "overloads") else ()
        if any(torch.Tag.core in getattr(packet, o).tags for o in overloads):
            names.add(name)
    ours = set()
    for table in (FUNCTIONS, METHODS, LAYERS, LINALG, SPECIAL):
        ours |= {part for name, row in table.items() for part in (name, row.face.aten)}
    return {n: n in ours or (n in OTHERWISE and found(OTHERWISE[n])) for n in sorted(names)}


def _signature(function: Any, declared: dict[Any, Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(declared.get(function, function))
    except (TypeError, ValueError):
        return None


def differences() -> Iterator[str]:
    """Where a parameter of PyTorch's is not taken, or has another default."""
    declared = get_testing_overrides()
    for title, theirs, ours in SPACES:
        for name in public(theirs):
            one, two = getattr(theirs, name), getattr(ours, name, None)
            if not (callable(one) and callable(two)):
                continue
            given, taken = _signature(one, declared), _signature(two, {})
            if given is None or taken is None:
                continue
            own = {OPERANDS.get(n, n): p for n, p in taken.parameters.items()}
            if any(p.kind is p.VAR_KEYWORD for p in own.values()):
                continue
            wanted = {n: p for n, p in given.parameters.items() if n not in IGNORED}
            row = getattr(two, "__wrapped__", None)
            inplace = {"inplace"} if row is not None and title.endswith("functional") else set()
            missing = [n for n in list(wanted)[1:] if n not in own.keys() | inplace]
            other = [
                f"{n}={own[n].default!r}, not {p.default!r}"
                for n, p in wanted.items()
                if n in own and p.default is not p.empty and p.default != own[n].default
                and "<" not in f"{p.default!r}{own[n].default!r}"
            ]  # fmt: skip
            if missing or other:
                text = "; ".join([*[f"without `{n}`" for n in missing], *[f"`{o}`" for o in other]])
                yield f"| `{title}.{name}` | {text.replace('|', chr(92) + '|')} |"


def page() -> str:
    parts = ["# PyTorch's names", "", "Written by `python -m tests.framework.names`.", ""]
    parts += ["| where | here | of PyTorch's |", "| --- | --- | --- |"]
    absent = {}
    for title, theirs, ours in SPACES:
        names = public(theirs)
        absent[title] = [name for name in names if not hasattr(ours, name)]
        parts.append(f"| `{title}` | {len(names) - len(absent[title])} | {len(names)} |")
    served = core()
    lacking = [name for name, is_served in served.items() if not is_served]
    parts += ["", "## Core ATen", ""]
    parts += [f"{len(served) - len(lacking)} of {len(served)} operations are served, by rows of"]
    parts += [f"their name, or of another one; not: {', '.join(lacking) or 'none'}."]
    every = ARRAY_API.split()
    standard = [name for name in every if not found(name, ht.array_api)]
    parts += ["", "## Array API 2024.12", ""]
    text = f"{len(every) - len(standard)} of {len(every)} names are in `array_api`; not: "
    parts += [fill(f"{text}{', '.join(standard) or 'none'}.", 120)]
    parts += ["", "## Other parameters", "", "As PyTorch's own tests declare its signatures.", ""]
    parts += ["| name | here |", "| --- | --- |", *differences()]
    for title, names in absent.items():
        parts += ["", f"## Not here: `{title}`", "", fill(", ".join(names), 120)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
