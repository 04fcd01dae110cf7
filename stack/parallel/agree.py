"""All ranks compute one thing: they have one strategy, the same model, optimizers and functions,
and begin with the values of rank 0."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from hal.core.errors import InvalidCall
from hal.tile.node import Type
from stack.comm.engine.names import learn
from stack.comm.group import Group
from stack.compiler.program import GraphRequest
from stack.framework import Tensor, default_generator, tensor
from stack.framework.cell import Cell
from stack.framework.dtypes import NAMES
from stack.framework.flat import homes
from stack.framework.nn import Module
from stack.framework.optim.optimizer import Optimizer
from stack.framework.realize import arrays_of, realize
from stack.parallel.mesh import Mesh
from stack.parallel.pipeline import MicroBatch
from stack.parallel.refusals import await_all
from stack.runtime import OverBudget
from stack.runtime.canonical import structure

T = TypeVar("T")
Fact = tuple[str, str]
"""What something is called, and what must be equal of it."""
FEW, NEAR = 16, 1e-2
"""Of how many numbers of an argument, and fewer than twice as many, ranks compare each; and how far
they may be apart, relatively."""
LONG = 200
"""Letters of a fact that a message says."""


class Meeting(StrEnum):
    """What all ranks come together for beside their steps. Calls are named so, since a rank that
    comes alone meets the others in a call of something else."""

    SPREAD = "a call of `parallel`"
    TRACE = "the first call of a function under `jit`"
    GATHERED = "whole values for `gathered()`"
    OPTIMIZER = "whole values for an optimizer that takes parameters behind `parallel`"
    GIVEN = "whole values that others are computed of outside of functions under `jit`"
    CLOSE = "whole values at the end of the block of `parallel`"
    FLAG = "a flag for `any`"


for meeting in Meeting:
    learn(meeting)  # another rank may come to it first


class Agreement:
    """Ranks that must agree: `groups` are their lines along the axes of a mesh, or one of all,
    `rank` is this process's number in the job, and `meeting` what they come together for."""

    def __init__(self, groups: Sequence[Group], rank: int, meeting: Meeting) -> None:
        self.groups, self.rank, self.meeting = groups, rank, meeting

    def compare(
        self, facts: Sequence[Fact], what: str, advice: str, causes: Sequence[Fact] = ()
    ) -> None:
        """Raise InvalidCall on all ranks where they have different facts. `causes` may differ:
        one that does is named where the facts of two ranks differ, too."""
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        if len(set(self.every(digest))) < 2:
            return
        own = json.dumps([self.rank, facts, causes])
        said = sorted(json.loads(text) for text in self.every(own))
        rank, first, mine = said[0]
        other, second, its = next(row for row in said if row[1] != first)
        pairs = (*zip_longest(mine, its), *zip_longest(first, second))
        ours, theirs = next((a, b) for a, b in pairs if a != b)
        raise InvalidCall(
            f"ranks have different {what}: rank {rank} has {_said(ours)} where rank {other} has "
            f"{_said(theirs)}; {advice}"
        )

    def made(self, make: Callable[[], T]) -> T:
        """What this rank makes. Raises on all ranks what it raises on one; of budgets that are too
        small that of the rank that needs most."""
        found, failure = None, None
        try:
            found = make()
        except Exception as error:  # noqa: BLE001 - raised again, when the others know
            failure = error
        text = "" if failure is None else str(failure) or type(failure).__name__
        needs = failure.nbytes if isinstance(failure, OverBudget) else 0
        said = [json.loads(each) for each in self.every(json.dumps([needs, -self.rank, text]))]
        most, place, reason = max((each for each in said if each[2]), default=(0, 0, ""))
        if failure is not None and needs in (0, most):
            raise failure
        if reason:
            raise InvalidCall(f"rank {-place}: {reason}") from failure
        assert found is not None, "nothing was raised"
        return found

    def every(self, own: str) -> list[str]:
        """What each rank says."""
        said = [own]
        for group in self.groups:
            data = np.frombuffer(json.dumps(said).encode(), np.uint8)
            size = np.array([data.size])
            counts = group.all_gather(size, name=self.meeting).ravel().tolist()
            texts = group.all_gather(data, counts=counts, name=self.meeting).tobytes()
            ends = np.cumsum(counts).tolist()
            each = [texts[end - n : end] for end, n in zip(ends, counts, strict=True)]
            said = [one for part in each for one in json.loads(part)]
        return said


