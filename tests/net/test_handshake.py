"""The handshake: who knows the secret gets in, whatever strangers say or leave unsaid meanwhile."""

import os
import selectors
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hal.net import handshake
from hal.net.handshake import (
    MAGIC,
    STRANGERS,
    Acceptor,
    HandshakeError,
    Known,
    Refused,
    Terms,
    prove,
)
from hal.net.loop import turn

HERE = Terms(b"the secret of a job", b"here")
LONG_S = 30.0
PROOF_NBYTES = 96


class Door:
    """Listeners on both kinds of sockets, heard by a thread; `came` is who has got in."""

    def __init__(self, terms=HERE):
        self.came = []
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.local.bind(f"\0hal-test-{os.getpid()}-{id(self)}".encode())
        self.local.listen(16)
        self.addresses = {"tcp": self.tcp.getsockname(), "local": self.local.getsockname()}
        self.selector = selectors.DefaultSelector()
        self.acceptor = Acceptor(
            self.selector, [self.tcp, self.local], terms, self.wants, self.came.append, b"granted!"
        )
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while not self.ended.is_set():
            turn(self.selector, 0.01)
            self.acceptor.expire()

    def wants(self, claim):
        return not claim.startswith(b"unwanted")

    def call(self, kind="tcp"):
        if kind == "tcp":
            return socket.create_connection(self.addresses["tcp"], LONG_S)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(LONG_S)
        link.connect(self.addresses["local"])
        return link

    def close(self):
        self.ended.set()
        self.thread.join(LONG_S)
        self.acceptor.close()
        self.selector.close()
        for known in self.came:
            known.link.close()


@contextmanager
def door(terms=HERE):
    with closing(Door(terms)) as made:
        yield made


@pytest.fixture(scope="module")
def shared():
    with door() as made:
        yield made


def enters(place, kind="tcp", claim=b"somebody"):
    """Get in; gives grant, key and what the listener knows."""
    with place.call(kind) as link:
        grant, key = prove(link, HERE, claim, time.monotonic() + LONG_S)
        link.sendall(b"said at once")
        known = awaited(place.came)
        known.link.settimeout(LONG_S)
        assert known.link.recv(64) == b"said at once"
        known.link.close()
    return grant, key, known


def awaited(came):
    until_s = time.monotonic() + LONG_S
    while not came and time.monotonic() < until_s:
        time.sleep(0.001)
    return came.pop()


def heard(link, nbytes):
    """So many bytes, or fewer when the other side ends the connection."""
    link.settimeout(LONG_S)
    data = b""
    try:
        while len(data) < nbytes and (part := link.recv(nbytes - len(data))):
            data += part
    except ConnectionError:
        pass
    return data


def is_closed(link):
    link.settimeout(LONG_S)
    try:
        while link.recv(64):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("kind", ["tcp", "local"])
def test_both_ends_learn_the_same_new_key(shared, kind):
    grant, key, known = enters(shared, kind, b"rank 3")
    assert (grant, known.key) == (b"granted!", key)
    assert known.claim == b"rank 3".ljust(32, b"\0")
    assert len(key) == 32
    assert enters(shared, kind)[1] != key


@pytest.mark.parametrize(
    ("terms", "claim", "known"),
    [
        (Terms(b"another secret", b"here"), b"", False),
        (Terms(HERE.secret, b"elsewhere"), b"", False),
        (HERE, b"unwanted", True),
    ],
)
def test_who_does_not_know_the_secret_or_the_place_is_refused(shared, terms, claim, known):
    with shared.call() as link, pytest.raises(Refused) as refused:
        prove(link, terms, claim, time.monotonic() + LONG_S)
    assert refused.value.known is known
    enters(shared)


def test_a_listener_that_does_not_know_the_secret_is_told_apart():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(MAGIC + bytes(32) + b"granted!" + bytes(31) + b"x")
        with pytest.raises(HandshakeError, match="does not know the secret"):
            prove(ours, HERE, b"", time.monotonic() + LONG_S)


def proof_for(hello, terms, claim=b""):
    """What an honest caller answers to a listener's greeting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(hello)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            prove(ours, terms, claim, time.monotonic() + LONG_S)
        theirs.settimeout(LONG_S)
        return theirs.recv(PROOF_NBYTES)


def test_a_proof_is_good_for_one_listener_and_once(shared):
    with shared.call() as first, shared.call() as second:
        hello = heard(first, 48)
        heard(second, 48)
        proof = proof_for(hello, HERE)
        elsewhere = proof_for(hello, Terms(HERE.secret, b"another listener"))
        second.sendall(proof)  # made for the other connection
        assert heard(second, 64).startswith(b"secret\0\0")
        first.sendall(elsewhere)  # a caller of another listener, led to this one
        assert heard(first, 64).startswith(b"secret\0\0")
    with shared.call() as link:
        hello = heard(link, 48)
        link.sendall(proof_for(hello, HERE))
        welcome = heard(link, 40)
        awaited(shared.came).link.close()
    with shared.call() as link:  # what a listener has proved is no proof of a caller
        heard(link, 48)
        link.sendall(hello[16:] + bytes(32) + welcome[8:])
        assert heard(link, 64).startswith(b"secret\0\0")


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["tcp", "local"]),
    pieces=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4),
)
@example(kind="local", pieces=[b"5".ljust(256)])
@example(kind="local", pieces=[b"null".ljust(256)])
@example(kind="tcp", pieces=['[1,"life","é"]'.encode().ljust(256)])
@example(kind="tcp", pieces=[b"[" * 256])
def test_whatever_a_stranger_says_is_no_error(shared, kind, pieces):
    with shared.call(kind) as stranger:
        for piece in pieces:
            try:
                stranger.sendall(piece)
            except OSError:
                break
        enters(shared, kind)
    assert shared.thread.is_alive()


def test_a_caller_gets_in_past_more_silent_strangers_than_are_heard(shared):
    silent = [shared.call() for _ in range(STRANGERS + 10)]
    try:
        enters(shared)
        assert is_closed(silent[0])
    finally:
        for link in silent:
            link.close()


def test_a_stranger_has_one_deadline_whatever_it_says(monkeypatch):
    monkeypatch.setattr(handshake, "GREETING_S", 0.2)
    with door() as place, place.call() as silent, place.call() as slow:
        heard(slow, 48)
        sent = 0
        with suppress(ConnectionError):
            for _ in range(PROOF_NBYTES):
                slow.sendall(b"x")
                sent += 1
                time.sleep(0.05)
        assert sent < PROOF_NBYTES
        assert is_closed(silent)


def test_a_process_of_another_user_is_closed_before_a_byte_is_said(shared):
    if os.geteuid():
        pytest.skip("another user id needs root")
    said, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.settimeout(LONG_S)
            link.connect(shared.addresses["local"])
            os.write(told, b"heard %r" % heard(link, 48))
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(said, "rb") as words:
        assert words.read() == b"heard b''"
    until_s = time.monotonic() + LONG_S
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until_s:
        time.sleep(0.01)
    enters(shared, "local")


def test_known_hides_its_key_in_texts():
    assert "key" not in repr(Known(None, b"", b"key"))
    assert "secret" not in repr(HERE)
