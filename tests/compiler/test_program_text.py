"""Compiled graphs as text: they come back as they were, and any other text is refused."""

import json
import random
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, KernelSource, Param, ParamKind, ReduceKind
from hal.tile.node import Type
from hal.tile.size import Facts
from stack.comm.messages import Messages
from stack.compiler.program import (
    BufferRef,
    CarriedValue,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    KernelCall,
    LoopCall,
)
from stack.compiler.program_text import FORM, OtherSizes, ProgramTextError, from_text, to_text

SIZES = st.integers(0, 1 << 40)
TYPES = st.builds(
    Type, st.lists(st.integers(0, 1 << 16), max_size=3).map(tuple), st.sampled_from(DType)
)
WORDS = st.text(st.characters(), max_size=30)  # surrogates too
SCALARS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1), st.booleans(), st.floats(allow_nan=False)
)
PARAMS = st.builds(
    Param, WORDS, st.sampled_from(ParamKind), st.sampled_from(DType), st.booleans(), st.booleans()
)
OPTIONS = st.lists(st.tuples(WORDS, WORDS), max_size=2).map(tuple)
SOURCES = st.builds(
    KernelSource, WORDS, WORDS, WORDS, st.lists(PARAMS, max_size=4).map(tuple), OPTIONS
)


def nbytes(type):
    return type.size * type.dtype.nbytes


