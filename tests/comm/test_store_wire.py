"""The store's messages survive any way of being cut, and garbage is told from them."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from stack.comm.store.wire import Code, Message, WireError, pack, take

MESSAGES = st.builds(
    Message,
    st.sampled_from(Code),
    st.integers(0, (1 << 64) - 1),
    st.lists(st.binary(max_size=20), max_size=4).map(tuple),
)


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_messages_come_as_they_went_however_the_bytes_are_cut(messages, data):
    sent = b"".join(map(pack, messages))
    inbox, got = bytearray(), []
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        inbox += sent[:cut]
        sent = sent[cut:]
        while (message := take(inbox, 1 << 10)) is not None:
            got.append(message)
    assert got == messages
    assert not inbox


@given(st.binary(max_size=64))
def test_garbage_is_no_message_or_one_that_says_the_same_again(data):
    inbox = bytearray(data)
    with contextlib.suppress(WireError):
        while (message := take(inbox, 64)) is not None:
            assert data.find(pack(message)) >= 0


@given(MESSAGES, st.integers(0, 3))
def test_a_message_over_the_limit_is_refused_before_it_has_come(message, have):
    sent = pack(message)
    inbox = bytearray(sent[: 4 + have])
    with contextlib.suppress(WireError):
        take(inbox, len(sent) - 5)
        raise AssertionError("it was not refused")
