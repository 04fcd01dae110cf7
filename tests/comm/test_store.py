"""The store between threads and processes: it answers, breaks, comes back and refuses."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.errors import DeadlineExceeded, InvalidCall
from hal.net.handshake import MAGIC
from stack.comm.store import Change, Store, StoreError, StoreServer
from stack.comm.store.wire import GRANT, VALUE_NBYTES
from tests.comm.relay import Relay

TOKEN = "the token of this job"
LONG_S = 30
SHORT_S = 0.05


@pytest.fixture
def server():
    with StoreServer(TOKEN) as server:
        yield server


@pytest.fixture
def store(server):
    store = Store(f"127.0.0.1:{server.port}", TOKEN, LONG_S)
    yield store
    store.close()


@pytest.fixture
def relay(server):
    with Relay(server.port) as relay:
        yield relay


@pytest.fixture
def far(relay):
    """The store, over a network that can break."""
    store = Store(f"127.0.0.1:{relay.port}", TOKEN, LONG_S)
    yield store
    store.close()


def test_values_are_bytes_of_any_kind_up_to_a_limit(store):
    for value in (b"", b"\x00\n\xff", bytes(VALUE_NBYTES)):
        store.set("key", value)
        assert store.get("key") == value
    with pytest.raises(InvalidCall, match="at most 1048576 bytes, not 1048577"):
        store.set("key", bytes(VALUE_NBYTES + 1))
    with pytest.raises(InvalidCall, match=r"SET of .* bytes is too long: a value has at most 1048"):
        store.set("key", bytes(8 << 20))
    with pytest.raises(InvalidCall, match="WAIT names 1025 keys; 1 to 1024 are allowed"):
        store.wait(["key"] * 1025)
    assert store.get("key") == bytes(VALUE_NBYTES)


def test_every_call(store):
    assert store.find("k") is None
    assert store.compare_set("k", b"x", b"y") is None
    assert store.compare_set("k", None, b"x") == b"x"
    assert store.compare_set("k", b"x", b"y") == b"y"
    assert store.compare_set("k", b"x", b"z") == b"y"
    assert [store.add("n", amount) for amount in (5, -7, 1 << 40)] == [5, -2, (1 << 40) - 2]
    assert store.get("n") == str((1 << 40) - 2).encode()
    assert store.delete("k")
    assert not store.delete("k")
    with pytest.raises(InvalidCall, match="64 bits"):
        store.add("n", 1 << 63)


def test_prefixes_are_parts_of_the_key(store):
    inner = store.under("group/").under("0/")
    inner.set("rank", b"1")
    assert store.get("group/0/rank") == b"1"
    with inner.watch("") as watch:
        assert watch.next(LONG_S) == Change("rank", b"1")


def test_a_get_waits_until_another_thread_sets(store):
    with ThreadPoolExecutor(8) as threads:
        got = [threads.submit(store.get, f"k{i}") for i in range(6)]
        all_there = threads.submit(store.wait, [f"k{i}" for i in range(6)])
        for i in range(6):
            assert not all_there.done()
            store.set(f"k{i}", b"%d" % i)
        assert [one.result(LONG_S) for one in got] == [b"%d" % i for i in range(6)]
        all_there.result(LONG_S)


def test_threads_count_without_losing_one(store):
    def count(_):
        for _ in range(50):
            store.add("n")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4), timeout=LONG_S))
    assert store.add("n", 0) == 200


def test_what_nobody_sets_is_named_at_the_deadline(store):
    text = "nobody has set 'group/never' within 0.05 s; the store at 127.0.0.1:.* is there"
    store.add("connected")
    with pytest.raises(DeadlineExceeded, match=text):
        store.under("group/").get("never", SHORT_S)
    store.add("connected")
    with pytest.raises(DeadlineExceeded, match=r"not all of \['never', 'ever'\] were set"):
        store.wait(["never", "ever"], SHORT_S)
    store.set("never", b"late")
    assert store.get("never") == b"late"


def test_a_store_that_is_not_there_is_named_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = Store(f"127.0.0.1:{port}", TOKEN, SHORT_S)
    with pytest.raises(DeadlineExceeded, match=f"{port} cannot be reached: .*refused"):
        gone.get("k")


def test_another_jobs_token_is_refused(server, store):
    with pytest.raises(StoreError, match="refuses this process: wrong token"):
        Store(f"127.0.0.1:{server.port}", "another", LONG_S).get("k")
    store.set("k", b"v")
    assert store.get("k") == b"v"


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"hal-handshake/9\n" + bytes(32),
        MAGIC + bytes(32) + GRANT.pack(15.0) + b"not the proof".ljust(32),
    ],
)
def test_what_is_no_store_of_this_job_is_an_error(greeting):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONG_S)
        store = Store(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN, LONG_S)
        with ThreadPoolExecutor(1) as threads:
            got = threads.submit(store.get, "k")
            link, _ = listener.accept()
            with link:
                link.sendall(greeting)
                with pytest.raises(StoreError, match="is no store of this job"):
                    got.result(LONG_S)


def test_a_port_that_is_taken_is_an_error(server):
    with pytest.raises(InvalidCall, match=f"cannot listen at 127.0.0.1:{server.port}: .*in use"):
        StoreServer(TOKEN, port=server.port)


def test_calls_go_on_after_the_connection_broke(far, relay):
    far.set("k", b"v")
    relay.cut()
    assert far.get("k") == b"v"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(far.get, "later")
        far.wait(["k"])
        relay.cut()
        far.set("later", b"now")
        assert waiting.result(LONG_S) == b"now"


def test_a_change_whose_answer_was_lost_is_done_once(far, relay):
    far.set("warm", b"")
    for expected in range(1, 6):
        relay.swallow = 1
        assert far.add("n") == expected
        assert relay.swallow == 0


def test_a_network_that_is_silent_meets_the_deadline(far, relay):
    far.set("k", b"v")
    relay.holding = True
    with pytest.raises(DeadlineExceeded):
        far.get("k", SHORT_S)
    relay.holding = False
    assert far.get("k") == b"v"


def test_a_watch_tells_what_is_there_and_every_change_in_order(store):
    store.set("a/1", b"old")
    store.set("b/1", b"other")
    with store.watch("a/") as watch:
        store.set("a/2", b"new")
        store.set("a/1", b"newer")
        store.delete("a/2")
        store.set("b/2", b"other")
        assert [watch.next(LONG_S) for _ in range(4)] == [
            Change("a/1", b"old"),
            Change("a/2", b"new"),
            Change("a/1", b"newer"),
            Change("a/2", None, "deleted"),
        ]
        with pytest.raises(DeadlineExceeded, match=r"nothing under 'a/' changed within 0\.05 s"):
            watch.next(SHORT_S)


def test_a_watch_that_broke_tells_the_difference(far, store, relay):
    for key in ("stays", "goes", "changes"):
        store.set(f"m/{key}", b"1")
    with far.watch("m/") as watch:
        assert [watch.next(LONG_S).key for _ in range(3)] == ["m/changes", "m/goes", "m/stays"]
        relay.cut()
        store.set("m/changes", b"2")
        store.delete("m/goes")
        store.set("m/comes", b"1")
        got = {watch.next(LONG_S) for _ in range(3)}
        assert {(one.key, one.value) for one in got} == {
            ("m/changes", b"2"),
            ("m/goes", None),
            ("m/comes", b"1"),
        }


@pytest.mark.parametrize("count", [12, 24])
def test_a_watch_that_reads_late_knows_the_last_values(store, count):
    """12 MiB wait for it; with 24 MiB it is cut off, and looks anew."""
    with store.watch("m/") as watch:
        for i in range(count):
            store.set(f"m/{i % 3}", bytes([i]) * VALUE_NBYTES)
        store.set("m/last", b"")
        values = {}
        while "m/last" not in values:
            change = watch.next(LONG_S)
            values[change.key] = change.value
    del values["m/last"]
    assert values == {f"m/{i % 3}": bytes([i]) * VALUE_NBYTES for i in range(count - 3, count)}


def test_a_watch_is_closed_by_another_thread(store):
    watch = store.watch("m/")
    timer = threading.Timer(SHORT_S, watch.close)
    timer.start()
    with pytest.raises(StoreError, match="the watch of 'm/' is closed"):
        watch.next(LONG_S)
    timer.join(LONG_S)


def test_a_lease_is_there_until_it_is_released_and_only_once(store):
    with store.lease("rank/0", b"me") as lease:
        assert store.get("rank/0") == b"me"
        assert not lease.lost
        with pytest.raises(StoreError, match=r"'rank/0' is taken: b'me' has it"):
            store.lease("rank/0", b"you")
    assert lease.lost == "released"
    with store.watch("rank/") as watch:
        with store.lease("rank/0", b"you"):
            assert watch.next(LONG_S) == Change("rank/0", b"you")
        assert watch.next(LONG_S) == Change("rank/0", None, "its connection ended")


def test_what_a_process_holds_is_on_one_connection_and_goes_when_it_is_released(store):
    nobody = store.usage()
    first, second = store.under("a/").hold(), store.under("b/").hold()
    for hold in (first, second):
        hold.set("1", b"one", LONG_S)
        hold.set("2", b"two", LONG_S)
        with pytest.raises(StoreError, match="is taken: this process has it"):
            hold.set("1", b"again", LONG_S)
    assert (store.usage().keys, store.usage().clients) == (4, nobody.clients + 1)
    with pytest.raises(StoreError, match=r"'a/1' is taken: b'one' has it"):
        store.lease("a/1", b"another")
    assert first.there
    first.release()
    assert not first.there
    assert [store.find(key) for key in ("a/1", "a/2", "b/1", "b/2")] == [None, None, b"one", b"two"]
    first.set("1", b"new", LONG_S)
    assert store.get("a/1") == b"new"
    first.release()
    second.release()
    assert store.usage().keys == 0


def test_the_keys_of_a_prefix_are_cleared_unless_somebody_holds_one(store):
    part = store.under("group/")
    store.set("groups", b"")
    part.set("plain", b"")
    hold = part.hold()
    hold.set("held", b"", LONG_S)
    part.clear()
    assert store.usage().keys == 3
    hold.release()
    part.clear()
    assert (store.usage().keys, store.find("groups")) == (1, b"")
    with pytest.raises(InvalidCall, match="it would take every key away"):
        store.clear()


def test_a_hold_of_a_store_that_is_gone_is_let_go_without_an_error():
    with StoreServer(TOKEN) as server:
        store = Store(f"127.0.0.1:{server.port}", TOKEN, LONG_S)
        hold = store.hold()
        hold.set("key", b"", LONG_S)
    hold.release()
    assert not hold.there
    store.close()


def test_what_went_with_a_store_is_free_in_the_next_one_at_its_address():
    with StoreServer(TOKEN) as server:
        port = server.port
        store = Store(f"127.0.0.1:{port}", TOKEN, LONG_S)
        lost = store.hold()
        lost.set("key", b"lost", LONG_S)
    until_s = time.monotonic() + LONG_S
    while lost.there and time.monotonic() < until_s:
        time.sleep(0.01)
    with StoreServer(TOKEN, port=port) as server:
        hold = store.hold()
        hold.set("key", b"new", LONG_S)
        lost.release()  # lets nothing go of what another holds
        assert (server.value("key"), hold.there) == (b"new", True)
        with pytest.raises(StoreError, match="is taken: this process has it"):
            store.hold().set("key", b"", LONG_S)
        hold.release()
        assert server.value("key") is None
        store.close()


HOLDER = """
import os, sys, time
from stack.comm.store import Store
store = Store(sys.argv[1], sys.argv[2], 30)
lease = store.lease("rank/0", b"here")
if sys.argv[3] == "fork" and not os.fork():
    time.sleep(30)
    os._exit(0)
