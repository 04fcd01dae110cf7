"""The store's messages survive any way of being cut, and what nobody said is told from them."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from hal.net.seal import Seals
from stack.comm.store.wire import Code, Message, WireError, nbytes_of, pack, take

KEY = bytes(range(32))
MESSAGES = st.builds(
    Message,
    st.sampled_from(Code),
    st.integers(0, (1 << 64) - 1),
    st.lists(st.binary(max_size=20), max_size=4).map(tuple),
)


def ends():
    return Seals(KEY, calling=True), Seals(KEY, calling=False)


def taken(inbox, seals):
    """The messages up to the first that nobody said."""
    got = []
    with contextlib.suppress(WireError):
        while (message := take(inbox, 1 << 10, seals)) is not None:
            got.append(message)
    return got


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_messages_come_as_they_went_however_the_bytes_are_cut(messages, data):
    ours, theirs = ends()
    packed = [pack(message, ours) for message in messages]
    assert [len(one) - 4 for one in packed] == [nbytes_of(message) for message in messages]
    sent, inbox, got = b"".join(packed), bytearray(), []
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        inbox += sent[:cut]
        sent = sent[cut:]
        got += taken(inbox, theirs)
    assert got == messages
    assert not inbox


@given(st.binary(max_size=64))
def test_garbage_is_no_message(data):
    assert taken(bytearray(data), ends()[1]) == []


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.data())
def test_what_is_changed_on_the_way_is_not_taken(messages, data):
    ours, theirs = ends()
    sent = bytearray(b"".join(pack(message, ours) for message in messages))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    got = taken(sent, theirs)
    assert len(got) < len(messages)
    assert got == messages[: len(got)]


@given(st.lists(MESSAGES, min_size=2, max_size=4, unique=True), st.data())
def test_what_is_repeated_dropped_moved_or_sent_back_is_not_taken(messages, data):
    ours, theirs = ends()
    sent = [pack(message, ours) for message in messages]
    other = data.draw(st.integers(1, len(sent) - 1))
    for wrong in ([sent[0], sent[0]], sent[1:], [sent[other], sent[0]]):
        got = taken(bytearray(b"".join(wrong)), ends()[1])
        assert got == (messages[:1] if wrong[0] is sent[0] else [])
    assert taken(bytearray(sent[0]), ours) == []
    assert taken(bytearray(sent[0]), Seals(bytes(32), calling=False)) == []
    assert taken(bytearray(b"".join(sent)), theirs) == messages


@given(MESSAGES, st.integers(0, 3))
def test_a_message_over_the_limit_is_refused_before_it_has_come(message, have):
    ours, theirs = ends()
    sent = pack(message, ours)
    inbox = bytearray(sent[: 4 + have])
    with contextlib.suppress(WireError):
        take(inbox, len(sent) - 5, theirs)
        raise AssertionError("it was not refused")