def _said(fact: Sequence[str] | None) -> str:
    if fact is None:
        return "nothing"
    text = f"{fact[0]}: {fact[1]}"
    return text if len(text) <= LONG else f"{text[:LONG]}..."


@contextmanager
def among_all(mesh: Mesh) -> Iterator[Agreement]:
    """The agreement of all ranks of the mesh's job, whatever their meshes are."""
    if mesh.world is None or mesh.world.size == 1:
        yield Agreement([], mesh.rank, Meeting.SPREAD)
        return
    await_all(mesh.world)
    group = Mesh.of(mesh.world, ranks=mesh.world.size).join("ranks")
    try:
        yield Agreement([group], mesh.rank, Meeting.SPREAD)
    finally:
        group.close()


def agree_on_strategy(ranks: Agreement, strategy: str) -> None:
    """Raise InvalidCall on all ranks if the texts of their strategies differ."""
    lines = strategy.splitlines()
    facts = [(f"line {i}", line.strip()) for i, line in enumerate(lines, 1)]
    ranks.compare(facts, "strategies", "give all ranks one text")


def agree_on_model(ranks: Agreement, model: Module) -> None:
    """Raise InvalidCall on all ranks if their models differ in names, shapes or types."""
    named = [*model.named_parameters(), *model.named_buffers()]
    facts = [(name, _described(t)) for name, t in named]
    ranks.compare(facts, "models", "build the same model on all ranks")


