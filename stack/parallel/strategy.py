"""How a model is spread over ranks, as a value that is text: one line for each fact.

    axis tensor 2
      parameter *.qkv.* shard 0 of 3
      parameter *.down.weight shard 1
    axis data 2
      batch 0
      states rows

Of each axis of the mesh: which axis of every argument of a step is the batch, and how parameters
and the optimizers' states are stored. `shard 0 of 3` divides each third of axis 0. `rows` divides
the elements of each parameter, whatever its shape. What nothing is said of is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from hal.core.errors import InvalidCall
from stack.parallel.placement import WHOLE, Placement, Sharded

Storage = Literal["whole", "rows"]


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """What is divided among the `size` ranks along an axis of the mesh.

    `shards` has placements by patterns of parameters' names, of which the first that fits holds.
    `parameters` and `states` say how parameters and the optimizers' states are stored: "rows" are
    gathered for what reads them, and what is computed for them is computed in rows.
    """

    name: str
    size: int
    batch: int | None = None
    shards: tuple[tuple[str, Sharded], ...] = ()
    parameters: Storage = "whole"
    states: Storage = "whole"

    def placement(self, parameter: str) -> Placement:
        """That of a parameter by its name, rows apart."""
        fitting = (p for pattern, p in self.shards if fnmatchcase(parameter, pattern))
        return next(fitting, WHOLE)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The axes of a mesh, of which the last one varies fastest. `a + b` has those of both."""

    axes: tuple[AxisLayout, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise InvalidCall(f"a strategy has axes {', '.join(names)}; give each its own name")
        for axis in self.axes:
            if axis.size < 1:
                raise InvalidCall(f"axis {axis.name!r} has {axis.size} ranks; it takes at least 1")
        rows = [axis.name for axis in self.axes if "rows" in (axis.parameters, axis.states)]
        if len(rows) > 1:
            raise InvalidCall(
                f"axes {', '.join(rows)} all divide parameters or states in rows; one axis can, "
                "make it of as many ranks"
            )

    def __add__(self, other: Strategy) -> Strategy:
        return Strategy((*self.axes, *other.axes))

    @property
    def sizes(self) -> dict[str, int]:
        """The ranks of each axis, as `Mesh.present` takes them."""
        return {axis.name: axis.size for axis in self.axes}

    def __str__(self) -> str:
        lines = []
        for axis in self.axes:
            lines.append(f"axis {axis.name} {axis.size}")
            if axis.batch is not None:
                lines.append(f"  batch {axis.batch}")
            for pattern, p in axis.shards:
                of = f" of {p.major}" if p.major > 1 else ""
                lines.append(f"  parameter {pattern} shard {p.axis}{of}")
            lines += ["  parameters rows"] * (axis.parameters == "rows")
            lines += ["  states rows"] * (axis.states == "rows")
        return "\n".join(lines) + "\n"

    @staticmethod
    def parse(text: str) -> Strategy:
        """A strategy from its text; what follows # is said to people. Raises InvalidCall with the
        number of the line."""
        found: list[AxisLayout] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            try:
                _read(words, found)
            except (ValueError, IndexError):
                raise InvalidCall(
                    f"line {number} of the strategy is {line.strip()!r}; it takes `axis NAME "
                    "RANKS`, `batch AXIS`, `parameter PATTERN shard AXIS [of PARTS]`, `parameters "
                    "rows` or `states rows`"
                ) from None
        if not found:
            raise InvalidCall("the strategy has no axis; write `axis data 2` and what it divides")
        return Strategy(tuple(found))


def _read(words: list[str], found: list[AxisLayout]) -> None:
    """One line, into the last of the axes or a new one."""
    match words:
        case []:
            pass
        case ["axis", name, size]:
            found.append(AxisLayout(name, int(size)))
        case ["batch", axis]:
            found[-1] = replace(found[-1], batch=int(axis))
        case ["parameter", pattern, "shard", axis]:
            found[-1] = _sharding(found[-1], pattern, Sharded(int(axis)))
        case ["parameter", pattern, "shard", axis, "of", parts]:
            found[-1] = _sharding(found[-1], pattern, Sharded(int(axis), int(parts)))
        case ["parameters", "rows"]:
            found[-1] = replace(found[-1], parameters="rows")
        case ["states", "rows"]:
            found[-1] = replace(found[-1], states="rows")
        case _:
            raise ValueError(words)


def _sharding(axis: AxisLayout, pattern: str, p: Sharded) -> AxisLayout:
    return replace(axis, shards=(*axis.shards, (pattern, p)))


# the strategies that have names


def data(size: int, name: str = "data") -> Strategy:
    """Every rank has the model and a part of the batch, which is axis 0 of the arguments."""
    return Strategy((AxisLayout(name, size, batch=0),))


def zero(stage: int, size: int, name: str = "data") -> Strategy:
    """As `data`, with the optimizers' states (stage 1 and 2) and the parameters (3) divided among
    the ranks. Gradients live within a step, where stages 1 and 2 both have them in rows as soon as
    they are summed. Raises InvalidCall for another stage."""
    if stage not in (1, 2, 3):
        raise InvalidCall(f"ZeRO has stages 1, 2 and 3, not {stage}; stage 0 is data({size})")
    stored: Storage = "rows" if stage == 3 else "whole"
    return Strategy((AxisLayout(name, size, batch=0, parameters=stored, states="rows"),))


def tensor(size: int, shards: Mapping[str, Sharded], name: str = "tensor") -> Strategy:
    """Parameters divided along their axes, by patterns of their names; activations between them as
    costs least, so along the sequence where nothing needs them whole."""
    return Strategy((AxisLayout(name, size, shards=tuple(shards.items())),))


def context(size: int, name: str = "context", axis: int = 1) -> Strategy:
    """Every rank has the model and a part of each sequence, which is axis 1 of the arguments."""
    return Strategy((AxisLayout(name, size, batch=axis),))


def expert(size: int, mixture: str, name: str = "expert") -> Strategy:
    """Every rank has a part of the batch, and of each `nn.MixtureOfExperts`, whose name fits the
    pattern `mixture`, so many of the experts: tokens travel to them and back by all-to-all."""
    shards = tuple((f"{mixture}.{of}", Sharded(0)) for of in ("up", "down"))
    return Strategy((AxisLayout(name, size, batch=0, shards=shards),))
