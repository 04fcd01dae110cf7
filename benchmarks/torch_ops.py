"""Which operators of PyTorch run on the device "hal", and how exactly: PyTorch's own samples
(OpInfo), forward and gradient, beside its CPU device in float64.

    python -m benchmarks.torch_ops [--only NAME] [--samples N] [--write docs/torch-ops.md]
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import stack.bridge.torch as bridge
from stack.bridge.torch.kernels import names

RELATIVE, ABSOLUTE = 2e-4, 2e-5
"""A float32 result is right within these of the float64 one, as in PyTorch's own comparisons of
devices, with the room of a sum's other order."""


UNDEFINED = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "resize_", "resize_as_", "uniform", "normal", "normal_in_place"),
        *("normal_number_mean", "exponential", "cauchy", "geometric", "log_normal", "bernoulli"),
        *("rand_like", "randn_like", "randint_like", "randint", "randn", "multinomial"),
        *("nn_functional_dropout", "nn_functional_dropout2d", "nn_functional_dropout3d"),
        *("nn_functional_alpha_dropout", "nn_functional_feature_alpha_dropout_with_train"),
        *("nn_functional_rrelu", "nn_functional_fractional_max_pool2d", "svd_lowrank"),
        *("nn_functional_fractional_max_pool3d", "pca_lowrank"),
    }
)
"""Operators whose values are random or undefined: shapes and element types are compared."""
APART = ("jiterator", "bmm_triton")
"""Operators of CUDA alone."""
HOSTS = frozenset({"tensor_split"})
"""Operators of which torch wants all tensors but the first on the CPU, whatever the device."""


