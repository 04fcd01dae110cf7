"""What a rank holds, as a script declares it: tensors, copied byte by byte, and plain values."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, runtime_checkable

import numpy as np
from crc32c import crc32c

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.framework import Tensor, store
from stack.framework.cell import become, settle
from stack.framework.checkpoint import StateTree, taken_apart
from stack.framework.devices import engine
from stack.framework.dtypes import NAMES
from stack.framework.errors import CheckpointError
from stack.framework.flat import homes
from stack.framework.nn import Module
from stack.framework.optim import Optimizer
from stack.framework.random import Generator
from stack.framework.realize import arrays_of

Array = np.ndarray[Any, Any]
ALIGNMENT = 64
"""Tensors begin at multiples of this many bytes."""


@runtime_checkable
class Stateful(Protocol):
    """What has a state of plain values, as schedules have."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> object: ...


@runtime_checkable
class Positioned(Protocol):
    """What stands somewhere in data."""

    @property
    def position(self) -> Any: ...

    def go_to(self, position: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class _Settable:
    """A tensor, and how it takes a leaf with new values."""

    name: str
    tensor: Tensor
    take: Callable[[Node], None]


@dataclass(frozen=True, slots=True)
class _Plain:
    """Values that JSON takes: how they are read, and taken back."""

    name: str
    read: Callable[[], Any]
    take: Callable[[Any], object]


class State:
    """All that `declared` names: modules, optimizers, random generators, what has `state_dict` and
    `load_state_dict`, or `position` and `go_to`, and pairs of functions that read and take plain
    values. Raises CheckpointError for what cannot be copied."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._tensors: list[Callable[[], Iterator[_Settable]]] = []
        self._plain: list[_Plain] = []
        self._parts: list[_Settable] = []
        for name, value in declared.items():
            self._declare(name, value)
        self.plain()
        self.look()

    def look(self) -> None:
        """Take all tensors as they are now for the calls that follow: an optimizer has others once
        it has taken a state, or done its first step. Raises what has failed them."""
        settle()
        self._parts = [part for parts in self._tensors for part in parts()]

    @property
    def nbytes(self) -> int:
        """What all tensors take."""
        return sum(map(_room, self._parts))

    @property
    def layout(self) -> int:
        """A number that follows from the names, types and shapes of all tensors."""
        said = [f"{p.name}: {NAMES[p.tensor.dtype]}{list(p.tensor.shape)}" for p in self._parts]
        return zlib.crc32("\n".join(said).encode())

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors, in the order of their digests."""
        return tuple(part.name for part in self._parts)

    def digests(self, memory: Array) -> Array:
        """A checksum of each tensor in what `read` gave, as int64."""
        views = _views(self._parts, memory)
        return np.array([crc32c(view.reshape(-1).view(np.uint8).data) for view in views], np.int64)

    def flip(self, number: int) -> None:
        """Flip a bit of a tensor, which one the number says: a fault on demand."""
        self.look()
        random, parts = Random(number), [p for p in self._parts if p.tensor.numel()]
        part = random.choice(parts)
        (array,) = arrays_of([part.tensor])
        values = engine(part.tensor.device).get(array)
        bits = values.reshape(-1).view(np.uint8)
        bits[random.randrange(bits.size)] ^= np.uint8(1 << random.randrange(8))
        part.take(store.holding(engine(part.tensor.device).put(values, part.tensor.dtype)))

    def plain(self) -> bytes:
        """The plain values as JSON."""
        tensors: dict[str, Tensor] = {}
        found = {p.name: taken_apart(p.read(), p.name, tensors) for p in self._plain}
        if tensors:
            raise CheckpointError(
                f"the declared state has tensors where only plain values are copied: "
                f"{', '.join(tensors)}; declare the module or optimizer that holds them"
            )
        return json.dumps(found).encode()

    def compute(self) -> None:
        """Compute the values of all tensors, and wait for them. Raises what has failed them."""
        for device in {part.tensor.device for part in self._parts}:
            arrays_of([part.tensor for part in self._parts if part.tensor.device == device])
            engine(device).sync()

    def read(self, memory: Array) -> None:
        """Copy all tensors into `memory`, `nbytes` bytes. Waits for their values; raises what has
        failed them."""
        arrays = arrays_of([p.tensor for p in self._parts])
        views = _views(self._parts, memory)
        for part, array, view in zip(self._parts, arrays, views, strict=True):
            engine(part.tensor.device).get(array, view)

    def take(self, memory: Array, plain: bytes) -> None:
        """Give everything the values that `read` and `plain` gave. Compiles nothing."""
        for part, view in zip(self._parts, _views(self._parts, memory), strict=True):
            array = engine(part.tensor.device).put(view, part.tensor.dtype)
            part.take(store.holding(array))
        values = json.loads(plain)
        tree = StateTree(Path("the memory of a generation"), {}, None)
        for own in self._plain:
            own.take(tree.part(values[own.name], 0))

    def _declare(self, name: str, value: Any) -> None:
        match value:
            case Module():
                self._tensors.append(lambda: _parts_of(name, value))
            case Optimizer():

                def cells() -> Iterator[_Settable]:
                    for key, t in value.cells().items():
                        yield _Settable(f"{name}.{key}", t, partial(become, t))

                self._tensors.append(cells)
                self._add_plain(name, value.plain, value.take_plain)
            case Generator():
                self._add_plain(name, value.get_state, lambda s: value.set_state(*s))
            case Positioned():
                self._add_plain(name, lambda: value.position.as_json(), value.go_to)
            case Stateful():
                self._add_plain(name, value.state_dict, value.load_state_dict)
            case (read, take) if callable(read) and callable(take):
                self._add_plain(name, read, take)
            case _:
                raise CheckpointError(
                    f"{name}, a {type(value).__name__}, cannot be declared as state: declare a "
                    "module, an optimizer, a random generator, what has state_dict and "
                    "load_state_dict, or a pair of functions that read and take plain values"
                )

    def _add_plain(self, name: str, read: Callable[[], Any], take: Callable[[Any], object]) -> None:
        if any(own.name == name for own in self._plain):
            raise InvalidCall(f"{name} is declared twice")
        self._plain.append(_Plain(name, read, take))


def _parts_of(name: str, module: Module) -> Iterator[_Settable]:
    """A module's parameters and buffers: those of an optimizer as the one tensor that they are."""
    seen: set[int] = set()
    for path, t in (*module.named_parameters(), *module.named_buffers()):
        home = homes.get(t.serial)
        if home is None:
            yield _Settable(f"{name}.{path}", t, partial(become, t))
        elif id(home) not in seen:
            seen.add(id(home))
            yield _Settable(f"{name}.{path} and others", home.cell, home.hold)


def _views(parts: Sequence[_Settable], memory: Array) -> Iterator[Array]:
    """Where each tensor is in the memory of a generation."""
    start = 0
    for part in parts:
        t = part.tensor
        raw = memory[start : start + t.numel() * t.dtype.nbytes]
        yield raw.view(NUMPY[t.dtype]).reshape(t.shape)
        start += _room(part)


def _room(part: _Settable) -> int:
    nbytes = part.tensor.numel() * part.tensor.dtype.nbytes
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
