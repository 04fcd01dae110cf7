"""Lines and sayings, cut in every way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.launch.job import Cause
from stack.launch.lines import LINE_NBYTES, Lines, Tail, last_exception
from stack.launch.report import report
from stack.launch.seats import Host, seats
from stack.launch.talk import GREETING, PIECE_NBYTES, Ear, TalkError, said


def pieces(data, whole):
    while whole:
        cut = data.draw(st.integers(1, len(whole)))
        yield whole[:cut]
        whole = whole[cut:]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), min_size=1), st.data())
def test_every_line_gets_its_prefix_and_keeps_its_bytes(lines, data):
    written = b"\n".join(lines)
    got = Lines(b"[1] ")
    shown = b"".join([got.add(piece) for piece in pieces(data, written)] + [got.end()])
    *whole, rest = lines
    assert shown == b"".join(b"[1] " + line + b"\n" for line in [*whole, *([rest] if rest else [])])


def test_a_line_without_end_is_cut():
    got = Lines(b"> ")
    assert got.add(b"x" * LINE_NBYTES) == b""
    assert got.add(b"x") == b"> " + b"x" * LINE_NBYTES + b"\n"
    assert got.end() == b"> x\n"
    assert got.end() == b""


@given(st.binary(max_size=100), st.data())
def test_a_tail_is_the_end(written, data):
    tail = Tail(nbytes=20)
    for piece in pieces(data, written):
        tail.add(piece)
    kept = written[-20:].decode(errors="backslashreplace").rstrip().splitlines()
    assert tail.lines(3) == (kept[1:] if len(written) >= 20 and len(kept) > 1 else kept)[-3:]


SAYINGS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["say", "rank"]), st.integers() | st.text(max_size=5)),
        st.binary(max_size=30),
    ),
    max_size=4,
)


@given(SAYINGS, st.binary(max_size=40).filter(lambda b: GREETING not in b), st.data())
def test_sayings_come_as_they_went_behind_a_greeting(sayings, before, data):
    sent = before + GREETING + b"".join(said(words, piece) for words, piece in sayings)
    ear = Ear(GREETING)
    got = [saying for piece in pieces(data, sent) for saying in ear.hear(piece)]
    nbytes = [{"nbytes": len(piece)} if piece else {} for _, piece in sayings]
    assert got == [
        ({**words, **n}, piece) for (words, piece), n in zip(sayings, nbytes, strict=True)
    ]


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        (b"not json\n", "is no JSON"),
        (b"[1]\n", "is no object"),
        (b'{"nbytes": -1}\n', "a line with -1 bytes"),
        (b'{"nbytes": 999999999}\n', "a line with 999999999 bytes"),
        (b'{"nbytes": "4"}\n', "a line with '4' bytes"),
    ],
)
def test_what_an_agent_never_says_is_refused(heard, text):
    with pytest.raises(TalkError, match=text):
        list(Ear().hear(heard))


def test_a_shell_that_talks_on_and_never_greets_is_refused():
    with pytest.raises(TalkError, match="does not lead to a greeting"):
        list(Ear(GREETING).hear(b"motd " * PIECE_NBYTES))


TRACE = """\
step 3
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    boom()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in <module>
    raise ValueError("loss is not finite")
ValueError: loss is not finite
rank ends
"""


def test_the_exception_that_ended_a_program_is_found():
    assert last_exception(TRACE.splitlines()) == "ValueError: loss is not finite"
    fatal = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1:", "  File x"]
    assert last_exception(fatal) == "Fatal Python error: Segmentation fault"
    assert last_exception(["all is well"]) == ""


def test_a_report_has_the_first_cause_on_top():
    hosts = (Host("a", 2, ("cpu:0",)), Host("b", 2, ("cpu:7",)))
    cause = Cause("rank 2 failed: exit status 1", 1, 2)
    text = report(cause, hosts, seats(hosts, 4), {0: -15, 2: 1, 3: -15}, TRACE.splitlines())
    lines = text.splitlines()
    assert lines[0] == "hal run: rank 2 failed: exit status 1: ValueError: loss is not finite"
    assert lines[1] == "  rank 2 ran on b, device cpu:7"
    assert lines[-2:] == ["  ranks 0, 3: killed by SIGTERM", "  rank 1: not known"]
    assert "    ValueError: loss is not finite" in lines


def test_a_report_of_a_job_that_never_ran_is_one_line():
    hosts = (Host("a", 1, ("cpu:0",)),)
    text = report(Cause("a is lost: no route", 1), hosts, seats(hosts, 1), {}, [])
    assert text == "hal run: a is lost: no route"


def test_many_ranks_that_ended_alike_are_one_short_line():
    hosts = (Host("a", 12, ("cpu:0",)),)
    statuses = dict.fromkeys(range(12), -15) | {1: 1, 4: 0, 5: 0}
    text = report(Cause("rank 1 failed", 1, 1), hosts, seats(hosts, 12), statuses, [])
    assert text.splitlines()[2:] == [
        "  ranks 0, 2, 3, 6-11: killed by SIGTERM",
        "  ranks 4, 5: exit status 0",
    ]