time.sleep(30)
"""


def holder(server, how):
    command = [sys.executable, "-c", HOLDER, f"127.0.0.1:{server.port}", TOKEN, how]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_the_end_of_a_process_is_told_at_once_though_a_child_of_it_lives(server, store, how):
    with store.watch("rank/") as watch, holder(server, how) as process:
        try:
            assert watch.next(LONG_S) == Change("rank/0", b"here")
            process.kill()
            assert watch.next(LONG_S) == Change("rank/0", None, "its connection ended")
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_stopped_loses_its_lease():
    with StoreServer(TOKEN, lease_s=0.5) as server:
        store = Store(f"127.0.0.1:{server.port}", TOKEN, LONG_S)
        with store.watch("rank/") as watch, holder(server, "alone") as process:
            try:
                assert watch.next(LONG_S).value == b"here"
                process.send_signal(signal.SIGSTOP)
                assert watch.next(LONG_S).why == "it gave no sign of life for 0.5 s"
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_is_cut_off_learns_that_its_lease_is_lost(relay, far):
    lease = far.lease("rank/0", b"me")
    relay.cut()
    assert lease.wait_lost(LONG_S) not in ("", "released")
    lease.release()


@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4))
def test_garbage_from_strangers_does_not_disturb_the_others(one_server, pieces):
    server, store = one_server
    with socket.create_connection(("127.0.0.1", server.port), LONG_S) as stranger:
        for piece in pieces:
            try:
                stranger.sendall(piece)
            except OSError:
                break
        store.set("k", b"v")
        assert store.get("k") == b"v"


@pytest.fixture(scope="module")
def one_server():
    with StoreServer(TOKEN) as server:
        store = Store(f"127.0.0.1:{server.port}", TOKEN, LONG_S)
        yield server, store
        store.close()