@dataclass
class Row:
    """What came of an operator's samples."""

    name: str
    own: bool = False
    """Whether it is an operator of the device, and not a formula of torch's over others."""
    right: int = 0
    wrong: int = 0
    complex: int = 0
    """Samples with complex results, which the device does not have."""
    worst: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def _to(x: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        moved = t.detach().to(device)
        if dtype is not None and moved.dtype is torch.float32:
            moved = moved.to(dtype)
        return moved.requires_grad_(t.requires_grad)

    return tree_map(one, x)


class _Complex(Exception):
    """A sample has complex numbers."""


def _run(op: Any, sample: Any, gradients: bool) -> list[torch.Tensor]:
    out = op(sample.input, *sample.args, **sample.kwargs)
    outs = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
    if any(t.is_complex() for t in outs):
        raise _Complex
    found = [t.detach().cpu() for t in outs]
    if not gradients:
        return found
    flat = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    wanted = [t for t in flat if isinstance(t, torch.Tensor) and t.requires_grad]
    smooth = [t for t in outs if t.requires_grad]
    if wanted and smooth:
        total = sum((t * t).sum() for t in smooth)
        grads = torch.autograd.grad(total, wanted, allow_unused=True)
        found += [g.detach().cpu() for g in grads if g is not None]
    return found


def _moved(sample: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    return type(sample)(
        _to(sample.input, device, dtype),
        args=_to(sample.args, device, dtype),
        kwargs=_to(sample.kwargs, device, dtype),
    )


def _as_torch(x: torch.Tensor, y: torch.Tensor, theirs: Callable[[], torch.Tensor]) -> bool:
    """Whether x is at most twice as far from y as PyTorch's own float32 is anywhere."""
    if not torch.equal(x.isfinite(), y.isfinite()):
        return False
    off = (theirs().to(torch.float64) - y).abs().nan_to_num(0, 0, 0).max()
    return bool(((x - y).abs().nan_to_num(0, 0, 0) <= 2 * off).all())


def _is_own(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = [f"aten::{name}" + ("" if o == "default" else f".{o}") for o in packet.overloads()]
    return any(torch._C._dispatch_has_kernel(k) and known(k, "PrivateUse1") for k in keys)


def tried(op: Any, count: int) -> Row:
    """An operator's first samples, forward and gradient."""
    row = Row(op.formatted_name, _is_own(op.aten_name))
    gradients = op.supports_autograd
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=gradients)
    for i, sample in enumerate(samples):
        if i >= count:
            break
        try:
            wanted = _run(op, _moved(sample, "cpu", torch.float64), gradients)
        except _Complex:
            row.complex += 1
            row.reasons["no complex numbers"] += 1
            continue
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
            continue  # torch has none in float64
        try:
            moved = _moved(sample, "hal")
            if row.name in HOSTS:
                moved.args = sample.args
            got = _run(op, moved, gradients)
        except Exception as error:  # noqa: BLE001 - a table of what does not work
            row.wrong += 1
            row.reasons[f"{type(error).__name__}: {str(error).splitlines()[0][:110]}"] += 1
            continue
        fault = ""
        undefined = bool(sample.kwargs.get("dropout_p")) or row.name.endswith("_attention_forward")
        if len(got) != len(wanted):
            fault = f"{len(got)} results, not {len(wanted)}"
        for i, (a, b) in enumerate(zip(got, wanted, strict=False)):
            if a.shape != b.shape:
                fault = f"shape {list(a.shape)}, not {list(b.shape)}"
            elif a.dtype.is_floating_point != b.dtype.is_floating_point:
                fault = f"{a.dtype}, not {b.dtype}"
            elif a.numel() and row.name not in UNDEFINED and not undefined:
                x, y = a.to(torch.float64), b.to(torch.float64)
                if not torch.allclose(x, y, RELATIVE, ABSOLUTE, equal_nan=True) and not (
                    _as_torch(
                        x,
                        y,
                        lambda i=i, sample=sample: _run(op, _moved(sample, "cpu"), gradients)[i],
                    )
                ):
                    fault = "another value"
                elif a.is_floating_point():
                    off = ((x - y).abs() / y.abs().clamp_min(1)).nan_to_num(0, 0, 0)
                    row.worst = max(row.worst, float(off.max()))
        if fault:
            row.wrong += 1
            row.reasons[fault] += 1
        else:
            row.right += 1
    return row


def page(rows: list[Row], count: int) -> str:
    """The table as a page."""
    whole = [r for r in rows if r.right and not r.wrong]
    samples, right = sum(r.right + r.wrong for r in rows), sum(r.right for r in rows)
    apart, of = sum(r.complex for r in rows), sum(bool(r.complex) for r in rows)
    lines = [
        "# PyTorch's operators on the device hal",
        "",
        f"Written by `python -m benchmarks.torch_ops --samples {count} --write docs/torch-ops.md`: "
        "the first samples of PyTorch's own (OpInfo) for each operator, forward and gradient, "
        f"float32 on {names()[0]} beside float64 on PyTorch's CPU device.",
        "",
        f"{len(whole)} of {len(rows)} operators are right in all of these samples; {right} of "
        f"{samples} samples are. Another {apart} samples, of {of} operators, have complex results, "
        "which the device does not have.",
        "",
        "An operator has a row of its own, or is a formula of PyTorch's over those that have one.",
        "",
        "| operator | computed by | right | wrong | worst error | why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        why = "; ".join(w.replace("|", "\\|") for w, _ in r.reasons.most_common(1))
        by = "a row" if r.own else "a formula"
        lines.append(f"| {r.name} | {by} | {r.right} | {r.wrong} | {r.worst:.0e} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th operator from the i-th on")
    parser.add_argument("--start", default="", help="the first operator")
    parser.add_argument("--write", default="")
    args = parser.parse_args()
    bridge.register()
    warnings.simplefilter("ignore")
    torch.zeros(1, device="hal")  # which brings the kernels
    number, parts = map(int, args.part.split("/"))
    rows = []
    chosen = [
        op
        for op in op_db
        if torch.float32 in op.dtypes
        and args.only in op.formatted_name
        and not op.formatted_name.startswith(APART)
    ]
    chosen = chosen[[op.formatted_name for op in chosen].index(args.start) if args.start else 0 :]
    for op in chosen[number::parts]:
        row = tried(op, args.samples)
        rows.append(row)
        why = "; ".join(r for r, _ in row.reasons.most_common(2))
        print(f"{row.name:40} {row.right:3} {row.wrong:3} {row.worst:8.1e} {why}", flush=True)
    if args.write:
        Path(args.write).write_text(page(rows, args.samples))


if __name__ == "__main__":
    main()
