"""PyTorch's own samples of its operators (OpInfo) on ours: which names are right in float32, with
gradients.

    python -m tests.ops.opinfo                    # all names, by the graph interpreter
    python -m tests.ops.opinfo --device cpu:0 --only conv2d softmax

A name is right if each of its variants gives PyTorch's values, element types, shapes and gradients
for all of its samples (`--samples` limits them), in complex64 where it takes no float32. Sparse,
quantised and nested samples are not counted for or against a name; a name without any other sample
is not right.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
import torch

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import devices
from tests.framework.conftest import SHORT, InterpretedEngine

SAMPLES = "torch.testing._internal.common_methods_invocations"
"""Where PyTorch has its samples, in a module that takes a second to load."""

RTOL, ATOL = 2e-4, 2e-4
"""Sums are in another order; PyTorch's own tests allow 1e-5 to 1e-3 from operator to operator."""

ELEMENT_TYPES = {theirs: getattr(ht, str(theirs).removeprefix("torch.")) for theirs in SHORT}


class Mismatch(AssertionError):
    """Ours differs."""


class NotCounted(Exception):
    """A sample of what is no plain tensor of numbers."""


def ours(name: str) -> Callable[..., Any] | None:
    """The operator of that name, or None."""
    space: Any = ht
    if name in FORMS:
        return FORMS[name]
    *path, last = name.split(".")
    if path == ["nn", "functional"]:
        space, path = F, []
    for part in path:
        space = getattr(space, part, None)
    found = getattr(space, last, None)
    if not callable(found) and not path:
        found = getattr(ht.Tensor, last, None)
        if isinstance(found, property):
            return lambda x: getattr(x, last)
        if found is None and callable(change := getattr(ht.Tensor, f"{last}_", None)):
            return lambda x, *args, **named: change(x.clone(), *args, **named)
    return found if callable(found) else None


WITHOUT_MEANING = ("device", "memory_format", "layout", "pin_memory", "non_blocking")
"""Arguments that choose what we have one of."""

RANDOM = (
    "empty",
    "new_empty",
    "rand",
    "normal",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "bernoulli",
    "multinomial",
    "log_normal",
    "randint",
)
"""Names that begin so have values of their own: their shapes and element types are compared."""

FORMS: dict[str, Callable[..., Any]] = {
    "to": lambda x, *args, **named: x.to(*[a for a in args if a != "cpu"], **named),
    "zero_": lambda x: x.clone().zero_(),
    "where": lambda x, condition, other: ht.where(condition, x, other),
    "nn.functional.embedding": lambda w, i, **more: F.embedding(i, w, **more),
    "nn.functional.embedding_bag": lambda w, i, **more: F.embedding_bag(i, w, **more),
    "polygamma": lambda x, n: ht.polygamma(n, x),
    "special.polygamma": lambda x, n: ht.special.polygamma(n, x),
    "einsum": lambda tensors, equation: ht.einsum(equation, *tensors),
    "__getitem__": lambda x, *index: x[index if len(index) > 1 else index[0]],
}
"""Names whose OpInfo takes arguments in another order than the function."""


UP_TO_SIGN = ("linalg.eigh", "linalg.svd", "svd")
"""Names whose vectors have either sign: their sizes are compared."""