@st.composite
def graphs(draw):
    """Any graph of which every call refers to what there is."""
    inputs = tuple(draw(st.lists(TYPES, min_size=1, max_size=3)))
    updates = tuple((i, i) for i in range(draw(st.integers(0, len(inputs)))))
    outputs = inputs[: len(updates)] + tuple(draw(st.lists(TYPES, max_size=2)))
    temps = tuple(draw(st.lists(SIZES, max_size=3)))
    sizes = {"input": [*map(nbytes, inputs)], "output": [*map(nbytes, outputs)], "temp": temps}
    places = [(kind, i, n) for kind, all in sizes.items() for i, n in enumerate(all)]

    def ref(at=None):
        kind, index, size = draw(st.sampled_from(places)) if at is None else at
        offset = draw(st.integers(0, size))
        return BufferRef(kind, index, offset, draw(st.integers(0, size - offset)))

    def kernel():
        source = draw(SOURCES)
        grid = draw(st.tuples(SIZES, SIZES, SIZES))
        args = [ref() if p.kind is ParamKind.BUFFER else draw(SCALARS) for p in source.params]
        return KernelCall(source, grid, tuple(args))

    def copied():
        dst, src = ref(("input", 0, nbytes(inputs[0]))), BufferRef("temp", 0, 0, 0)
        size = min(dst.nbytes, temps[0]) if temps else 0
        src = replace(src, nbytes=size) if temps else BufferRef("input", 0, 0, 0)
        return CopyCall(replace(dst, nbytes=size), src)

    def exchange():
        whole = [replace(r, nbytes=r.nbytes // 4 * 4) for r in (ref(), ref(), ref())]
        kind, reduce = draw(st.sampled_from(CollectiveKind)), draw(st.sampled_from(ReduceKind))
        call = draw(
            st.sampled_from(
                (
                    Collective(kind, DType.F32, draw(SIZES), reduce, draw(SIZES), name=draw(WORDS)),
                    Messages(DType.F32, draw(SIZES), ((0, draw(SIZES)),), draw(WORDS)),
                )
            )
        )
        kept = tuple(whole[: draw(st.integers(0, 3))])
        return ExchangeCall(draw(WORDS), call, *whole[: draw(st.integers(2, 3))], kept=kept)

    made = [
        draw(st.sampled_from((kernel, copied, exchange)))() for _ in range(draw(st.integers(0, 4)))
    ]
    return CompiledGraph(inputs, outputs, updates, temps, tuple(made))


@given(graphs())
def test_a_graph_comes_back_as_it_was(graph):
    assert repr(from_text(to_text(graph))) == repr(graph)


F32 = DType.F32
SOURCE = KernelSource(
    "llvm-ir/1",
    "text of a program",
    "add",
    (
        Param("x", ParamKind.BUFFER, F32),
        Param("y", ParamKind.BUFFER, F32, writes=True),
        Param("n", ParamKind.SCALAR, DType.I64),
        Param("a", ParamKind.SCALAR, F32),
    ),
    (("lanes", "4"),),
)
GRAPH = CompiledGraph(
    (Type((4, 2), F32), Type((), DType.I32)),
    (Type((4, 2), F32), Type((4,), F32)),
    ((0, 0),),
    (64, 0),
    (
        KernelCall(
            SOURCE, (2, 1, 1), (BufferRef("input", 0, 0, 32), BufferRef("temp", 0, 16, 48), 7, -0.0)
        ),
        CopyCall(BufferRef("output", 0, 0, 16), BufferRef("input", 0, 16, 16)),
        ExchangeCall(
            "mesh",
            Collective(CollectiveKind.REDUCE, F32, 4, ReduceKind.MAX, 1, name="sum 1"),
            BufferRef("output", 1, 0, 16),
            BufferRef("temp", 0, 0, 16),
            BufferRef("temp", 0, 16, 16),
        ),
        ExchangeCall(
            "mesh",
            Messages(F32, 4, ((0, 1), (1, 0)), "on"),
            BufferRef("output", 1, 0, 16),
            BufferRef("temp", 0, 0, 16),
            kept=(BufferRef("temp", 0, 16, 16),),
        ),
        LoopCall(
            CompiledGraph(
                (Type((), DType.BOOL), Type((4,), F32)),
                (Type((), DType.BOOL), Type((2,), F32)),
                (),
                (),
                (CopyCall(BufferRef("output", 1, 0, 8), BufferRef("temp", 0, 40, 8)),),
            ),
            2,
            (),
            (CarriedValue(*(BufferRef("temp", 0, at, 1) for at in (0, 1, 2))),),
            (BufferRef("input", 0, 0, 32),),
            (BufferRef("output", 1, 0, 16),),
            tested=True,
        ),
    ),
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (-0.0, "-0.0"), (True, "True"), (1.0, "1.0")],
)
def test_a_number_keeps_its_type_and_sign(number, shown):
    call = GRAPH.calls[0]
    changed = replace(GRAPH, calls=(replace(call, args=(*call.args[:3], number)),))
    assert repr(from_text(to_text(changed)).calls[0].args[3]) == shown


def test_a_number_of_another_library_is_refused():
    call = GRAPH.calls[0]
    changed = replace(GRAPH, calls=(replace(call, args=(*call.args[:3], F32)),))
    with pytest.raises(ProgramTextError, match="DType"):
        to_text(changed)


def test_the_text_has_every_field():
    """Who adds a field to one of these, by which they differ, adds it to the text, and raises
    FORM."""
    assert FORM == 5
    known = {
        Param: "name kind dtype reads writes",
        KernelSource: "format text entry params options",
        BufferRef: "kind index offset_nbytes nbytes",
        KernelCall: "source grid args",
        CopyCall: "dst src",
        LoopCall: "body steps consts carried rows stacks reverse tested",
        CarriedValue: "begin end other",
        ExchangeCall: "group call dst src elements kept",
        Collective: "kind dtype count reduce root counts parts name",
        Messages: "dtype count pairs name",
        CompiledGraph: "inputs outputs updates temps calls",
        Type: "shape dtype",
    }
    for kind, names in known.items():
        assert " ".join(f.name for f in fields(kind) if f.compare) == names


HEAD, _, TEXTS = to_text(GRAPH).partition(b"\n")


def changed(*path, to):
    """The text of GRAPH with another value at that place of its head."""
    facts = json.loads(HEAD)
    inner = facts
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return json.dumps(facts).encode() + b"\n" + TEXTS


WRONG = {
    "no-json": b"{",
    "no-text": b"",
    "no-utf-8": b'"\xff"',
    "deep": b"[" * 100_000,
    "long-number": b'{"form":' + b"1" * 5000 + b"}",
    "list": b"[]",
    "head": HEAD,
    "shorter-texts": HEAD + b"\n" + TEXTS[:-1],
    "longer-texts": HEAD + b"\n" + TEXTS + b"x",
    "texts-no-utf-8": HEAD + b"\n" + TEXTS[:-1] + b"\xff",
    "older-form": changed("form", to=0),
    "newer-form": changed("form", to=FORM + 1),
    "true-form": changed("form", to=True),
    "no-calls": changed("calls", to=None),
    "more": changed("more", to=1),
    "types": changed("inputs", to=3),
    "type": changed("inputs", 0, to=["f32"]),
    "dtype": changed("inputs", 0, 0, to="f33"),
    "dtype-list": changed("inputs", 0, 0, to=["f32"]),
    "shape": changed("inputs", 0, 1, 0, to=-4),
    "large-shape": changed("outputs", 1, 1, to=[1 << 40, 1 << 40]),
    "update-of-nothing": changed("updates", 0, to=[0, 9]),
    "update-by-nothing": changed("updates", 0, to=[9, 0]),
    "update-of-another-type": changed("updates", 0, to=[1, 0]),
    "two-updates": changed("updates", to=[[0, 0], [0, 0]]),
    "temp": changed("temps", 0, to=-1),
    "float-temp": changed("temps", 0, to=64.0),
    "program-key": changed("programs", 0, "entry", to=None),
    "program-more": changed("programs", 0, "more", to=1),
    "program-nbytes": changed("programs", 0, "nbytes", to="17"),
    "program-nbytes-negative": changed("programs", 0, "nbytes", to=-1),
    "program-nbytes-huge": changed("programs", 0, "nbytes", to=1 << 62),
    "param-shorter": changed("programs", 0, "params", 0, to=["x", "buffer", "f32", True]),
    "param-longer": changed("programs", 0, "params", 0, to=["x", "buffer", "f32", True, True, 64]),
    "param-kind": changed("programs", 0, "params", 0, 1, to="pointer"),
    "param-flag": changed("programs", 0, "params", 0, 4, to=1),
    "option": changed("programs", 0, "options", 0, to=["lanes", 4]),
    "call": changed("calls", 0, 0, to="jump"),
    "call-nothing": changed("calls", 0, to=[]),
    "call-program": changed("calls", 0, 1, to=1),
    "negative-program": changed("calls", 0, 1, to=-1),
    "grid-of-two": changed("calls", 0, 2, to=[1, 1]),
    "negative-grid": changed("calls", 0, 2, 0, to=-1),
    "fewer-arguments": changed("calls", 0, 3, to=[]),
    "number-for-buffer": changed("calls", 0, 3, 0, to=3),
    "buffer-for-number": changed("calls", 0, 3, 2, to=["input", 0, 0, 32]),
    "word-for-number": changed("calls", 0, 3, 2, to="7"),
    "large-number": changed("calls", 0, 3, 2, to=1 << 64),
    "buffer-kind": changed("calls", 0, 3, 0, 0, to="global"),
    "buffer-index": changed("calls", 0, 3, 0, 1, to=2),
    "negative-index": changed("calls", 0, 3, 0, 1, to=-1),
    "offset": changed("calls", 0, 3, 0, 2, to=1),
    "negative-offset": changed("calls", 0, 3, 0, 2, to=-8),
    "nbytes": changed("calls", 0, 3, 0, 3, to=33),
    "copy-of-unequal": changed("calls", 1, 2, 3, to=8),
    "copy-onto-itself": changed("calls", 1, 2, 2, to=8),
    "copy-shorter": changed("calls", 1, to=["copy", ["input", 0, 0, 0]]),
    "reduction": changed("calls", 2, 2, 3, to="xor"),
    "collective": changed("calls", 2, 2, 0, to="gossip"),
    "collective-of-messages": changed("calls", 2, 2, 0, to="messages"),
    "negative-root": changed("calls", 2, 2, 4, to=-1),
    "collective-of-nothing": changed("calls", 2, 2, to=[]),
    "collective-of-no-list": changed("calls", 2, 2, to="messages"),
    "pair-of-three": changed("calls", 3, 2, 3, 0, to=[0, 1, 2]),
    "pair-of-words": changed("calls", 3, 2, 3, 0, to=["0", "1"]),
    "exchange-of-a-part": changed("calls", 2, 4, 3, to=15),
    "loop-of-no-steps": changed("calls", 4, 1, to=0),
    "loop-of-more-steps": changed("calls", 4, 1, to=3),
    "loop-carries-less": changed("calls", 4, 5, 0, 2, to=["temp", 0, 2, 0]),
    "loop-tests-no-bool": changed("calls", 4, 8, 0, 0, to="u8"),
    "loop-body-beyond": changed("calls", 4, 10, 0, 2, to=["temp", 0, 60, 8]),
    "loop-body-of-its-graph": changed("calls", 4, 10, 0, 2, to=["input", 2, 0, 8]),
    "exchange-keeps-what-is-not-there": changed("calls", 3, 3, 0, 1, to=9),
    "exchange-without-a-source": changed("calls", 3, to=["exchange", "mesh"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_text_is_refused(name):
    with pytest.raises(ProgramTextError):
        from_text(WRONG[name])


def sized():
    """Facts of two sizes with a condition, and a graph of them."""
    facts = Facts()
    n, m = facts.symbol("s0", 12, 2), facts.symbol("s1", 5)
    assert n > m, "by the hints"
    line = Type((n, m + 1), F32)
    whole, half = BufferRef("input", 0, 0, line.nbytes), BufferRef("temp", 0, 0, n // 2 * 4)
    calls = (
        replace(GRAPH.calls[0], grid=(n % 7 + 1, 1, 1), args=(whole, half, n * m, 1.5)),
        CopyCall(BufferRef("temp", 0, 0, n), BufferRef("temp", 0, n, n)),
    )
    return facts, CompiledGraph((line,), (line,), ((0, 0),), (n * 8,), calls)


def fresh(n, m):
    facts = Facts()
    facts.symbol("s0", n, 2), facts.symbol("s1", m)
    return facts


def test_sizes_that_are_data_come_back_with_their_conditions():
    facts, graph = sized()
    text = to_text(graph, facts.conditions)
    other = fresh(9, 8)
    found = from_text(text, other)
    assert other.conditions == facts.conditions
    assert to_text(found, other.conditions) == text
    line, grid, number = found.inputs[0], found.calls[0].grid, found.calls[0].args[2]
    sizes = (*line.shape, found.temps[0], grid[0], number)
    assert other.values(sizes)({"s0": 20, "s1": 3}) == (20, 4, 160, 7, 60)
    with pytest.raises(OtherSizes):
        from_text(text, fresh(5, 5))
    with pytest.raises(ProgramTextError, match="no data"):
        from_text(text)


QUESTIONS = ["s2 < 0", "s0 <", "s0(3)", "s0.__class__", "().a", "[s0]", "'s0'", "s0/0", 3, None]
SUMS = [{}, {"sum": []}, {"sum": [[["s2"], 1]]}, {"sum": [[["s0"], 0]]}, {"sum": [[[], 4]]}]
SUMS += [{"sum": [[["s0"], 1.5]]}, {"sum": [[["s0"]]]}, {"sum": 3}, {"sum": [[[["**", 1, 2]], 1]]}]
SUMS += [{"sum": [[["s0"], -1]]}, {"sum": [[["s0"], 1 << 62]]}, {"sum": [[["s0"], 1]], "more": 1}]


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_asks_nothing_of_sizes_is_no_condition(question):
    facts, graph = sized()
    head, _, texts = to_text(graph, facts.conditions).partition(b"\n")
    line = json.loads(head)
    line["conditions"][0][0] = question
    with pytest.raises(ProgramTextError):
        from_text(json.dumps(line).encode() + b"\n" + texts, fresh(9, 8))


@pytest.mark.parametrize("size", SUMS, ids=json.dumps)
def test_what_is_no_sum_of_known_symbols_is_no_size(size):
    facts, graph = sized()
    head, _, texts = to_text(graph, facts.conditions).partition(b"\n")
    line = json.loads(head)
    line["inputs"][0][1][0] = line["outputs"][0][1][0] = size
    with pytest.raises(ProgramTextError):
        from_text(json.dumps(line).encode() + b"\n" + texts, fresh(9, 8))


def mutated(text, rng):
    """The text with one to three of its bytes, numbers or parts changed."""
    for _ in range(rng.randint(1, 3)):
        at, end = sorted(rng.sample(range(len(text) + 1), 2))
        piece = rng.choice(
            [
                b"",
                bytes([rng.randrange(256)]),
                str(rng.choice([-1, 0, 1, 63, 1 << 31, 1 << 63, 10**30, 1e400])).encode(),
                text[at : min(end, at + 40)],
                rng.choice([b'"', b"[", b"]", b"{", b"}", b",", b"null", b"true", b'"temp"']),
            ]
        )
        text = text[:at] + piece + text[rng.choice([at, at + 1, min(end, at + 20)]) :]
    return text


def test_mutated_texts_are_refused_or_within_bounds():
    rng, whole, taken = random.Random(24), to_text(GRAPH), 0
    for _ in range(3000):
        try:
            graph = from_text(mutated(whole, rng))
        except ProgramTextError:
            continue
        taken += 1
        check(graph)
    assert taken > 20, "some mutants only change a name or a size"


def check(graph):
    """What the runtime takes for granted."""
    sizes = {
        "input": [nbytes(t) for t in graph.inputs],
        "output": [nbytes(t) for t in graph.outputs],
        "temp": graph.temps,
    }
    assert all(graph.outputs[o] == graph.inputs[i] for o, i in graph.updates)
    for call in graph.calls:
        used = vars_of(call)
        for ref in used:
            assert 0 <= ref.offset_nbytes <= ref.offset_nbytes + ref.nbytes
            assert ref.index >= 0
            assert ref.offset_nbytes + ref.nbytes <= sizes[ref.kind][ref.index]
        if isinstance(call, KernelCall):
            kinds = [isinstance(arg, BufferRef) for arg in call.args]
            assert kinds == [p.kind is ParamKind.BUFFER for p in call.source.params]
            assert len(call.grid) == 3
            assert min(call.grid) >= 0


def vars_of(call):
    if isinstance(call, LoopCall):
        return [*call.reads, *call.writes]
    if isinstance(call, KernelCall):
        return [arg for arg in call.args if isinstance(arg, BufferRef)]
    return [call.dst, call.src] if isinstance(call, CopyCall) else [call.dst, *call.sources]