def agree_on_optimizers(ranks: Agreement, model: Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise InvalidCall on all ranks if their optimizers differ in kind, settings or parameters."""
    names = {p.serial: name for name, p in model.named_parameters()}
    facts = []
    for i, optimizer in enumerate(optimizers):
        for k, group in enumerate(optimizer.param_groups):
            at = f"group {k} of optimizer {i}"
            facts += [
                (at, names.get(p.serial, "no parameter of the model")) for p in group["params"]
            ]
            facts.append((at, type(optimizer).__name__))
            for key in sorted(group.keys() - {"params"}):
                value = group[key]
                number = value.item() if isinstance(value, Tensor) else value
                facts.append((at, f"{key}={number!r}"))
    ranks.compare(facts, "optimizers", "make the same optimizers on all ranks")


def agree_on_given(ranks: Agreement, model: Module, cells: Collection[Cell]) -> None:
    """Raise InvalidCall on all ranks if one of them alone has given values to these, in which
    parameters and buffers lie, or an optimizer's states."""
    facts = []
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        home = homes.get(t.serial)
        if (t if home is None else home.cell) in cells:
            facts.append((name, "given another value"))
    ranks.compare(
        facts,
        "values",
        "what one of them alone gives is no value of all: let all ranks do it alike, as by "
        "`load_state_dict` of one state",
    )


def agree_on_function(
    ranks: Agreement, model: Module, function: str, request: GraphRequest
) -> None:
    """Raise InvalidCall on all ranks if they have traced different functions: of other arguments,
    or with other numbers in it. Settings of the model's modules that differ are the first guess."""
    ranks.compare(
        [("function", function), *_facts(request)],
        f"graphs of {function!r}",
        "call the same functions on all ranks, with arguments of the same shapes, and write no "
        "number of a rank's own in them",
        causes=_settings(model),
    )


def agree_on_arguments(
    ranks: Agreement, function: str, values: Sequence[np.ndarray | None]
) -> None:
    """Raise InvalidCall on all ranks if they call a function with other values: integers that
    differ anywhere, or of real numbers a few, at equal distances, that differ by more than another
    processor's rounding makes."""
    given = {i: x for i, x in enumerate(values) if x is not None}
    of_each = {i: _digest(x) if x.dtype.kind in "biu" else _few(x) for i, x in given.items()}
    own = json.dumps([ranks.rank, *of_each.values()])
    (first, *wanted), *others = sorted(json.loads(text) for text in ranks.every(own))
    for rank, *found in others:
        for i, x, y in zip(of_each, wanted, found, strict=True):
            if x != y and (isinstance(x, str) or not _is_near(x, y)):
                raise InvalidCall(
                    f"ranks call {function!r} with other values of argument {i}, of shape "
                    f"{list(given[i].shape)}: rank {rank} has not those of rank {first}; all ranks "
                    "take the whole batch, of which each computes its part, so read the same one "
                    "on all of them"
                )


def _digest(x: np.ndarray) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()


def _few(x: np.ndarray) -> list[float]:
    """Some numbers of an array, from all over it."""
    found: list[float] = x.ravel()[:: max(1, x.size // FEW)].astype(np.float64).tolist()
    return found


def _is_near(some: Sequence[float], others: Sequence[float]) -> bool:
    most = max(filter(math.isfinite, map(abs, some)), default=0.0)
    return np.allclose(some, others, NEAR, NEAR * most, equal_nan=True)


def _settings(model: Module) -> list[Fact]:
    """What modules have besides tensors and other modules: numbers, words, flags, and tuples of
    them. Others are not asked for their text: a tensor would be computed for it."""
    return [
        (f"{name or 'the model'}, a {type(module).__name__}", f"{key}={value!r}")
        for name, module in model.named_modules()
        for key, value in sorted(vars(module).items())
        if not key.startswith("_")
        for parts in (value if isinstance(value, tuple) else (value,),)
        if all(isinstance(part, bool | int | float | str | None) for part in parts)
    ]


def _facts(request: GraphRequest) -> list[Fact]:
    parts, *ends = structure(request)
    found: list[Fact] = []
    for i, part in enumerate(parts):
        if len(part) == 2:
            found.append((f"input {i}", str(Type(*part))))
            continue
        op, shape, dtype, attrs, srcs = part
        given = () if isinstance(attrs, str) else attrs
        inner = [v for _, v in given if isinstance(v, MicroBatch)]
        for made in inner:
            found += _facts(GraphRequest(made.outputs, made.inputs))
        said = "" if inner else f" {attrs}"
        found.append((f"value {i}", f"{op} {Type(shape, dtype)} of values {srcs}{said}"))
    return [*found, ("outputs and updates", str(ends))]


def take_values(group: Group, model: Module, device: str) -> None:
    """Give every rank the values of rank 0: parameters, buffers, and the state of the device's
    generator."""
    _take_values(group, [t for _, t in (*model.named_parameters(), *model.named_buffers())])
    generator = default_generator(device)
    state = np.array(generator.get_state(), np.uint64)
    group.broadcast(state, 0)
    generator.set_state(*state.tolist())


def _described(t: Tensor) -> str:
    learned = "" if t.requires_grad else ", not learned"
    return f"{NAMES[t.dtype]}{list(t.shape)}{learned}"


def _take_values(group: Group, tensors: Sequence[Tensor]) -> None:
    arrays_of(tensors)
    for t in tensors:
        own = t.numpy()
        data = np.ascontiguousarray(own).view(np.uint8).reshape(-1).copy()
        group.broadcast(data, 0)
        if data.tobytes() != own.tobytes():
            values = np.frombuffer(data.tobytes(), own.dtype).reshape(own.shape)
            t.data = tensor(values, dtype=t.dtype, device=t.device)
    realize(*tensors)
