"""Texts of programs: what does not parse is refused by line. Flat programs hold what is said."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.values import CollectiveKind as Kind
from stack.comm.plan.check import check
from stack.comm.plan.error import PlanError
from stack.comm.plan.flat import FIELDS, OPS, PLACES, flatten
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import build
from stack.comm.plan.program import ChunkPlace, Op
from stack.comm.plan.text import load_program, parse_program
from tests.comm.plan.faults import CHAIN, SWAP, TWO

WRONG = [
    ("kind: broadcast", "kind: wave", "kind is one of all-reduce"),
    ("size: 2", "size: two", "size is a number, not 'two'"),
    ("size: 2", "size: 3", "a program of size 3 has as many ranks, not 2"),
    ("pieces: 2\n", "", "the text does not say 'pieces: ...'"),
    ("pieces: 2", "pieces: 2\npieces: 2", "line 6: expected one each of"),
    ("pieces: 2", "colour: 2", "line 5: expected one each of"),
    ("pieces: 2", "pieces: 2\nin-place: maybe", "in-place is yes or no, not 'maybe'"),
    ("rank 1:", "rank 2:", "line 10: rank 1 comes here, not rank 2"),
    ("1 send 1 in[1]", "7 send 1 in[1]", "line 8: step 1 comes here"),
    ("1 send 1 in[1]", "1 throw 1 in[1]", "line 8: a step is one of send"),
    ("1 send 1 in[1]", "1 send in[1]", "line 8: the peer is a number, not 'in[1]'"),
    ("1 send 1 in[1]", "1 send 1 inn[1]", "line 8: expected chunks such as"),
    ("1 send 1 in[1]", "1 send 1 in[2:1]", "line 8: in[2:1] has no chunk"),
    ("1 send 1 in[1]", "1 send 1 in[1] in[0]", "line 8: send has the operands src"),
    ("2 copy out[0:2] in[0:2]", "2 copy out[0:2]", "line 9: copy has the operands dst, src"),
    ("2 copy out[0:2] in[0:2]", "2", "line 9: a step is one of"),
    ("2 copy out[0:2] in[0:2]", "2 copy out[0] in[0] after x", "after is a number, not 'x'"),
]


@pytest.mark.parametrize(("old", "new", "reason"), WRONG)
def test_a_wrong_text_is_refused_by_line(old, new, reason):
    assert TWO.count(old) == 1
    with pytest.raises(PlanError) as caught:
        parse_program(TWO.replace(old, new))
    assert reason in str(caught.value)


def test_a_file_is_loaded_and_named_in_what_is_wrong(tmp_path):
    path = tmp_path / "mine.plan"
    path.write_text("# by hand\n" + TWO.replace("0 recv 0 out[0]", "0 recv 0 out[0] # first"))
    assert load_program(path) == parse_program(TWO)
    path.write_text("name: x\nnonsense\n")
    with pytest.raises(PlanError, match=r"mine\.plan: line 2: expected one each of"):
        load_program(path)


def rows(program, rank, lengths):
    flat = flatten(program, rank, lengths)
    assert flat.steps.dtype == flat.after.dtype == "int64"
    assert flat.steps.flags.c_contiguous
    return [dict(zip(FIELDS, row, strict=True)) for row in flat.steps.tolist()], flat


def test_a_flat_program_has_elements_for_chunks():
    """All-gather of 3, 0 and 2 elements, by a ring: rank 0 gets rank 2's and then rank 1's."""
    program = build("ring", Request(Kind.ALL_GATHER, 3))
    steps, flat = rows(program, 0, (3, 0, 2))
    assert flat.places == (3, 5, 0)
    receives = [s for s in steps if OPS[s["op"]] is Op.RECV]
    assert [(s["peer"], s["message"], s["dst"], s["count"]) for s in receives] == [
        (2, 0, 3, 2),
        (2, 1, 3, 0),
    ]
    assert {PLACES[s["dst_place"]] for s in receives} == {ChunkPlace.OUTPUT}
    last = steps[-2]
    waits = flat.after[last["after_start"] : last["after_stop"]].tolist()
    assert program.steps[0][-2].after == tuple(waits)
    assert len(waits) == 1


def test_a_flat_program_says_which_messages_are_wide():
    """Rank 1 of the chain sends what lies in scratch memory, rank 0 what it contributes."""
    program = parse_program(CHAIN)
    flags = [(s["message"], s["wide"]) for r in (0, 1, 2) for s in rows(program, r, (4,))[0]]
    assert flags == [(0, 0), (0, 0), (0, 1), (0, 1)]
    assert [s["final"] for s in rows(program, 2, (4,))[0]] == [1]


def test_uneven_pieces_are_longest_first():
    program = build("ring", Request(Kind.ALL_REDUCE, 4))
    first = rows(program, 0, (6,))[0]
    assert sorted({(s["src"], s["count"]) for s in first if OPS[s["op"]] is Op.SEND}) == [
        (0, 2),
        (2, 2),
        (4, 1),
        (5, 1),
    ]


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.sampled_from([TWO, CHAIN, SWAP]), st.data())
def test_any_text_is_a_program_or_is_refused(text, data):
    """Characters that were lost, doubled or replaced bring forth no other error."""
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(
            st.sampled_from(["", "9", "-1", ":", "[", "]", " ", "\n", "\0", "in", "after"])
        )
        text = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    with suppress(PlanError):
        check(parse_program(text))


def test_more_blocks_than_a_check_can_hold_are_refused():
    with pytest.raises(PlanError, match="there are 99999999999 blocks; a program may have 1048576"):
        check(parse_program(TWO.replace("pieces: 2", "pieces: 99999999999")))


@pytest.mark.parametrize(
    ("what", "by"),
    [
        ("pieces: 2", "pieces: {}"),
        ("size: 2", "size: {}"),
        ("rank 1:", "rank {}:"),
        ("rank 1:", "rank 1, scratch {}:"),
        ("send 1", "send {}"),
        ("in[1]", "in[{}]"),
        ("in[1]", "in[1:{}]"),
        ("recv 0 out[1]", "recv 0 out[1] after {}"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused_by_line(what, by):
    assert what in TWO
    for number in ("9" * 5000, "1" + "0" * 18):
        with pytest.raises(PlanError, match="a number of at most 18 digits, not "):
            parse_program(TWO.replace(what, by.format(number)))


def test_bytes_that_are_no_text_are_refused_by_line(tmp_path):
    path = tmp_path / "mine.plan"
    path.write_bytes(b"name: x\n\xff\xfe\n")
    with pytest.raises(PlanError, match=r"mine\.plan: line 2: expected one each of"):
        load_program(path)
