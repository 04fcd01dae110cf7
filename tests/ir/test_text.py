"""Graphs print to text that parses back to the same nodes; other text is refused by line."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.ir.simplify import simplify
from stack.ir.text import parse_graph, print_graph
from stack.ops.error import GraphError
from tests.ir.graphs import graphs

GOLDEN = Path(__file__).parent.parent / "golden" / "ir"


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_parsing_a_printed_graph_gives_the_same_nodes(graph):
    assert parse_graph(print_graph(graph[0])) == graph[0]


def every_form():
    """Attributes of every kind, and values that are hard to print."""
    x = g.input(0, Type((2, 3), DType.F32))
    index = g.input(7, Type((), DType.I32))
    odd = [float("inf"), -float("inf"), float("nan"), -0.0, 1e-30, 3]
    consts = [g.const(v, DType.F32) for v in odd] + [g.const(True, DType.BOOL)]
    return (
        *consts,
        g.pad(g.concat([x, x], 1), (1, 0), (0, 2), -float("inf")),
        g.scan("sum", g.reduce("max", x, (0, 1)), 0),
        g.gather(g.flip(g.slice(x, (0, 1), (2, 3), (1, 2)), 0), index, 1),
        g.where(g.lt(x, g.exp(x)), x, g.full_like(x, -1)),
        g.matmul(g.cast(x, DType.BF16), g.transpose(g.cast(x, DType.BF16)), DType.F32),
        g.reshape(g.arange(6, DType.U8), (2, 3)),
        g.input(3, Type((0, 4), DType.F64)),
    )


def attention():
    """One causal attention head with its mask."""
    q, k, v = (g.input(i, Type((2, 4, 8), DType.F32)) for i in range(3))
    scores = g.matmul(q, g.transpose(k))
    scores = g.mul(scores, g.full_like(scores, 8**-0.5))
    row, column = (g.broadcast(g.reshape(g.arange(4), s), (2, 4, 4)) for s in ((4, 1), (1, 4)))
    scores = g.where(g.le(column, row), scores, g.full_like(scores, -float("inf")))
    top = g.expand(g.reduce("max", scores, -1), scores.shape)
    weights = g.exp(g.sub(scores, top))
    total = g.expand(g.reduce("sum", weights, -1), scores.shape)
    return (g.matmul(g.div(weights, total), v),)


@pytest.mark.parametrize("make", [every_form, attention], ids=lambda f: f.__name__)
def test_text_is_as_agreed(make):
    text = (GOLDEN / f"{make.__name__}.txt").read_text()
    assert print_graph(make()) == text
    assert parse_graph(text) == make()


def test_simplified_text_is_as_agreed():
    text = (GOLDEN / "simplified.txt").read_text()
    before, after = text.split("# becomes\n")
    assert print_graph(simplify(parse_graph(before))) == after


def test_comments_and_empty_lines_say_nothing():
    graph = parse_graph("# one\n\n  %0 = input(slot=0): f32\nreturn %0, %0\n")
    assert graph == (g.input(0, Type((), DType.F32)),) * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%0 = input(slot=0): f32", "line 1: the graph ends without a return"),
        ("return %0", "line 1: %0 is not defined above"),
        ("hello\nreturn", "line 1: expected"),
        ("%0 = input(slot=0): f99\nreturn %0", "line 1: f99 is not an element type; known are f64"),
        ("%0 = input(slot=[): f32\nreturn %0", "line 1: '\\[' is not an attribute's value"),
        ("%0 = input(slot=0): f32\n%1 = frob(%0): f32\nreturn %1", "line 2: there is no graph op"),
        ("%0 = input(slot=0): f32\n%1 = neg(%0): f32[2]\nreturn %1", "line 2: neg is of type f32,"),
        ("%0 = input(slot=0): i32\n%1 = exp(%0): i32\nreturn %1", r"line 2: exp\(i32\): takes"),
    ],
)
def test_text_that_is_no_graph_is_refused_by_line(text, message):
    with pytest.raises(GraphError, match=f"^{message}"):
        parse_graph(text)
