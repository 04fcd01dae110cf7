"""A rank of another host that meets as all do, and then says what the test wants."""

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from stack.comm.engine.library import lib
from stack.comm.engine.meeting import MeetingPlace, meet
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from tests.comm.engine.crew import BOOT, TOKEN, several_hosts
from tests.comm.engine.rfc8439 import authentication_tag

LIFE, PROGRAMS, MESSAGES = range(3)
_HEAD = struct.Struct("<QQ")
_CALL = struct.Struct("<qqQQiiii")
_FRAME = struct.Struct("<qq")
_BEAT = struct.Struct("<iiiiqq")
_FAILURE = struct.Struct("<iiii")


def call(sequence=0, count=0, digest=0, name=0, kind=0, dtype=0, reduce=0, root=-1):
    """A native call's bytes."""
    return _CALL.pack(sequence, count, digest, name, kind, dtype, reduce, root)


def message(number, count, data, tag=0, nbytes=None, dtype=lib.HE_F32, root=0, kind=lib.HE_SEND):
    """A message's frame: its head, its data, and what fills it up."""
    head = call(number, count, tag, 0, kind, dtype, 0, root)
    head += _FRAME.pack(number, len(data) if nbytes is None else nbytes)
    return head + data + bytes(-len(data) % 64)


def beat(failed=0, rank=1, told_by=1, detail=0, last=None, presence=0, kind=0, code=None):
    """What a rank says of itself."""
    last = call(-1) if last is None else last
    failure = _FAILURE.pack(failed if code is None else code, rank, told_by, detail)
    return _BEAT.pack(kind, presence, 0, failed, 0, 0) + last + failure + call() + call()


class Forger:
    """Rank 1, of another host than rank 0."""

    def __init__(self, met):
        links = met.connections
        self._links = [socket.socket(fileno=fd) for fd in (links.life[0], *links.data[:2])]
        self._keys = links.life_keys[0], *links.data_keys[:2]
        self._numbers = [0, 0, 0]
        self._hold = met.hold

    def sealed(self, lane, data, number=None):
        """A record as rank 1 sends it."""
        number = self._numbers[lane] if number is None else number
        self._numbers[lane] = number + 1
        head = _HEAD.pack(len(data), number)
        nonce = struct.pack("<IQ", 1, number)
        return head + data + authentication_tag(self._keys[lane], nonce, head + data)

    def say(self, lane, data):
        self.write(lane, self.sealed(lane, data))

    def write(self, lane, data):
        """Bytes as they are."""
        self._links[lane].settimeout(20)
        self._links[lane].sendall(data)

    def heard(self):
        """The failure that rank 0 told last, once it has told one."""
        link, text = self._links[LIFE], b""
        link.settimeout(20)
        nbytes = _HEAD.size + len(beat()) + 16
        while True:
            while len(text) < nbytes:
                part = link.recv(nbytes - len(text))
                assert part, "rank 0 went without a word"
                text += part
            said = text[_HEAD.size : _HEAD.size + len(beat())]
            if struct.unpack_from("<i", said, 12)[0]:
                return _FAILURE.unpack_from(said, _BEAT.size + _CALL.size)
            text = b""

    def close(self):
        for link in self._links:
            link.close()
        self._hold.release()


@contextmanager
def forged(deadline_s=20.0):
    """Rank 0 of a group of two hosts, and a forger in rank 1's place."""
    with StoreServer(TOKEN) as server, ThreadPoolExecutor(2) as pool, several_hosts():
        address = f"127.0.0.1:{server.port}"
        store = Store(address, TOKEN, 20.0)

        def join():
            BOOT.host.number = 0
            return Group.join(store, address, "forged", 0, 2, deadline_s)

        def forge():
            BOOT.host.number = 1
            met = meet(MeetingPlace(store, address, "forged"), 1, 2, deadline_s)
            os.close(met.segment)
            return Forger(met)

        joining, forging = pool.submit(join), pool.submit(forge)
        group, forger = joining.result(30), forging.result(30)
        forger.say(LIFE, beat())
        try:
            yield group, forger
        finally:
            forger.close()
            group.close()
            store.close()
