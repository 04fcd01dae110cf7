"""How a model is spread over ranks, as a value that is text: one line for each fact.

    axis tensor 2
      parameter *.qkv.* shard 0 of 3
      parameter *.down.weight shard 1
    axis data 2
      batch 0
      states rows

    axis replica 2
      batch 0
      shares 3 1

    axis context 2
      batch 1
      attention ring

    axis expert 2
      batch 0
      shadows 1
      parts 2
      parameter *.mixture.up shard 0
      parameter *.mixture.down shard 0

Of each axis of the mesh: which axis of every argument of a step is the batch, and how parameters
and the optimizers' states are stored. `shard 0 of 3` divides each third of axis 0. `rows` divides
the elements of each parameter, whatever its shape. What nothing is said of is whole on every rank.
Where ranks have parts of sequences, `attention` says how it is computed: by `heads` of whole
sequences, or around the `ring` of the ranks; what costs least where nothing is said. By `shares`
the first rank takes three quarters of a batch here, and the second one a quarter. Where tokens
travel to experts, those of so many experts as `shadows` says stay, and the experts' matrices travel
instead; the other ones travel in `parts`, of which one is computed while another one is sent, in as
many as take least by what the devices declare where nothing is said.

    axis stage 2
      schedule 1f1b 8
      chunk blocks.0.* 0
      chunk * 1

Or an axis is a pipeline: its ranks compute chunks of the model by a schedule, here of 8
micro-batches. The first pattern that fits says which chunk a parameter is in. A schedule has a name
(gpipe, 1f1b, zb-h1, zb-v, dualpipe-v, or `interleaved 8 2` with 2 chunks on each rank), or is a
table, whose lines are those of `stack.parallel.schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from stack.parallel.placement import WHOLE, Placement, Sharded
from stack.parallel.refusals import told
from stack.parallel.schedule import (
    Schedule,
    check,
    dualpipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_v,
)

Storage = Literal["whole", "rows"]
Attending = Literal["", "heads", "ring"]

NAMED: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
}
"""Schedules by the names that strategies have for them. They take ranks and micro-batches, and
`interleaved` the chunks of each rank."""


ONCE = ("batch", "shares", "shadows", "parts", "attention", "schedule")
"""The first words of lines of which an axis has one."""


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """What is divided among the `size` ranks along an axis of the mesh.

    `shards` has placements by patterns of parameters' names, of which the first that fits holds.
    `parameters` and `states` say how parameters and the optimizers' states are stored: "rows" are
    gathered for what reads them, and what is computed for them is computed in rows. `gradients`
    says how those of micro-batches are summed: in "rows" each is scattered when it is there. By
    "ring" of `attention` parts of sequences are in zigzag order (`Sharded`). With a
    `schedule`, in words or as a table, the axis is a pipeline, whose `chunks` have parameters by
    patterns of their names. `shares` has how many of so many equal pieces of the batch each rank
    takes, in as few pieces as can be: 4 and 2 are 2 and 1, and equal ones are none. Of `shadows`
    experts, those with most rows, each rank computes its own rows, and those of others travel in
    `parts`, of which one is multiplied while others are on their way, where experts have no
    capacity; None: in as many as take least.
    """

    name: str
    size: int
    batch: int | None = None
    shards: tuple[tuple[str, Sharded], ...] = ()
    parameters: Storage = "whole"
    gradients: Storage = "whole"
    states: Storage = "whole"
    schedule: str = ""
    chunks: tuple[tuple[str, int], ...] = ()
    attention: Attending = ""
    shares: tuple[int, ...] = ()
    shadows: int = 0
    parts: int | None = None

    def __post_init__(self) -> None:
        if len(self.shares) != self.size or min(self.shares, default=0) < 1:
            return
        divisor = math.gcd(*self.shares)
        counts = tuple(n // divisor for n in self.shares)
        object.__setattr__(self, "shares", counts if len(set(counts)) > 1 else ())

    @property
    def pieces(self) -> int:
        """The equal pieces that the batch is divided in."""
        return sum(self.shares) or self.size

    @property
    def divides_rows(self) -> bool:
        return "rows" in (self.parameters, self.gradients, self.states)

    @property
    def table(self) -> Schedule:
        """The schedule, proved. Raises InvalidCall for one that cannot run, or is not for so many
        ranks."""
        try:
            found = _table(self.schedule, self.size)
        except InvalidCall as error:
            raise InvalidCall(f"the schedule along {self.name!r}: {error}") from error
        if found.ranks != self.size:
            raise InvalidCall(
                f"the schedule is for {found.ranks} ranks, and there are {self.size} along "
                f"{self.name!r}"
            )
        return found

    def chunk(self, parameter: str) -> int:
        """That of a parameter by its name. Raises InvalidCall for one that no pattern fits."""
        for pattern, chunk in self.chunks:
            if fnmatchcase(parameter, pattern):
                return chunk
        raise InvalidCall(
            f"no chunk of the pipeline along {self.name!r} has parameter {parameter}; there are "
            f"{', '.join(pattern for pattern, _ in self.chunks) or 'none'}"
        )

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
            if axis.batch is not None and axis.batch < 0:
                raise InvalidCall(
                    f"axis {axis.name!r} has `batch {axis.batch}`; axes of arguments are counted "
                    "from 0"
                )
            for pattern, p in axis.shards:
                if p.major < 1:
                    raise InvalidCall(
                        f"axis {axis.name!r} divides {pattern} in each of {p.major} parts; it "
                        "takes at least 1"
                    )
            if axis.chunks and not axis.schedule:
                raise InvalidCall(
                    f"axis {axis.name!r} has chunks and no schedule; write `schedule 1f1b 8`, for "
                    "instance"
                )
        rows = [axis.name for axis in self.axes if axis.divides_rows]
        if len(rows) > 1:
            raise InvalidCall(
                f"axes {', '.join(rows)} all divide parameters or states in rows; one axis can, "
                "make it of as many ranks"
            )
        stages = [axis.name for axis in self.axes if axis.schedule]
        if len(stages) > 1:
            raise InvalidCall(
                f"axes {', '.join(stages)} are all pipelines; one axis can be, make it of as many "
                "ranks"
            )
        for axis in self.axes:
            if axis.attention and not axis.batch:
                raise InvalidCall(
                    f"attention {axis.attention} along {axis.name!r} takes sequences that its "
                    f"ranks divide, and `batch {axis.batch}` has none; write `batch 1`"
                )
            _check_shares(axis)
            if axis.shadows < 0 or (axis.shadows and not (axis.shards and axis.batch is not None)):
                raise InvalidCall(
                    f"axis {axis.name!r} has `shadows {axis.shadows}`: of so many experts, which "
                    "its ranks divide, each computes its own tokens; write `batch 0` and "
                    "`parameter *.up shard 0`, and at least 0"
                )
            parts = 1 if axis.parts is None else axis.parts
            if parts < 1 or (parts > 1 and not (axis.shards and axis.batch is not None)):
                raise InvalidCall(
                    f"axis {axis.name!r} has `parts {parts}`: in so many parts tokens travel "
                    "to the experts that its ranks divide; write `batch 0` and `parameter *.up "
                    "shard 0`, and at least 1"
                )
            shards = [other.name for other in self.axes if other.shards and other is not axis]
            if axis.attention == "ring" and axis.divides_rows and shards:
                raise InvalidCall(
                    f"axis {axis.name!r} has attention around a ring and divides parameters or "
                    f"states in rows, and {shards[0]!r} divides parameters, which comes before "
                    "rows and behind a ring; let an axis of its own divide rows, or take "
                    "`attention heads`"
                )
            divides = axis.batch is not None or axis.shards or axis.name in rows
            if axis.schedule and divides:
                raise InvalidCall(
                    f"axis {axis.name!r} is a pipeline, and divides something besides; take two "
                    "axes"
                )

    @property
    def pipeline(self) -> AxisLayout | None:
        """The axis that is one."""
        return next((axis for axis in self.axes if axis.schedule), None)

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
            if axis.shares:
                lines.append(f"  shares {' '.join(map(str, axis.shares))}")
            if axis.shadows:
                lines.append(f"  shadows {axis.shadows}")
            if axis.parts is not None:
                lines.append(f"  parts {axis.parts}")
            if axis.attention:
                lines.append(f"  attention {axis.attention}")
            for pattern, p in axis.shards:
                of = f" of {p.major}" if p.major > 1 else ""
                lines.append(f"  parameter {pattern} shard {p.axis}{of}")
            lines += ["  parameters rows"] * (axis.parameters == "rows")
            lines += ["  gradients rows"] * (axis.gradients == "rows")
            lines += ["  states rows"] * (axis.states == "rows")
            if axis.schedule:
                named = axis.schedule.split()[0] in NAMED
                given = axis.schedule.splitlines()
                lines += [f"  schedule {axis.schedule}"] if named else [f"  {row}" for row in given]
            lines += [f"  chunk {pattern} {chunk}" for pattern, chunk in axis.chunks]
        return "\n".join(lines) + "\n"

    @staticmethod
    def parse(text: str) -> Strategy:
        """A strategy from its text; what follows # is said to people. Raises InvalidCall with the
        number of the line, which ranks that wait in `parallel` for this one are told, too."""
        with told():
            return _parsed(text)


def _parsed(text: str) -> Strategy:
    found: list[AxisLayout] = []
    once: set[tuple[int, str]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and words[0] in ONCE:
            if (len(found), words[0]) in once:
                raise InvalidCall(
                    f"line {number} of the strategy is {line.strip()!r}, and its axis has a "
                    f"`{words[0]}` already; leave one of them out"
                )
            once.add((len(found), words[0]))
        try:
            _read(words, found)
        except (ValueError, IndexError):
            raise InvalidCall(
                f"line {number} of the strategy is {line.strip()!r}; it takes `axis NAME "
                "RANKS`, `batch AXIS`, `shares PIECES ...`, `shadows EXPERTS`, `parts NUMBER`, "
                "`attention heads`, `attention ring`, "
                "`parameter PATTERN shard AXIS [of PARTS]`, `parameters rows`, `gradients rows`, "
                "`states rows`, "
                f"`schedule NAME MICROBATCHES` with a NAME of {', '.join(NAMED)}, `chunk PATTERN "
                "NUMBER`, or lines of a schedule's table"
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
        case ["shares", *counts] if counts:
            found[-1] = replace(found[-1], shares=tuple(map(int, counts)))
        case ["shadows", experts]:
            found[-1] = replace(found[-1], shadows=int(experts))
        case ["parts", number]:
            found[-1] = replace(found[-1], parts=int(number))
        case ["attention", "heads" | "ring" as how]:
            found[-1] = replace(found[-1], attention=how)
        case ["parameter", pattern, "shard", axis]:
            found[-1] = _sharding(found[-1], pattern, Sharded(int(axis)))
        case ["parameter", pattern, "shard", axis, "of", parts]:
            found[-1] = _sharding(found[-1], pattern, Sharded(int(axis), int(parts)))
        case ["parameters", "rows"]:
            found[-1] = replace(found[-1], parameters="rows")
        case ["gradients", "rows"]:
            found[-1] = replace(found[-1], gradients="rows")
        case ["states", "rows"]:
            found[-1] = replace(found[-1], states="rows")
        case ["schedule", name, *numbers]:
            made = " ".join((name, *(str(int(n)) for n in numbers)))
            if name not in NAMED:
                raise ValueError(words)
            found[-1] = replace(found[-1], schedule=made)
        case ["chunk", pattern, number]:
            chunk = (pattern, int(number))
            found[-1] = replace(found[-1], chunks=(*found[-1].chunks, chunk))
        case ["chunks" | "rank", *_]:
            before = f"{found[-1].schedule}\n" if found[-1].schedule else ""
            found[-1] = replace(found[-1], schedule=before + " ".join(words))
        case _:
            raise ValueError(words)


def _sharding(axis: AxisLayout, pattern: str, p: Sharded) -> AxisLayout:
    return replace(axis, shards=(*axis.shards, (pattern, p)))


@lru_cache(maxsize=64)
def _table(schedule: str, ranks: int) -> Schedule:
    name, *numbers = schedule.split() or [""]
    if name not in NAMED and "chunks" not in schedule:
        raise InvalidCall(
            f"{schedule!r} has no name of {', '.join(NAMED)}, and is no table, which begins with "
            "`chunks 0 | 1`; write `1f1b 8`, for instance"
        )
    if name not in NAMED:
        found = Schedule.parse(schedule)
    elif len(numbers) != (2 if name == "interleaved" else 1):
        more = " and chunks of a rank" if name == "interleaved" else ""
        raise InvalidCall(f"{schedule!r}: {name} takes a number of micro-batches{more}")
    elif min(map(int, numbers)) < 1:
        raise InvalidCall(f"{schedule!r}: {name} takes numbers of at least 1")
    else:
        found = NAMED[name](ranks, *map(int, numbers))
    check(found)
    return found


def _check_shares(axis: AxisLayout) -> None:
    """Raise InvalidCall for shares of a batch that its ranks cannot take."""
    if not axis.shares:
        return
    said = f"axis {axis.name!r} has `shares {' '.join(map(str, axis.shares))}`"
    if len(axis.shares) != axis.size or min(axis.shares) < 1:
        raise InvalidCall(
            f"{said} and {axis.size} ranks; give the pieces of the batch that each rank takes, at "
            "least 1"
        )
    if axis.batch is None:
        raise InvalidCall(f"{said}, and divides no batch; write `batch 0`")
    if axis.attention or axis.shards or axis.divides_rows:
        raise InvalidCall(
            f"{said} and divides something besides the batch, whose parts are equal; take two axes"
        )


# the strategies that have names


def data(size: int, name: str = "data", shares: Sequence[int] = ()) -> Strategy:
    """Every rank has the model and a part of the batch, which is axis 0 of the arguments: an equal
    one, or as many of equal pieces as `shares` says (`even_shares` finds them)."""
    return Strategy((AxisLayout(name, size, batch=0, shares=tuple(shares)),))


def zero(stage: int, size: int, name: str = "data") -> Strategy:
    """As `data`, with the optimizers' states (stage 1), the gradients (2) and the parameters (3)
    divided among the ranks. A step without micro-batches has its gradients in rows under stage 1,
    too, as soon as they are summed; of a pipeline's micro-batches stage 1 sums whole gradients and
    scatters once, stages 2 and 3 scatter each. Raises InvalidCall for another stage."""
    if stage not in (1, 2, 3):
        raise InvalidCall(f"ZeRO has stages 1, 2 and 3, not {stage}; stage 0 is data({size})")
    parameters: Storage = "rows" if stage == 3 else "whole"
    gradients: Storage = "rows" if stage > 1 else "whole"
    axis = AxisLayout(name, size, batch=0, parameters=parameters, gradients=gradients)
    return Strategy((replace(axis, states="rows"),))


def tensor(size: int, shards: Mapping[str, Sharded], name: str = "tensor") -> Strategy:
    """Parameters divided along their axes, by patterns of their names; activations between them as
    costs least, so along the sequence where nothing needs them whole."""
    return Strategy((AxisLayout(name, size, shards=tuple(shards.items())),))


def context(size: int, name: str = "context", axis: int = 1) -> Strategy:
    """Every rank has the model and a part of each sequence, which is axis 1 of the arguments.
    Attention exchanges what costs least."""
    return Strategy((AxisLayout(name, size, batch=axis),))


def ulysses(size: int, name: str = "context", axis: int = 1) -> Strategy:
    """As `context`, with attention by heads: queries, keys, values and results change by all-to-all
    between parts of sequences and parts of heads, which are a multiple of the ranks."""
    return Strategy((AxisLayout(name, size, batch=axis, attention="heads"),))


def ring(size: int, name: str = "context", axis: int = 1) -> Strategy:
    """As `context`, with attention around a ring: keys and values go from rank to rank, and no rank
    ever has those of a whole sequence. Sequences are a multiple of twice the ranks."""
    return Strategy((AxisLayout(name, size, batch=axis, attention="ring"),))


def expert(
    size: int, mixture: str, name: str = "expert", shadows: int = 0, parts: int | None = None
) -> Strategy:
    """Every rank has a part of the batch, and of each `nn.MixtureOfExperts`, whose name fits the
    pattern `mixture`, so many of the experts: tokens travel to them and back by all-to-all. In
    mixtures without a capacity those of the `shadows` experts with the most tokens of a step stay,
    and the experts' matrices travel; and tokens travel in `parts`, each of them while another one
    is computed (both FasterMoE, He et al. 2022), or in as many as take least."""
    shards = tuple((f"{mixture}.{of}", Sharded(0)) for of in ("up", "down"))
    axis = AxisLayout(name, size, batch=0, shards=shards, shadows=shadows, parts=parts)
    return Strategy((axis,))


def pipeline(size: int, schedule: str, chunks: Mapping[str, int], name: str = "stage") -> Strategy:
    """Each rank has chunks of the model and computes them by a schedule: "1f1b 8", for instance, or
    the text of a table. `chunks` has the chunk of parameters, by patterns of their names."""
    return Strategy((AxisLayout(name, size, schedule=schedule, chunks=tuple(chunks.items())),))