def as_ours(value: Any, leaves: dict[int, Any]) -> Any:
    """A sample's argument as one of ours; `leaves` gets what requires a gradient, each once."""
    if isinstance(value, torch.Tensor):
        if id(value) in leaves:
            return leaves[id(value)]
        if value.layout != torch.strided or value.is_quantized:
            raise NotCounted
        if value.dtype in (torch.complex64, torch.complex128):
            whole = value.detach().resolve_conj().resolve_neg().numpy()
            leaves[id(value)] = ht.tensor(whole, requires_grad=value.requires_grad)
            return leaves[id(value)]
        if value.dtype not in ELEMENT_TYPES:
            raise NotCounted
        made = ht.tensor(
            value.detach().float().numpy() if value.dtype is torch.bfloat16
            else value.detach().resolve_neg().numpy(),
            dtype=ELEMENT_TYPES[value.dtype],
            requires_grad=value.requires_grad,
        )  # fmt: skip
        if value.requires_grad:
            leaves[id(value)] = made
        return made
    if value in (torch.complex64, torch.complex128):
        return getattr(ht, str(value).removeprefix("torch."))
    if isinstance(value, torch.dtype):
        if value not in ELEMENT_TYPES:
            raise NotCounted
        return ELEMENT_TYPES[value]
    if isinstance(value, torch.nn.PairwiseDistance):
        return ht.nn.PairwiseDistance(value.norm, value.eps, value.keepdim)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.layout):
        raise NotCounted
    if isinstance(value, torch.device):
        return ht.default_device()
    if isinstance(value, list | tuple):
        return type(value)(as_ours(v, leaves) for v in value)
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in WITHOUT_MEANING}
        return {k: as_ours(v, leaves) for k, v in kept.items()}
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return [t for v in value.values() for t in _tensors(v)] if isinstance(value, dict) else []


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [v for part in value for v in _flat(part)]
    return [value]


def compare(mine: Any, theirs: Any, what: str, values: bool = True) -> None:
    """Raise Mismatch unless both are the same in type, shape and, if wanted, values."""
    if not isinstance(theirs, torch.Tensor):
        if mine != theirs and not (mine != mine and theirs != theirs):
            raise Mismatch(f"{what}: {mine!r}, not {theirs!r}")
        return
    if theirs.dtype in (torch.complex64, torch.complex128):
        if not isinstance(mine, ht.ComplexTensor):
            raise Mismatch(f"{what}: {mine!r} is not complex")
        both = theirs.resolve_conj().resolve_neg()
        compare(mine.real, both.real, f"{what}, real", values)
        compare(mine.imag, both.imag, f"{what}, imaginary", values)
        return
    if theirs.dtype not in SHORT:
        raise NotCounted
    if not isinstance(mine, ht.Tensor):
        raise Mismatch(f"{what}: {mine!r} is no tensor")
    if mine.shape != tuple(theirs.shape) or mine.dtype.short != SHORT[theirs.dtype]:
        raise Mismatch(
            f"{what}: {mine.dtype.short}{list(mine.shape)}, not "
            f"{SHORT[theirs.dtype]}{list(theirs.shape)}"
        )
    if not values:
        return
    expected = theirs.detach().clone()
    wide = expected.float() if expected.dtype is torch.bfloat16 else expected
    a, b = mine.numpy().astype(np.float64), wide.resolve_neg().numpy().astype(np.float64)
    scale = ATOL * max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0) * 0.05)
    if not np.allclose(a, b, RTOL, scale, equal_nan=True):
        worst = np.nanmax(np.abs(a - b), initial=0)
        raise Mismatch(f"{what}: values differ by {worst:.3g} of {np.abs(b).max(initial=0):.3g}")


