"""What the store answers, against a shadow model: a dictionary and a list of who waits."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stack.comm.store.table import COUNT, ENTRY_NBYTES, REMEMBERED, Table
from stack.comm.store.wire import KEY_NBYTES, VALUE_NBYTES, Code, Message

KEYS = st.sampled_from([b"a", b"ab", b"b", b"c/1", b"c/2"])
VALUES = st.sampled_from([b"", b"1", b"-7", b"text", b"x" * 40])
CLIENTS = st.integers(0, 3)
LIMIT = 900
DONE, CURRENT, CHANGED = Code.DONE, Code.CURRENT, Code.CHANGED


@dataclass
class Shadow:
    """What the store should know."""

    values: dict = field(default_factory=dict)
    owners: dict = field(default_factory=dict)
    waits: dict = field(default_factory=dict)  # client: (request, keys that it has not seen)
    watches: list = field(default_factory=list)  # (client, number, prefix)

    def fits(self, key, value):
        others = {k: v for k, v in self.values.items() if k != key}
        return nbytes({**others, key: value}) <= LIMIT

    def put(self, key, value):
        self.values[key] = value
        expected = self.changes(key, (key, value))
        for client, (request, unseen) in sorted(self.waits.items()):
            unseen.discard(key)
            if not unseen:
                del self.waits[client]
                fields = (value,) if request.code is Code.GET else ()
                expected.append((client, Message(DONE, request.number, fields)))
        return expected

    def drop(self, key, why):
        del self.values[key]
        self.owners.pop(key, None)
        return self.changes(key, (key, b"", why))

    def changes(self, key, fields):
        return [
            (client, Message(CHANGED, number, fields))
            for client, number, prefix in self.watches
            if key.startswith(prefix)
        ]


def nbytes(values):
    return sum(len(key) + len(value) + ENTRY_NBYTES for key, value in values.items())


def in_order(pairs):
    return sorted(pairs, key=lambda pair: (pair[0], pair[1].number, pair[1].code, pair[1].fields))


class StoreAgainstShadow(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = Table(LIMIT)
        self.shadow = Shadow()
        self.number = 0
        self.connections = {}
        for client in range(4):
            self.come(client)

    def come(self, client):
        self.number += 1
        self.connections[client] = self.number  # the table's number of the connection
        self.table.come(self.number, b"session %d" % client)

    def ask(self, client, code, *fields):
        """The request, and what the table answers: (client, message) in any order."""
        self.number += 1
        request = Message(code, self.number, fields)
        got = self.table.ask(self.connections[client], request)
        return request, self.named(got)

    def named(self, deliveries):
        clients = {number: client for client, number in self.connections.items()}
        return in_order((clients[one.client], one.message) for one in deliveries)

    def check(self, request, client, got, others, code=DONE, *fields):
        expected = [*others, (client, Message(code, request.number, fields))]
        assert got == in_order(expected)

    def idle(self, client):
        return client not in self.shadow.waits

    @rule(client=CLIENTS, key=KEYS, value=VALUES)
    def set(self, client, key, value):
        if self.idle(client):
            request, got = self.ask(client, Code.SET, key, value)
            if self.shadow.fits(key, value):
                self.check(request, client, got, self.shadow.put(key, value))
            else:
                assert [message.code for _, message in got] == [Code.FAILED]

    @rule(client=CLIENTS, key=KEYS)
    def find(self, client, key):
        if self.idle(client):
            request, got = self.ask(client, Code.FIND, key)
            there = [self.shadow.values[key]] if key in self.shadow.values else []
            self.check(request, client, got, [], DONE, *there)

    @rule(client=CLIENTS, keys=st.sets(KEYS, min_size=1))
    def wait(self, client, keys):
        self.look(client, Code.WAIT, tuple(keys), ())

    @rule(client=CLIENTS, key=KEYS)
    def get(self, client, key):
        self.look(client, Code.GET, (key,), (self.shadow.values.get(key),))

    def look(self, client, code, keys, answer):
        if not self.idle(client):
            return
        request, got = self.ask(client, code, *keys)
        unseen = {key for key in keys if key not in self.shadow.values}
        if unseen:
            assert not got
            assert self.table.busy(self.connections[client])
            self.shadow.waits[client] = (request, unseen)
        else:
            self.check(request, client, got, [], DONE, *answer)

    @rule(client=CLIENTS, key=KEYS, amount=st.integers(-3, 3))
    def add(self, client, key, amount):
        if not self.idle(client):
            return
        before = self.shadow.values.get(key, b"0")
        request, got = self.ask(client, Code.ADD, key, COUNT.pack(amount))
        if not before.lstrip(b"-").isdigit():
            assert [message.code for _, message in got] == [Code.INVALID]
        elif self.shadow.fits(key, total := b"%d" % (int(before) + amount)):
            others = self.shadow.put(key, total)
            self.check(request, client, got, others, DONE, COUNT.pack(int(total)))
        else:
            assert [message.code for _, message in got] == [Code.FAILED]

    @rule(client=CLIENTS, key=KEYS, expected=VALUES | st.none(), value=VALUES)
    def compare_set(self, client, key, expected, value):
        if not self.idle(client):
            return
        found = self.shadow.values.get(key)
        fields = (key, value) if expected is None else (key, value, expected)
        request, got = self.ask(client, Code.COMPARE_SET, *fields)
        if found != expected:
            there = [] if found is None else [found]
            self.check(request, client, got, [], CURRENT, *there)
        elif self.shadow.fits(key, value):
            self.check(request, client, got, self.shadow.put(key, value))
        else:
            assert [message.code for _, message in got] == [Code.FAILED]

    @rule(client=CLIENTS, key=KEYS)
    def delete(self, client, key):
        if self.idle(client):
            request, got = self.ask(client, Code.DELETE, key)
            there = key in self.shadow.values
            others = self.shadow.drop(key, b"deleted") if there else []
            self.check(request, client, got, others, DONE, b"1" if there else b"")

    @rule(client=CLIENTS, key=KEYS)
    def lease(self, client, key):
        if not self.idle(client):
            return
        request, got = self.ask(client, Code.LEASE, key, b"here")
        if key in self.shadow.values and self.shadow.owners.get(key) != client:
            assert [message.code for _, message in got] == [Code.FAILED]
        elif self.shadow.fits(key, b"here"):
            self.shadow.owners[key] = client
            self.check(request, client, got, self.shadow.put(key, b"here"))
        else:
            assert [message.code for _, message in got] == [Code.FAILED]

    @precondition(lambda self: len(self.shadow.watches) < 6)
    @rule(client=CLIENTS, prefix=st.sampled_from([b"", b"a", b"c/"]))
    def watch(self, client, prefix):
        if self.idle(client):
            request, got = self.ask(client, Code.WATCH, prefix)
            self.shadow.watches.append((client, request.number, prefix))
            there = [
                (client, Message(CHANGED, request.number, (key, value)))
                for key, value in self.shadow.values.items()
                if key.startswith(prefix)
            ]
            self.check(request, client, got, there)

    @rule(client=CLIENTS)
    def connection_ends(self, client):
        shadow = self.shadow
        shadow.waits.pop(client, None)
        shadow.watches = [watch for watch in shadow.watches if watch[0] != client]
        old = self.connections.pop(client)
        got = self.named(self.table.gone(old, "gone"))
        mine = sorted(key for key, owner in shadow.owners.items() if owner == client)
        expected = [one for key in mine for one in shadow.drop(key, b"gone")]
        assert got == in_order(expected)
        self.come(client)

    @invariant()
    def all_room_is_accounted_for(self):
        assert self.table.room == LIMIT - nbytes(self.shadow.values)


StoreAgainstShadow.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestStore = StoreAgainstShadow.TestCase


@pytest.fixture
def table():
    table = Table()
    table.come(1, b"one")
    table.come(2, b"two")
    return table


def answer(table, client, code, number, *fields):
    return table.ask(client, Message(code, number, fields))[-1].message


def test_a_change_that_is_asked_for_again_after_a_break_is_not_done_again(table):
    first = answer(table, 1, Code.ADD, 5, b"n", COUNT.pack(1))
    table.gone(1, "broke")
    table.come(3, b"one")
    assert answer(table, 3, Code.ADD, 5, b"n", COUNT.pack(1)) == first
    assert answer(table, 3, Code.ADD, 6, b"n", COUNT.pack(1)).fields == (COUNT.pack(2),)
    assert answer(table, 2, Code.ADD, 6, b"n", COUNT.pack(1)).fields == (COUNT.pack(3),)


def test_what_is_remembered_of_clients_that_went_is_bounded(table):
    for client in range(10, 10 + REMEMBERED + 5):
        table.come(client, b"%d" % client)
        answer(table, client, Code.SET, 1, b"k", b"v")
        table.gone(client, "went")
    assert table.remembered == REMEMBERED


def test_a_lease_goes_over_to_the_same_process_after_a_break(table):
    assert answer(table, 1, Code.LEASE, 1, b"rank/0", b"me").code is DONE
    table.come(3, b"one")
    assert answer(table, 3, Code.LEASE, 1, b"rank/0", b"me").code is DONE
    table.gone(1, "its connection ended")
    assert answer(table, 2, Code.FIND, 1, b"rank/0").fields == (b"me",)
    table.gone(3, "its connection ended")
    assert answer(table, 2, Code.FIND, 2, b"rank/0").fields == ()


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (Code.SET, (b"k",), b"SET has 1 fields, not 2"),
        (Code.SET, (b"", b"v"), b"a key has 1 to 1024 bytes, not 0"),
        (Code.SET, (b"k" * (KEY_NBYTES + 1), b"v"), b"not 1025"),
        (Code.SET, (b"k", bytes(VALUE_NBYTES + 1)), b"a value has at most 1048576 bytes"),
        (Code.ADD, (b"k", b"1"), b"an amount of 1 bytes is no number"),
        (Code.ADD, (b"big", COUNT.pack(1)), b"needs over 64 bits"),
        (Code.ADD, (b"text", COUNT.pack(1)), b"no whole number"),
        (Code.COMPARE_SET, (b"k",), b"COMPARE_SET has 1 fields"),
        (Code.WAIT, (), b"WAIT names 0 keys"),
        (Code.GET, (b"k", b"l"), b"GET names 2 keys"),
        (Code.GET, (b"k" * (KEY_NBYTES + 1),), b"a key has at most"),
        (Code.DONE, (), b"DONE is no request"),
    ],
)
def test_a_wrong_request_is_answered_and_changes_nothing(table, code, fields, text):
    answer(table, 1, Code.SET, 1, b"big", b"%d" % ((1 << 63) - 1))
    answer(table, 1, Code.SET, 2, b"text", b"1e3")
    room = table.room
    got = answer(table, 1, code, 3, *fields)
    assert got.code is Code.INVALID
    assert text in got.fields[0]
    assert table.room == room
