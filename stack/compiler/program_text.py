"""Compiled graphs as text, for files: a line of JSON of a fixed form, then the texts of programs.

It is read without trust. The line is

    {"form": 5, "conditions": [[question, holds], ...],
     "inputs": [["f32", [2, 3]], ...], "outputs": [...], "updates": [[output, input], ...],
     "temps": [nbytes, ...],
     "programs": [{"format": ..., "nbytes": ..., "entry": ...,
                   "params": [[name, kind, dtype, reads, writes], ...],
                   "options": [[name, value], ...]}, ...],
     "calls": [["kernel", program, [x, y, z], [argument, ...]],
               ["copy", buffer, buffer],
               ["loop", steps, reverse, tested, [buffer, ...] of constants,
                [[buffer at first, buffer at the end, another buffer], ...], [buffer, ...] of rows,
                [buffer, ...] of stacks, [type, ...] of the body's inputs, and of its outputs,
                [call, ...]],
               ["exchange", group, call, [buffer, ...] that are kept, buffer, buffer(, buffer)],
               ...]}

where a program's text has `nbytes`, and they follow in the order of the programs, with nothing
between them. A buffer is ["input" | "output" | "temp", index, offset_nbytes, nbytes]; an argument
is one, or a number. The call of an exchange is [kind, dtype, count, reduce, root, name] of a
collective, or ["messages", dtype, count, [[from, to], ...], name]. A size that is data is
{"sum": [[[factor, ...], number], ...]}, a sum of products: a factor is a symbol's name, or
["//" | "%", sum, sum]; and the conditions are those under which the graph serves such sizes. What
is read refers only to what is there, and to bytes within it, where sizes are data for their hints.
The text of a program is code all the same: who may write such a file may run what he likes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from hal.core.dtypes import DType
from hal.core.values import (
    Collective,
    CollectiveKind,
    KernelSource,
    Param,
    ParamKind,
    ReduceKind,
)
from hal.tile import size as sizes
from hal.tile.node import Type
from hal.tile.size import Condition, Facts, Size, hint
from stack.comm.messages import Messages, RankCall
from stack.compiler.program import (
    BufferKind,
    BufferRef,
    Call,
    CarriedValue,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    KernelCall,
    LoopCall,
)

FORM = 5
"""Changes with the form of the text."""

_LARGEST = (1 << 63) - 1
"""No size, offset or grid is larger."""
_QUESTION = re.compile(r"(?>\s|\d+(?:\.\d+)?(?:e[-+]?\d+)?|(?!\w*__)[a-z]\w*|[-+*/%()<>=!])*+")
"""Of numbers, names and operators."""

T = TypeVar("T")


class ProgramTextError(ValueError):
    """A text that is no compiled graph. It says what in it is wrong."""


class OtherSizes(ProgramTextError):
    """A text of a graph that does not serve the sizes for which it is wanted."""


def to_text(graph: CompiledGraph, conditions: Iterable[Condition] = ()) -> bytes:
    """The graph as text, with the conditions under which it serves sizes that are data. Raises
    ProgramTextError for a scalar that has no form here."""
    numbers: dict[KernelSource, int] = {}
    calls = [_call_facts(call, numbers) for call in graph.calls]
    texts = [source.text.encode("utf-8", "surrogatepass") for source in numbers]
    facts = {
        "form": FORM,
        "conditions": [[c.question, c.holds] for c in conditions],
        "inputs": [_type_facts(t) for t in graph.inputs],
        "outputs": [_type_facts(t) for t in graph.outputs],
        "updates": graph.updates,
        "temps": graph.temps,
        "programs": [_source_facts(s, len(t)) for s, t in zip(numbers, texts, strict=True)],
        "calls": calls,
    }
    # A size that is data is no int to the encoder, so that it asks.
    line = json.dumps(facts, separators=(",", ":"), default=sizes.said)
    return b"".join((line.encode(), b"\n", *texts))


def from_text(text: bytes, facts: Facts | None = None) -> CompiledGraph:
    """The graph of a text, in which sizes may be those of `facts`, to which the graph's conditions
    are added. Raises ProgramTextError; OtherSizes where the hints do not meet the conditions."""
    head, _, texts = text.partition(b"\n")

    def sized(found: dict[str, Any]) -> Any:
        return sizes.read(found, facts) if facts is not None and "sum" in found else found

    try:
        line = json.loads(head, object_hook=sized)
    except (ValueError, RecursionError) as error:
        raise ProgramTextError(f"no JSON: {error}") from error
    keys = ("form", "conditions", "inputs", "outputs", "updates", "temps", "programs", "calls")
    found = _fields(line, keys, "a graph")
    form, conditions, inputs, outputs, updates, temps, programs, calls = found
    if type(form) is not int or form != FORM:
        raise ProgramTextError(f"form {form!r}; this package reads {FORM}")
    _check_conditions(_all(conditions, _condition, "conditions"), facts)
    graph = CompiledGraph(
        _all(inputs, _type, "inputs"),
        _all(outputs, _type, "outputs"),
        _all(updates, partial(_two, _size, "an update"), "updates"),
        _all(temps, _size, "temps"),
        (),
    )
    for side in (0, 1):
        if len({update[side] for update in graph.updates}) != len(graph.updates):
            raise ProgramTextError("two updates have one output or one input")
    for output, input in graph.updates:
        if output >= len(graph.outputs) or input >= len(graph.inputs):
            raise ProgramTextError(f"there is no update of input {input} by output {output}")
        if _plain(graph.outputs[output]) != _plain(graph.inputs[input]):
            raise ProgramTextError(f"output {output} has another type than input {input}")
    sources = _sources(programs, texts)
    reader = _Calls(graph, sources)
    return CompiledGraph(
        graph.inputs, graph.outputs, graph.updates, graph.temps, _all(calls, reader.call, "calls")
    )


def _condition(facts: Any) -> Condition:
    question, holds = _items(facts, 2, "a condition")
    if not _QUESTION.fullmatch(_word(question)):
        raise ProgramTextError(f"{question!r} asks nothing of sizes")
    return Condition(question, _flag(holds))


def _check_conditions(conditions: Sequence[Condition], facts: Facts | None) -> None:
    if facts is None and conditions:
        raise ProgramTextError("conditions of sizes that are no data")
    try:
        if facts is not None and not facts.meet(conditions):
            raise OtherSizes("it serves other sizes")
    except (SyntaxError, NameError, TypeError, RecursionError) as error:
        raise ProgramTextError(f"a condition is no question: {error}") from error


def _plain(type: Type) -> Type:
    """A type at the hints of its sizes."""
    return type.with_shape([hint(d) for d in type.shape])


def _type_facts(type: Type) -> list[Any]:
    return [type.dtype.short, type.shape]


def _source_facts(source: KernelSource, nbytes: int) -> dict[str, Any]:
    params = [[p.name, p.kind.value, p.dtype.short, p.reads, p.writes] for p in source.params]
    return {
        "format": source.format,
        "nbytes": nbytes,
        "entry": source.entry,
        "params": params,
        "options": source.options,
    }


def _call_facts(call: Call, numbers: dict[KernelSource, int]) -> list[Any]:
    if isinstance(call, CopyCall):
        return ["copy", _ref_facts(call.dst), _ref_facts(call.src)]
    if isinstance(call, ExchangeCall):
        sides = (_ref_facts(ref) for ref in (call.dst, *call.sources))
        kept = [_ref_facts(ref) for ref in call.kept]
        if isinstance(call.call, Messages):
            said = [
                "messages",
                call.call.dtype.short,
                call.call.count,
                call.call.pairs,
                call.call.name,
            ]
        else:
            assert not call.call.counts, "sizes that differ are data of a graph"
            assert not call.call.parts, "sizes that differ are data of a graph"
            of = (
                call.call.kind.value,
                call.call.dtype.short,
                call.call.count,
                call.call.reduce.value,
                call.call.root,
                call.call.name,
            )
            said = list(of)
        return ["exchange", call.group, said, kept, *sides]
    if isinstance(call, LoopCall):
        return [
            *("loop", call.steps, call.reverse, call.tested),
            [_ref_facts(ref) for ref in call.consts],
            [[_ref_facts(ref) for ref in (c.begin, c.end, c.other)] for c in call.carried],
            *([_ref_facts(ref) for ref in refs] for refs in (call.rows, call.stacks)),
            *([_type_facts(t) for t in types] for types in (call.body.inputs, call.body.outputs)),
            [_call_facts(inner, numbers) for inner in call.body.calls],
        ]
    number = numbers.setdefault(call.source, len(numbers))
    return ["kernel", number, call.grid, [_argument_facts(arg) for arg in call.args]]


def _rank_call(facts: Any) -> RankCall:
    if isinstance(facts, list) and facts[:1] == ["messages"]:
        _, dtype, count, pairs, name = _items(facts, 5, "messages")
        return Messages(
            _one_of(_DTYPES, dtype, "an element type"),
            _size(count),
            _all(pairs, partial(_two, _size, "a pair of ranks"), "pairs of ranks"),
            _word(name),
        )
    kind, dtype, count, reduce, root, name = _items(facts, 6, "a collective")
    return Collective(
        _one_of(_COLLECTIVES, kind, "a kind of collective"),
        _one_of(_DTYPES, dtype, "an element type"),
        _size(count),
        _one_of(_REDUCES, reduce, "a reduction"),
        _size(root),
        name=_word(name),
    )


def _ref_facts(ref: BufferRef) -> list[Any]:
    return [ref.kind, ref.index, ref.offset_nbytes, ref.nbytes]


def _argument_facts(arg: BufferRef | int | float) -> Any:
    if isinstance(arg, BufferRef):
        return _ref_facts(arg)
    if type(arg) not in (int, float, bool, Size):
        raise ProgramTextError(f"an argument is a {type(arg).__name__}, no plain number")
    return arg


def _fields(facts: Any, keys: Sequence[str], what: str) -> list[Any]:
    """The values of exactly these keys."""
    if not isinstance(facts, Mapping) or set(facts) != set(keys):
        raise ProgramTextError(f"{what} has the keys {', '.join(keys)}, and no others")
    return [facts[key] for key in keys]


def _items(facts: Any, count: int, what: str) -> list[Any]:
    if not isinstance(facts, list) or len(facts) != count:
        raise ProgramTextError(f"{what} is a list of {count}")
    return facts


def _two(read: Callable[[Any], T], what: str, facts: Any) -> tuple[T, T]:
    first, second = _items(facts, 2, what)
    return read(first), read(second)


def _all(facts: Any, read: Callable[[Any], T], what: str) -> tuple[T, ...]:
    if not isinstance(facts, list):
        raise ProgramTextError(f"{what} is no list")
    return tuple([read(one) for one in facts])


def _size(fact: Any) -> int:
    if type(fact) not in (int, Size) or not 0 <= hint(fact) <= _LARGEST:
        raise ProgramTextError("a size, offset or number is no integer of 0 to 2^63 - 1")
    return cast("int", fact)


def _word(fact: Any) -> str:
    if not isinstance(fact, str):
        raise ProgramTextError(f"a {type(fact).__name__} in the place of a word")
    return fact


def _flag(fact: Any) -> bool:
    if not isinstance(fact, bool):
        raise ProgramTextError(f"a {type(fact).__name__} in the place of a bool")
    return fact


def _one_of(known: Mapping[str, T], fact: Any, what: str) -> T:
    if not isinstance(fact, str) or fact not in known:
        raise ProgramTextError(f"{what} is none of {', '.join(known)}")
    return known[fact]


_DTYPES = {dtype.short: dtype for dtype in DType}
_PARAMS = {kind.value: kind for kind in ParamKind}
_REDUCES = {kind.value: kind for kind in ReduceKind}
_COLLECTIVES = {kind.value: kind for kind in CollectiveKind}
_BUFFERS: Mapping[str, BufferKind] = {"input": "input", "output": "output", "temp": "temp"}


def _type(facts: Any) -> Type:
    dtype, shape = _items(facts, 2, "a type")
    type = Type(_all(shape, _size, "a shape"), _one_of(_DTYPES, dtype, "an element type"))
    _size(type.nbytes)
    return type


def _sources(facts: Any, texts: bytes) -> tuple[KernelSource, ...]:
    """The programs, whose texts are all of `texts`."""
    if not isinstance(facts, list):
        raise ProgramTextError("programs is no list")
    keys, found, begin = ("format", "nbytes", "entry", "params", "options"), [], 0
    for program in facts:
        format, nbytes, entry, params, options = _fields(program, keys, "a program")
        end = begin + _size(nbytes)
        try:
            whole = texts[begin:end].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ProgramTextError(f"a program's text is no text: {error}") from error
        found.append(
            KernelSource(
                _word(format),
                whole,
                _word(entry),
                _all(params, _param, "params"),
                _all(options, partial(_two, _word, "an option"), "options"),
            )
        )
        begin = end
    if begin != len(texts):
        raise ProgramTextError(f"texts of {begin} bytes; there are {len(texts)}")
    return tuple(found)


def _param(facts: Any) -> Param:
    name, kind, dtype, reads, writes = _items(facts, 5, "a parameter")
    return Param(
        _word(name),
        _one_of(_PARAMS, kind, "a parameter's kind"),
        _one_of(_DTYPES, dtype, "an element type"),
        _flag(reads),
        _flag(writes),
    )


class _Calls:
    """Reads calls on the buffers and programs of a graph."""

    def __init__(self, graph: CompiledGraph, sources: Sequence[KernelSource]) -> None:
        self._sources = sources
        self._nbytes: Mapping[str, Sequence[int]] = {
            "input": [t.nbytes for t in graph.inputs],
            "output": [t.nbytes for t in graph.outputs],
            "temp": graph.temps,
        }
        self._updated = dict(graph.updates)

    def call(self, facts: Any) -> Call:
        kind = facts[0] if isinstance(facts, list) and facts else None
        if kind == "kernel":
            _, number, grid, args = _items(facts, 4, "a kernel call")
            if _size(number) >= len(self._sources):
                raise ProgramTextError(f"there is no program {number}")
            source, sizes = self._sources[number], _all(grid, _size, "a grid")
            if len(sizes) != 3:
                raise ProgramTextError("a grid is three sizes")
            if not isinstance(args, list) or len(args) != len(source.params):
                raise ProgramTextError(f"{source.entry} takes {len(source.params)} arguments")
            given = [self._argument(p, arg) for p, arg in zip(source.params, args, strict=True)]
            return KernelCall(source, sizes, tuple(given))
        if kind == "copy":
            _, dst, src = _items(facts, 3, "a copy")
            call = CopyCall(self._ref(dst), self._ref(src))
            if hint(call.dst.nbytes) != hint(call.src.nbytes):
                raise ProgramTextError("the sides of a copy differ in size")
            if self._memory(call.dst) != self._memory(call.src):
                overlap = False
            else:
                apart = hint(call.dst.offset_nbytes) - hint(call.src.offset_nbytes)
                overlap = abs(apart) < hint(call.src.nbytes)
            if overlap:
                raise ProgramTextError("the sides of a copy overlap")
            return call
        if kind == "exchange":
            if len(facts) not in (6, 7):
                raise ProgramTextError("an exchange is a group, a call and two or three buffers")
            _, group, call, kept, *sides = facts
            dst, src, *elements = map(self._ref, sides)
            found = ExchangeCall(
                _word(group),
                _rank_call(call),
                dst,
                src,
                elements[0] if elements else None,
                _all(kept, self._ref, "kept buffers"),
            )
            if any(ref.nbytes % found.call.dtype.nbytes for ref in (found.dst, found.src)):
                raise ProgramTextError("an exchange of a part of an element")
            return found
        if kind == "loop":
            return self._loop(facts)
        raise ProgramTextError("a call is none of kernel, copy, exchange, loop")

    def _argument(self, param: Param, fact: Any) -> BufferRef | int | float:
        if param.kind is ParamKind.BUFFER:
            return self._ref(fact)
        if type(fact) not in (int, float, bool, Size) or (
            not isinstance(fact, float) and not -(1 << 63) <= hint(fact) < 1 << 64
        ):
            raise ProgramTextError(f"the argument of {param.name} is no number that a type has")
        return cast("int | float", fact)

    def _loop(self, facts: Any) -> LoopCall:
        _, count, reverse, tested, *rest = _items(facts, 11, "a loop")
        steps = _size(count)
        consts, carried, rows, stacks, inputs, outputs, calls = rest
        body = CompiledGraph(
            _all(inputs, _type, "inputs"), _all(outputs, _type, "outputs"), (), (), ()
        )
        inner = _Calls(replace(body, temps=tuple(self._nbytes["temp"])), self._sources)
        call = LoopCall(
            replace(body, calls=_all(calls, inner.call, "calls")),
            steps,
            _all(consts, self._ref, "constants"),
            _all(carried, self._carried, "carried values"),
            _all(rows, self._ref, "rows"),
            _all(stacks, self._ref, "stacks"),
            _flag(reverse),
            _flag(tested),
        )
        # The buffers of a loop are those that its body takes and gives.
        carried = [hint(c.begin.nbytes) for c in call.carried]
        ends = [hint(n) for c in call.carried for n in (c.end.nbytes, c.other.nbytes)]
        read = [*(hint(c.nbytes) for c in call.consts), *carried]
        inputs, outputs = (
            [hint(t.nbytes) for t in ts] for ts in (call.body.inputs, call.body.outputs)
        )
        steps = hint(call.steps)
        whole = [*read, *(hint(r.nbytes) for r in call.rows)]
        wanted = [*inputs[: len(read)], *(n * steps for n in inputs[len(read) :])]
        made = [*carried, *(hint(s.nbytes) for s in call.stacks)]
        given = [*outputs[: len(carried)], *(n * steps for n in outputs[len(carried) :])]
        if (
            not steps
            or whole != wanted
            or made != given
            or ends != [n for n in carried for _ in "12"]
        ):
            raise ProgramTextError("the buffers of a loop are not those of its body")
        first = call.body.inputs[len(call.consts)] if call.carried else None
        if call.tested and first != Type((), DType.BOOL):
            raise ProgramTextError("the first value that a tested loop carries is a bool")
        return call

    def _carried(self, facts: Any) -> CarriedValue:
        begin, end, other = _items(facts, 3, "a carried value")
        return CarriedValue(self._ref(begin), self._ref(end), self._ref(other))

    def _ref(self, facts: Any) -> BufferRef:
        kind, index, offset, nbytes = _items(facts, 4, "a buffer")
        ref = BufferRef(
            _one_of(_BUFFERS, kind, "a buffer's kind"), _size(index), _size(offset), _size(nbytes)
        )
        known, end = self._nbytes[ref.kind], hint(ref.offset_nbytes) + hint(ref.nbytes)
        if ref.index >= len(known) or end > hint(known[ref.index]):
            raise ProgramTextError(f"there is no {ref}")
        return ref

    def _memory(self, ref: BufferRef) -> tuple[str, int]:
        """What a buffer is: an output that updates an input is that input."""
        if ref.kind == "output" and ref.index in self._updated:
            return "input", self._updated[ref.index]
        return ref.kind, ref.index