def check(function: Callable[..., Any], op: Any, sample: Any, gradient: bool) -> None:
    """Raise Mismatch, or what the function raises, where ours differs for this sample."""
    leaves: dict[int, Any] = {}
    given = as_ours((sample.input, *sample.args), leaves)
    named = as_ours(sample.kwargs, leaves)
    chance = named.get("p", 0.5 if "dropout" in op.name.split(".")[-1] else 0)
    chance = named.get("dropout_p", chance)
    if "dropout" in f"{op.name} {[*named]}" and 0 < chance < 1 and named.get("training", True):
        raise NotCounted
    theirs_in = _tensors((sample.input, *sample.args)) + _tensors(sample.kwargs)
    for t in theirs_in:
        t.grad = None
    theirs = op.op(sample.input, *sample.args, **sample.kwargs)
    mine = function(*given, **named)
    mine_flat, theirs_flat = _flat(mine), _flat(theirs)
    if len(mine_flat) != len(theirs_flat):
        raise Mismatch(f"{len(mine_flat)} results, not {len(theirs_flat)}")
    pairs = list(zip(mine_flat, theirs_flat, strict=True))
    if op.name in UP_TO_SIGN:
        pairs = [(a.abs(), b.abs()) for a, b in pairs]
    is_random = op.name.startswith(RANDOM)
    for number, (a, b) in enumerate(pairs):
        compare(a, b, f"result {number}", values=not is_random)
    if is_random or not gradient or not theirs_in:
        return
    rng = np.random.default_rng(3)
    seeds_mine, seeds_theirs = [], []
    for a, b in pairs:
        if isinstance(b, torch.Tensor) and b.requires_grad:
            if not a.requires_grad:
                raise Mismatch("no gradient is tracked")
            if b.is_complex():
                a, b = ht.view_as_real(a), torch.view_as_real(b.resolve_conj())
            weight = rng.normal(size=tuple(b.shape))
            seeds_mine.append((a * ht.tensor(weight, dtype=a.dtype)).sum())
            seeds_theirs.append((b * torch.tensor(weight, dtype=b.dtype)).sum())
    if not seeds_theirs:
        return
    sum(seeds_mine[1:], seeds_mine[0]).backward()
    sum(seeds_theirs[1:], seeds_theirs[0]).backward()
    for number, b in enumerate({id(t): t for t in theirs_in}.values()):
        a = leaves[id(b)]
        if b.grad is not None and b.grad.layout == torch.strided:
            if a.grad is None:
                if bool((b.grad != 0).any()):
                    raise Mismatch(f"no gradient of operand {number}")
                continue
            compare(a.grad, b.grad, f"gradient of operand {number}")


def judge(op: Any, most: int | None = None) -> tuple[int, list[str]]:
    """How many samples of an OpInfo are right, and why the others are not."""
    function = ours(op.name)
    if function is None:
        return 0, ["missing"]
    wanted = (torch.float32, torch.int64, torch.bool, torch.complex64)
    dtype = next((d for d in wanted if d in op.dtypes), None)
    if dtype is None:
        raise NotCounted
    gradient = dtype in (torch.float32, torch.complex64) and op.supports_autograd
    right, wrong = 0, []
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=gradient)
    for sample in islice(samples, most):
        try:
            check(function, op, sample, gradient)
            right += 1
        except NotCounted:
            continue
        except Exception as error:  # noqa: BLE001  whatever ours raises is a miss to list
            text = str(error).split("\n  called")[0].replace("\n", " ")
            shown = [tuple(sample.input.shape) if isinstance(sample.input, torch.Tensor) else "-"]
            shown += [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in sample.args]
            wrong.append(f"{type(error).__name__}: {text[:160]} {str(shown)[:90]} "
                         f"{str(sample.kwargs)[:90]}")  # fmt: skip
    return right, wrong


def names(only: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The OpInfos by name; with `only`, those whose last part it has."""
    found: dict[str, list[Any]] = defaultdict(list)
    for op in import_module(SAMPLES).op_db:
        if not only or op.name in only or op.name.split(".")[-1] in only:
            found[op.name].append(op)
    return dict(sorted(found.items()))


def right_names(ops: dict[str, list[Any]], most: int | None, say: Any) -> Iterable[str]:
    """Those of the names that are right."""
    for name, variants in ops.items():
        judged = []
        for op in variants:
            with suppress(NotCounted):  # a variant for other element types alone
                judged.append(judge(op, most))
        if judged and all(right and not wrong for right, wrong in judged):
            yield name
            continue
        for op, (right, wrong) in zip(variants, judged, strict=True):
            if wrong or not right:
                variant = f"{name}.{op.variant_test_name}".rstrip(".")
                first = "; ".join(list(dict.fromkeys(wrong))[:2]) or "no sample counts"
                say(f"{variant}: {right} right, {len(wrong)} wrong: {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="interpreter:0")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--samples", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    devices.engines.setdefault("interpreter:0", InterpretedEngine())
    ht.set_default_device(given.device)
    ops = names(given.only)

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    right = list(right_names(ops, given.samples, say))
    say(f"right: {' '.join(right)}")
    say(f"{len(right)} of {len(ops)} names are right on {given.device}")


if __name__ == "__main__":
    main()
