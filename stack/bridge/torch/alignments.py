"""The loss of connectionist temporal classification (Graves et al., 2006), as a loop over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.bridge.torch.kernels import call
from stack.bridge.torch.rows import inlined, pulled
from stack.bridge.torch.tape import Row
from stack.framework.expr import elementwise as e
from stack.framework.expr import index
from stack.framework.expr import reduce as r
from stack.ops.control import LoopBody

_NEVER = -1e30
"""The logarithm of the probability of what cannot be."""


def _sum_of_logs(parts: Sequence[Node]) -> Node:
    """log(sum(exp)) of several."""
    most = parts[0]
    for p in parts[1:]:
        most = e.maximum(most, p)
    total = g.exp(e.sub(parts[0], most))
    for p in parts[1:]:
        total = e.add(total, g.exp(e.sub(p, most)))
    return e.add(most, g.log(total))


def _behind(x: Node, by: int) -> Node:
    """Of each place the value `by` places before, in [batch, places]."""
    kept = max(x.shape[1] - by, 0)
    none = g.full((x.shape[0], x.shape[1] - kept), _NEVER, x.dtype)
    return g.concat([none, g.slice_axis(x, 1, 0, kept)], 1)


def _step(batch: int, places: int, dtype: DType) -> LoopBody:
    """From the logarithms of prefixes' probabilities to those one moment later."""
    shape = (batch, places)
    skips, runs = g.input(0, Type(shape, DType.BOOL)), g.input(3, Type((batch, 1), DType.BOOL))
    before, seen = (g.input(i, Type(shape, dtype)) for i in (1, 2))
    far = e.where(skips, _behind(before, 2), _NEVER)
    made = e.add(_sum_of_logs([before, _behind(before, 1), far]), seen)
    after = g.where(g.broadcast(runs, shape), e.clamp(made, min=_NEVER), before)
    return LoopBody((skips, before, seen, runs), (after,))


def _labels(targets: Node, lengths: Node, longest: int, blank: int) -> Node:
    """i64[batch, 2 longest + 1]: a blank before, between and behind the labels."""
    n = lengths.shape[0]
    if len(targets.shape) == 1:  # one behind the other
        begins = e.sub(g.scan("sum", lengths, 0), lengths)
        at = e.add(g.reshape(begins, (n, 1)), g.arange(longest))
        own = g.gather(targets, e.clamp(at, max=max(targets.shape[0] - 1, 0)), 0)
    else:
        own = g.slice_axis(targets, 1, 0, longest)
    own = g.reshape(g.cast(own, DType.I64), (n, longest, 1))
    pairs = g.concat([g.full(own.shape, blank, DType.I64), own], 2)
    return g.concat([g.reshape(pairs, (n, 2 * longest)), g.full((n, 1), blank, DType.I64)], 1)


def _loss(
    log_probs: Node, targets: Node, times: Node, lengths: Node, blank: int, longest: int
) -> Node:
    """f[batch]: what `times` moments cost for `lengths` labels."""
    steps, n, _ = log_probs.shape
    labels = _labels(targets, lengths, longest, blank)
    places = labels.shape[1]
    at = g.broadcast(g.reshape(labels, (1, n, places)), (steps, n, places))
    seen = index.gather(log_probs, 2, at)
    begin = g.reshape(g.slice_axis(seen, 0, 0, 1), (n, places))
    begin = e.clamp(e.where(e.lt(g.arange(places), 2), begin, _NEVER), min=_NEVER)
    two_before = g.concat([g.full((n, min(2, places)), blank, DType.I64),
                           g.slice_axis(labels, 1, 0, max(places - 2, 0))], 1)  # fmt: skip
    skips = g.and_(e.ne(labels, blank), e.ne(labels, two_before))
    moments = g.reshape(e.add(g.arange(steps - 1), 1), (steps - 1, 1, 1))
    runs = e.lt(moments, g.reshape(times, (1, n, 1)))
    rest = g.slice_axis(seen, 0, 1, steps)
    (end,) = g.loop(_step(n, places, seen.dtype), steps - 1, [skips], [begin], [rest, runs])
    last = e.mul(g.reshape(lengths, (n, 1)), 2)
    place = g.arange(places)
    is_end = g.or_(e.eq(place, last), e.eq(place, e.sub(last, 1)))
    ends = e.where(is_end, end, _NEVER)
    most = r.amax(ends, 1, keepdim=True)
    total = r.sum(g.exp(e.sub(ends, most)), 1, keepdim=True)
    cost = g.reshape(g.neg(e.add(most, g.log(total))), (n,))
    return e.where(e.gt(cost, -_NEVER / 2), math.inf, cost)


def _backward(
    d: Node, log_probs: Node, targets: Node, times: Node, lengths: Node, cost: Node, blank: int,
    longest: int, zeroed: bool,
) -> Node:  # fmt: skip
    """As torch has it: of the scores whose logarithmic softmax the probabilities are."""
    steps, n, _ = log_probs.shape
    found = pulled(
        lambda x: _loss(x, targets, times, lengths, blank, longest), [log_probs], d
    )[0]  # fmt: skip
    assert found is not None, "it depends on them"
    runs = e.lt(g.reshape(g.arange(steps), (steps, 1, 1)), g.reshape(times, (1, n, 1)))
    made = e.add(found, e.where(runs, e.mul(g.exp(log_probs), g.reshape(d, (1, n, 1))), 0.0))
    never = g.reshape(e.eq(cost, math.inf), (1, n, 1))
    return e.where(never, 0.0 if zeroed else math.nan, made)


_LOSS = Row("_ctc_loss", inlined(_loss))
_BACKWARD = Row("_ctc_loss_backward", inlined(_backward))


def _told(log_probs: Tensor, targets: Tensor, times: Sequence[int], lengths: Sequence[int]) -> Any:
    """Both lengths on the device, so that others take the same plan, and the most labels."""
    if not log_probs.numel():
        raise NotImplementedError(f"ctc_loss of {list(log_probs.shape)} on {log_probs.device}")
    for what, given, most in (
        ("input_lengths", times, log_probs.shape[0]),
        ("target_lengths", lengths, targets.shape[-1]),
    ):
        if len(given) != log_probs.shape[1] or any(not 0 <= n <= most for n in given):
            raise RuntimeError(
                f"ctc_loss: {what} are {log_probs.shape[1]} numbers from 0 to {most}, not {given}"
            )
    longest = targets.shape[1] if targets.dim() == 2 else max(lengths, default=0)
    moved = [torch.tensor(list(given)).to(log_probs.device) for given in (times, lengths)]
    return (*moved, longest)


def ctc_loss(
    log_probs: Tensor, targets: Tensor, times: Sequence[int], lengths: Sequence[int],
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    on, ends, longest = _told(log_probs, targets, times, lengths)
    cost = call(_LOSS, (log_probs, targets, on, ends, blank, longest), {})[0]
    kept = log_probs.new_zeros(0)  # what only the gradient of torch's own reads
    return cost, kept


def ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, times: Sequence[int],
    lengths: Sequence[int], cost: Tensor, kept: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    on, ends, longest = _told(log_probs, targets, times, lengths)
    args = (grad, log_probs, targets, on, ends, cost, blank, longest, zero_infinity)
    return call(_BACKWARD, args, {})[0]


KERNELS: dict[str, Callable[..., Any]] = {
    "_ctc_loss": ctc_loss,
    "_ctc_loss_backward": ctc_loss_backward,
}
"""By operator."""
