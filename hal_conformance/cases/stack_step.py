"""Every kernel of a training step, alone: what the device makes of it and what it means.

A device can be right on every kernel that somebody wrote for a test and wrong on one that a model
needs. So a small GPT is trained for a step on numpy, the compiler makes its kernels for the device,
and each one runs on the values that it has in that step, beside the interpreter of the tile format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
import stack.framework.functional as F
from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import ParamKind
from hal.tile.numeric import NUMPY, quiet
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import RELATIVE, NumpyArray, NumpyEngine, NumpyPlan, seat
from stack.compiler.kernels import lower_graph
from stack.compiler.program import BufferRef, GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.emit import TileCall
from stack.framework import nn, optim

stack_step = Cases("J", Level.RESILIENT)

F32 = DType.F32
Bytes = NDArray[np.uint8]
WORDS, WIDTH, HEADS, LENGTH, BATCH = 19, 16, 2, 8, 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and the values of its inputs when it ran."""

    request: GraphRequest
    inputs: tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class _WatchedPlan(NumpyPlan):
    """Keeps what it ran on."""

    seen: list[Seen] = field(default_factory=list)

    def run(self, inputs: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
        """As numpy does."""
        self.seen.append(Seen(self.request, tuple(array.data.copy() for array in inputs)))
        return NumpyPlan.run(self, inputs)


class _WatchedEngine(NumpyEngine):
    """Numpy, and a list of all that ran on it."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def plan(self, request: GraphRequest, keep: bool = True, general: bool = True) -> NumpyPlan:
        """The request itself."""
        return _WatchedPlan(request, seen=self.seen)


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside the way through."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.CausalSelfAttention(WIDTH, HEADS, bias=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: ht.Tensor) -> ht.Tensor:
        """(batch, length, WIDTH) to the same."""
        x = x + F.dropout(self.attention(self.norms[0](x)), 0.1)
        y: ht.Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return y


class Model(nn.Module):
    """A GPT of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: ht.Tensor) -> ht.Tensor:
        """The logits of the next word at each of (batch, LENGTH) places."""
        x = self.words(tokens) + self.places(ht.arange(LENGTH))
        logits: ht.Tensor = self.head(self.norm(self.block(x)))
        return logits


def step_of_a_gpt(half: bool) -> list[Seen]:
    """What the second captured step of a training runs: its moments are no longer zero."""
    engine = _WatchedEngine()
    with seat(engine):
        ht.default_generator().set_state(0, 0)
        model = Model()
        optimizer = optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

        @ht.jit
        def step(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
            optimizer.zero_grad()
            with ht.autocast(DType.BF16 if half else None):
                logits = model(tokens)
            loss = F.cross_entropy(logits.reshape(-1, WORDS).float(), targets.reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        tokens = (np.arange(BATCH * LENGTH) * 7 % WORDS).reshape(BATCH, LENGTH)
        for _ in range(2):
            engine.seen.clear()
            step(ht.tensor(tokens), ht.tensor((tokens * 3 + 1) % WORDS)).item()
    return engine.seen


class Memory:
    """The buffers of a request that runs kernel by kernel: bytes, by kind and number."""

    def __init__(self, seen: Seen, temps: Sequence[int]) -> None:
        request = seen.request
        self._bytes: dict[tuple[str, int], Bytes] = {
            ("input", i): np.frombuffer(value.tobytes(), np.uint8).copy()
            for i, value in enumerate(seen.inputs)
        }
        updated = dict(request.updates)
        for i, output in enumerate(request.outputs):
            new = np.zeros(output.type.nbytes, np.uint8)
            self._bytes["output", i] = self._bytes["input", updated[i]] if i in updated else new
        for i, nbytes in enumerate(temps):
            self._bytes["temp", i] = np.zeros(nbytes, np.uint8)

    def array(self, part: BufferRef, dtype: DType) -> NDArray[Any]:
        """The elements of a part."""
        whole = self._bytes[part.kind, part.index]
        return whole[part.offset_nbytes :][: part.nbytes].view(NUMPY[dtype])

    def arguments(self, call: TileCall) -> dict[str, NDArray[Any]]:
        """The buffers of a call, by the names of its parameters."""
        return {
            param.name: self.array(part, param.dtype)
            for param, part in zip(call.kernel.params, call.buffers, strict=True)
        }


def kernels_of(seen: Seen, info: DeviceInfo) -> Iterator[tuple[TileCall, Memory]]:
    """The calls of a request as the compiler makes them for a device, each with the memory as it is
    before it. Whoever iterates writes what a call does there."""
    program = lower_graph(seen.request, info, choose(info).templates)
    memory = Memory(seen, program.temps)
    for call in program.calls:
        assert isinstance(call, TileCall), "a step on one device exchanges nothing"
        yield call, memory


def _agree(
    call: TileCall, got: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]
) -> None:
    """What a kernel writes is what it means; the greatest value of an array is the measure of its
    errors, since sums of small and large terms are among them."""
    for param in call.kernel.params:
        assert param.kind is ParamKind.BUFFER
        name = f"{param.name} after {call.kernel.name} over {call.grid}"
        one, other = got[param.name], wanted[param.name]
        if not param.dtype.is_float or not param.writes:
            expect.same(one, other, name)
            continue
        with quiet():
            size = np.abs(np.nan_to_num(other.astype(np.float64), posinf=0, neginf=0))
            expect.near(one, other, 4 * RELATIVE[param.dtype] * np.max(size, initial=1e-30), name)


@stack_step.case("step-kernels", "launch.exact", "launch.inside", half=(False, True), timeout_s=300)
def _(rig: Rig, half: bool) -> None:
    """A step's kernels, one by one, on the values of that step."""
    need(rig, F32, DType.I64, DType.U64, DType.U32, *([DType.BF16] if half else []))
    for seen in step_of_a_gpt(half):
        for call, memory in kernels_of(seen, rig.info):
            arguments = memory.arguments(call)
            wanted = rig.golden(call.kernel, arguments, call.grid)
            _agree(call, rig.run(call.kernel, arguments, call.grid), wanted)
            for name, array in arguments.items():
                array[:] = wanted[name]
