"""A server that is killed: whatever a client was doing, it hears of the loss and why."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hal
from hal.core.errors import DeviceLost, FailureKind
from hal.core.values import (
    AllocOptions,
    FillCommand,
    GroupSpec,
    HealthState,
    KernelSource,
    Point,
)

WAIT_S = 60.0
NBYTES = 1 << 20
MANY = 10_000


class Client:
    """A session with a gate that nobody opens, and what is usual behind it."""

    def __init__(self):
        self.device = hal.open("remote:0")
        self.buffer = self.device.alloc(NBYTES, AllocOptions())
        self.timeline = self.device.create_timeline(False)
        self.gate = Point(self.device.create_timeline(True), 1)
        self.host = bytearray(NBYTES)

    def wait(self, point):
        return self.device.wait([point], WAIT_S, True)

    def fill(self, waits=()):
        return self.device.fill(self.buffer.region(), b"x", self.timeline, waits)

    def download(self, waits=()):
        return self.device.copy(self.host, self.buffer.region(), self.timeline, waits)

    def upload(self, waits=()):
        return self.device.copy(self.buffer.region(), bytes(NBYTES), self.timeline, waits)

    def host_call(self, killed):
        self.device.host_call(lambda: killed.wait(WAIT_S), self.timeline, ())
        return self.wait(self.fill())

    def record(self):
        return self.device.record([FillCommand(self.buffer.region(), b"x")])


def again(call):
    """Calls until something is raised."""
    for _ in range(MANY):
        call()


def load(client):
    source = KernelSource(client.device.info.formats[0], "no program", "f", ())
    try:
        client.device.load(source)
    except hal.core.errors.CompileError:
        return


# What each client does while the server dies; every one of them ends by the loss.
DURING = {
    "waits for a gated fill": lambda c, killed: c.wait(c.fill([c.gate])),
    "waits for a gated download": lambda c, killed: c.wait(c.download([c.gate])),
    "waits for a gated upload": lambda c, killed: c.wait(c.upload([c.gate])),
    "waits for its own signal": lambda c, killed: c.wait(c.gate),
    "waits for what nobody submitted": lambda c, killed: c.wait(Point(c.timeline, 9)),
    "is in a host call": lambda c, killed: c.host_call(killed),
    "uploads": lambda c, killed: again(lambda: c.wait(c.upload())),
    "uploads without waiting": lambda c, killed: again(c.upload),
    "downloads": lambda c, killed: again(lambda: c.wait(c.download())),
    "fills": lambda c, killed: again(c.fill),
    "allocates": lambda c, killed: again(lambda: c.device.free(c.device.alloc(64, AllocOptions()))),
    "loads": lambda c, killed: again(lambda: load(c)),
    "records": lambda c, killed: again(c.record),
    "polls": lambda c, killed: again(lambda: c.device.wait([c.gate], 0.0, True)),
    "makes timelines": lambda c, killed: again(lambda: c.device.create_timeline(True)),
    "counts": lambda c, killed: again(lambda: c.device.stats("")),
}


def replay(client, graph):
    return client.device.replay(graph, (), client.timeline, ())


def join(client):
    spec = GroupSpec("k", 0, ("remote:0", "remote:0"), WAIT_S)
    return client.device.create_group(spec)


# What a client does when the server is gone.
AFTER = {
    "fills": Client.fill,
    "uploads": Client.upload,
    "downloads": Client.download,
    "records": Client.record,
    "loads": load,
    "joins a group": join,
    "resets": lambda c: c.device.reset(),
}


@pytest.mark.slow
@pytest.mark.turns
def test_a_killed_server_is_a_lost_device_wherever_its_clients_are(serve):
    server = serve("cpu:0", HAL_CPU_DEVICES="2")
    killed = threading.Event()
    during = {name: Client() for name in DURING}
    after = {name: Client() for name in AFTER}
    freed, graph = Client(), after["fills"].record()
    with ThreadPoolExecutor(len(during)) as threads:
        ends = {name: threads.submit(DURING[name], during[name], killed) for name in DURING}
        threading.Event().wait(0.3)
        assert [name for name, end in ends.items() if end.done()] == []
        server.kill()
        server.wait(WAIT_S)
        killed.set()
        lost = {name: end.exception(WAIT_S) for name, end in ends.items()}
    for name, client in after.items():
        with pytest.raises(DeviceLost) as error:
            again(lambda c=client, name=name: AFTER[name](c))
        lost[f"{name} after it"] = error.value
    with pytest.raises(DeviceLost):
        replay(after["fills"], graph)
    for name, error in lost.items():
        assert isinstance(error, DeviceLost), (name, error)
        failure = error.failure
        assert (failure.kind, failure.device) == (FailureKind.DEVICE_LOST, "remote:0"), name
        assert "the connection to the server ended" in failure.message, name
    for client in (*during.values(), *after.values()):
        health = client.device.health()
        assert (health.state, health.cause) == (HealthState.LOST, client.device.health().cause)
        assert health.cause.kind is FailureKind.DEVICE_LOST
        client.device.close()
    freed.device.free(freed.buffer)
    freed.device.close()
    freed.device.close()


@pytest.mark.slow
@pytest.mark.turns
def test_a_reset_connects_to_a_new_server(serve):
    old = serve("cpu:0", tcp=True)
    client = Client()
    old.kill()
    old.wait(WAIT_S)
    with pytest.raises(DeviceLost):
        again(lambda: client.wait(client.fill()))
    with pytest.raises(DeviceLost):
        client.device.reset()
    client.device.close()


@pytest.mark.slow
@pytest.mark.turns
def test_a_client_that_goes_leaves_the_server_to_others(serve):
    serve("cpu:0")
    gone, stays = Client(), Client()
    gone.fill([gone.gate])
    gone.device.close()
    values = np.arange(NBYTES // 8, dtype=np.int64)
    stays.device.copy(stays.buffer.region(), memoryview(values), stays.timeline, ())
    assert stays.wait(stays.download())
    assert np.array_equal(np.frombuffer(stays.host, np.int64), values)
    stays.device.close()


CLOSES = 60


@pytest.mark.slow
@pytest.mark.turns
def test_a_close_brings_what_was_copied_and_leaves_no_thread(serve):
    serve("cpu:0")
    threads = {*threading.enumerate()}
    for turn in range(CLOSES):
        client = Client()
        hosts = [bytearray(NBYTES) for _ in range(4)]
        client.fill()
        for host in hosts:
            client.device.copy(host, client.buffer.region(), client.timeline, ())
        never = bytearray(NBYTES)
        own = client.device.create_timeline(False)
        client.device.copy(never, client.buffer.region(), own, [client.gate])
        client.device.close()
        assert [host.count(b"x") for host in hosts] == [NBYTES] * 4, turn
        assert not any(never)
        assert not {*threading.enumerate()} - threads
