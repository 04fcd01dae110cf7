"""A mixture of experts: each token goes through a few of many networks."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.create import arange, tensor, zeros
from stack.framework.errors import TensorError
from stack.framework.functions import einsum, topk, where
from stack.framework.nn import init
from stack.framework.nn.layers import Linear
from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor

EVEN: Literal["even"] = "even"
"""The capacity with which all experts take as many choices."""


class Routing(NamedTuple):
    """What a router did with a batch; float32 but for `chosen`."""

    balance: Tensor
    """Scalar: experts times the sum over experts of their share of the choices times their mean
    probability (Fedus et al. 2021). 1 where the load is even; add a hundredth to the loss."""
    z: Tensor
    """Scalar: mean square of the log-sum-exp of the router's logits (Zoph et al. 2022, z-loss); add
    a thousandth to the loss."""
    load: Tensor
    """(experts,): choices of each expert, before any is dropped."""
    dropped: Tensor
    """Scalar: choices that found no place."""
    chosen: Tensor
    """int64 (sequences, tokens, choices): each token's experts, by falling probability."""


class MixtureOfExperts(Module):
    """(sequences, tokens, width) to (the same, `Routing`): the sum of the `choices` networks of
    `experts` that a token's router finds likeliest, weighted by their probabilities, which are made
    to sum to 1 if there are several. Networks are up, GELU, down, of `hidden` features. `shared`
    further networks take every token, with weight 1.

    With a `capacity` an expert takes at most capacity * choices * tokens / experts tokens of each
    sequence, rounded up: first choices before second ones, then in the tokens' order. A choice
    that finds no place adds nothing (GShard, Lepikhin et al. 2020). Without one nothing is
    dropped, and an expert computes the tokens that chose it, however many these are. With the
    capacity "even" nothing is dropped either, and all experts take as many choices of each
    sequence, but for a remainder of one: a choice that finds no place goes to the free places of
    the experts in their order, and counts what the router gives these (SWIPE, Ma et al. 2022).

    Parameters `up` (experts, width, hidden) and `down` (experts, hidden, width) have the experts
    along axis 0, so a strategy places them by `parameter *.up shard 0`. Raises TensorError for
    sizes that are no mixture.
    """

    shared_up: Linear | None
    shared_down: Linear | None

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        choices: int = 2,
        capacity: float | Literal["even"] | None = 1.25,
        shared: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= choices <= experts:
            raise TensorError(
                f"a token takes {choices} of {experts} experts; it takes at least 1 and at most all"
            )
        if capacity not in (None, EVEN) and not (
            isinstance(capacity, int | float) and 0 < capacity < math.inf
        ):
            raise TensorError(
                f"capacity is {capacity!r}; it is above 0, or None or 'even' to drop nothing"
            )
        self.experts, self.choices, self.capacity = experts, choices, capacity
        self.router = Linear(width, experts, bias=False, device=device)
        self.up = Parameter(zeros(experts, width, hidden, device=device))
        self.down = Parameter(zeros(experts, hidden, width, device=device))
        self.shared_up = self.shared_down = None
        if shared:
            self.shared_up = Linear(width, shared * hidden, bias=False, device=device)
            self.shared_down = Linear(shared * hidden, width, bias=False, device=device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the experts as `Linear` draws its weight."""
        for weight in (self.up, self.down):
            bound = 1 / math.sqrt(max(weight.shape[1], 1))
            init.uniform_(weight, -bound, bound)

    def places(self, tokens: int) -> int:
        """How many tokens of a sequence an expert takes."""
        if self.capacity is None:
            return tokens
        if self.capacity == EVEN:
            return math.ceil(self.choices * tokens / self.experts)
        return min(tokens, math.ceil(self.capacity * self.choices * tokens / self.experts))

    def forward(self, input: Tensor) -> tuple[Tensor, Routing]:
        if input.ndim != 3:
            raise TensorError(
                f"a mixture of experts takes (sequences, tokens, width), not {list(input.shape)}"
            )
        x_GTW = input
        logits_GTE = self.router(x_GTW).to(DType.F32)
        likely_GTE = F.softmax(logits_GTE, dim=-1)
        top_GTK, chosen_GTK = topk(likely_GTE, self.choices, dim=-1)
        if self.choices > 1:
            top_GTK = top_GTK / top_GTK.sum(dim=-1, keepdim=True)
        sent_GTKE = (chosen_GTK[..., None] == arange(self.experts, device=input.device)).to(
            DType.F32
        )
        if self.capacity is None:
            taken, y_GTW = sent_GTKE, self._all_choices(x_GTW, chosen_GTK, top_GTK)
        elif self.capacity == EVEN:
            taken, place_GTKE = self._evenly(sent_GTKE)
            if self.choices > 1:
                top_GTK = F.softmax((taken * logits_GTE[:, :, None]).sum(-1), dim=-1)
            else:
                top_GTK = (taken * likely_GTE[:, :, None]).sum(-1)
            y_GTW = self._at_places(x_GTW, taken, place_GTKE, top_GTK)
        else:
            place_GTKE = self._queued(sent_GTKE)
            taken = where(place_GTKE < self.places(x_GTW.shape[1]), sent_GTKE, 0.0)
            y_GTW = self._at_places(x_GTW, taken, place_GTKE, top_GTK)
        if self.shared_up is not None and self.shared_down is not None:
            y_GTW = y_GTW + self.shared_down(_activated(self.shared_up(x_GTW)))
        share_E = sent_GTKE.mean(dim=(0, 1, 2))
        routing = Routing(
            self.experts * (share_E * likely_GTE.mean(dim=(0, 1))).sum(),
            (logits_GTE.logsumexp(dim=-1) ** 2).mean(),
            sent_GTKE.sum(dim=(0, 1, 2)),
            sent_GTKE.sum() - taken.sum(),
            chosen_GTK,
        )
        return y_GTW, routing

    def _all_choices(self, x_GTW: Tensor, chosen_GTK: Tensor, top_GTK: Tensor) -> Tensor:
        """Each token by the experts that it chose, however many another one has."""
        G, T, W = x_GTW.shape
        K = self.choices
        x_NW = x_GTW[:, :, None].expand(G, T, K, W).reshape(G * T * K, W)
        chosen_N = chosen_GTK.reshape(G * T * K)
        hidden_NH = _activated(F.grouped_matmul(x_NW, self.up, chosen_N))
        y_NW = F.grouped_matmul(hidden_NH, self.down, chosen_N)
        return (y_NW.reshape(G, T, K, W) * top_GTK[..., None]).sum(2)

    def _queued(self, sent_GTKE: Tensor) -> Tensor:
        """How many choices of an expert there are before each one: behind one another stand the
        first choices of all tokens of a sequence, then their second ones."""
        G, T, K, E = sent_GTKE.shape
        queue_GNE = sent_GTKE.transpose(1, 2).reshape(G, K * T, E)
        place_GKTE = (queue_GNE.cumsum(1) - queue_GNE).reshape(G, K, T, E)
        return place_GKTE.transpose(1, 2)

    def _evenly(self, sent_GTKE: Tensor) -> tuple[Tensor, Tensor]:
        """The experts that take the choices, each one of them, and its place there."""
        _, T, K, E = sent_GTKE.shape
        each, more = divmod(K * T, E)
        places = [float(each + (e < more)) for e in range(E)]
        places_E = tensor(places, dtype=DType.F32, device=sent_GTKE.device)
        place_GTKE = self._queued(sent_GTKE)
        taken_GTKE = where(place_GTKE < places_E, sent_GTKE, 0.0)
        used_GE = taken_GTKE.sum(dim=(1, 2))
        # What is left stands in a queue of its own before the free places of all experts.
        left_GTK1 = 1.0 - taken_GTKE.sum(-1, keepdim=True)
        turn_GTK1 = self._queued(left_GTK1)
        free_GE = places_E - used_GE
        first_GE = free_GE.cumsum(1) - free_GE
        used, free, first = (x[:, None, None] for x in (used_GE, free_GE, first_GE))
        is_there = (turn_GTK1 >= first) & (turn_GTK1 < first + free)
        moved_GTKE = where(is_there, left_GTK1, 0.0)
        place_GTKE = where(moved_GTKE > 0, used + turn_GTK1 - first, place_GTKE)
        return taken_GTKE + moved_GTKE, place_GTKE

    def _at_places(
        self, x_GTW: Tensor, taken_GTKE: Tensor, place_GTKE: Tensor, top_GTK: Tensor
    ) -> Tensor:
        """The weighted sums of what experts make of the tokens at their places."""
        P = self.places(x_GTW.shape[1])
        places_P = arange(P, device=x_GTW.device)
        at_GTKEP = (place_GTKE[..., None] == places_P).to(DType.F32) * taken_GTKE[..., None]
        dispatch = at_GTKEP.sum(2).to(x_GTW.dtype)
        combine = (at_GTKEP * top_GTK[..., None, None]).sum(2).to(x_GTW.dtype)
        x_EGPW = einsum("gtep,gtw->egpw", dispatch, x_GTW)
        hidden = _activated(einsum("egpw,ewh->egph", x_EGPW, self.up))
        y_EGPW = einsum("egph,ehw->egpw", hidden, self.down)
        return einsum("egpw,gtep->gtw", y_EGPW, combine)

    def extra_repr(self) -> str:
        return f"experts={self.experts}, choices={self.choices}, capacity={self.capacity}"


def _activated(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
