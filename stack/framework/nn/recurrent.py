"""Recurrent layers and their cells. A layer is a loop over the steps of its input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from stack.framework import functional as F
from stack.framework.control import scan
from stack.framework.create import tensor, zeros
from stack.framework.expr import recurrent
from stack.framework.functions import cat, stack, where
from stack.framework.modes import grad_enabled
from stack.framework.nn import init
from stack.framework.nn.module import Module, Parameter
from stack.framework.nn.utils.rnn import PackedSequence, packed_by_steps, padded_by_steps
from stack.framework.tensor import Tensor, call_several, recorded_several

State = tuple[Tensor, ...]


class _Recurrent(Module):
    kind: str
    """Of its step, in `recurrent.STEPS`."""
    gates: int
    states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional = bidirectional
        kind, rows = dtype or DType.F32, self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if not layer else hidden_size * self._directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, width),
                    "weight_hh": (rows, hidden_size),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                for name, shape in shapes.items():
                    made = Parameter(zeros(*shape, dtype=kind, device=device))
                    setattr(self, f"{name}_{suffix}", made)
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: self._directions]

    def reset_parameters(self) -> None:
        """Draw all uniformly within +-1 / sqrt(hidden_size)."""
        bound = 1 / math.sqrt(max(self.hidden_size, 1))
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: there is no order in memory to restore."""

    def _run(self, input: Any, given: State | None) -> tuple[Any, State]:
        """Outputs [time, batch, width] and final states [layers * directions, batch, hidden]; of
        packed sequences packed outputs, and each one's state after its own last step."""
        if isinstance(input, PackedSequence):
            x, lengths = padded_by_steps(input, 0.0), input.lengths
            size = self.num_layers * self._directions, x.shape[1], self.hidden_size
            begin = tuple(zeros(*size, dtype=x.dtype, device=x.device) for _ in range(self.states))
            if given:
                order = input.sorted_indices
                begin = given if order is None else tuple(s[:, order] for s in given)
            steps = np.arange(x.shape[0])[:, None, None] < lengths[None, :, None]
            y, last = self._layers(x, begin, tensor(steps, device=x.device))
            if input.unsorted_indices is not None:
                last = tuple(s[:, input.unsorted_indices] for s in last)
            return packed_by_steps(y, input), last
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__} takes [time, batch, {self.input_size}], "
                f"got {list(input.shape)}"
            )
        single = input.ndim == 2
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        size = self.num_layers * self._directions, x.shape[1], self.hidden_size
        begin = given or tuple(
            zeros(*size, dtype=x.dtype, device=x.device) for _ in range(self.states)
        )
        if single and given:
            begin = tuple(s.unsqueeze(1) for s in begin)
        x, last = self._layers(x, begin, None)
        if single:
            return x.squeeze(1), tuple(s.squeeze(1) for s in last)
        return x.transpose(0, 1) if self.batch_first else x, last

    def _layers(self, x: Tensor, begin: State, made: Tensor | None) -> tuple[Tensor, State]:
        """All layers over [time, batch, width]; `made`, bool [time, batch, 1], is which steps each
        sequence has."""
        ends: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(layer):
                y, end = self._direction(x, suffix, tuple(s[len(ends)] for s in begin), made)
                outputs.append(y)
                ends.append(end)
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(stack(each) for each in zip(*ends, strict=True))

    def _direction(
        self, x: Tensor, suffix: str, state: State, made: Tensor | None
    ) -> tuple[Tensor, State]:
        first, second, *biases = (
            getattr(self, f"{name}_{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 2 + 2 * self.bias]
        )
        gates, reverse = F.linear(x, first, biases[0] if biases else None), "reverse" in suffix
        bias = biases[1] if biases else None
        if made is None:
            kept = grad_enabled() and any(
                t is not None and t.requires_grad for t in (gates, second, bias, *state)
            )
            how = second, bias, self.kind, reverse, kept
            if (found := recorded_several(recurrent.layer, gates, *how, *state)) is not None:
                return found[0], found[1:]

        def step(state: State, rows: tuple[Tensor, ...]) -> tuple[State, Tensor]:
            gates, *masks = rows
            after = call_several(
                recurrent.STEPS[self.kind], gates, F.linear(state[0], second, bias), *state
            )
            for mask in masks:
                after = tuple(where(mask, a, b) for a, b in zip(after, state, strict=True))
            return after, after[0]

        rows = (gates,) if made is None else (gates, made)
        end, y = scan(step, state, rows, reverse=reverse)
        return y, end

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            value = getattr(self, name)
            shown += "" if value == default else f", {name}={value}"
        return shown


class LSTM(_Recurrent):
    """Long short-term memory: Hochreiter and Schmidhuber, with gates in PyTorch's order i f g o."""

    kind = "lstm"
    gates = 4
    states = 2

    def forward(self, input: Any, hx: State | None = None) -> tuple[Any, State]:
        return self._run(input, hx)


class GRU(_Recurrent):
    """Gated recurrent units, with gates in PyTorch's order r z n."""

    kind = "gru"
    gates = 3

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        y, (h,) = self._run(input, None if hx is None else (hx,))
        return y, h


class RNN(_Recurrent):
    """h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh), or relu."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f'nonlinearity is "tanh" or "relu", got {nonlinearity!r}')
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
        )
        self.kind = self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        y, (h,) = self._run(input, None if hx is None else (hx,))
        return y, h


class _Cell(Module):
    kind: str
    gates: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        kind, rows = dtype or DType.F32, self.gates * hidden_size
        self.weight_ih = Parameter(zeros(rows, input_size, dtype=kind, device=device))
        self.weight_hh = Parameter(zeros(rows, hidden_size, dtype=kind, device=device))
        self.bias_ih = Parameter(zeros(rows, dtype=kind, device=device)) if bias else None
        self.bias_hh = Parameter(zeros(rows, dtype=kind, device=device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all uniformly within +-1 / sqrt(hidden_size)."""
        bound = 1 / math.sqrt(max(self.hidden_size, 1))
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, x: Tensor, state: State) -> State:
        """The next state, of which the first is the output."""
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        hidden = F.linear(state[0], self.weight_hh, self.bias_hh)
        return call_several(recurrent.STEPS[self.kind], gates, hidden, *state)

    def _zeros(self, x: Tensor) -> Tensor:
        return zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class LSTMCell(_Cell):
    """One step of `LSTM`."""

    kind = "lstm"
    gates = 4

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, Tensor]:
        state = (self._zeros(input), self._zeros(input)) if hx is None else tuple(hx)
        h, c = self._step(input, state)
        return h, c


class GRUCell(_Cell):
    """One step of `GRU`."""

    kind = "gru"
    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        (h,) = self._step(input, (self._zeros(input) if hx is None else hx,))
        return h


class RNNCell(_Cell):
    """One step of `RNN`."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.kind = self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        (h,) = self._step(input, (self._zeros(input) if hx is None else hx,))
        return h
