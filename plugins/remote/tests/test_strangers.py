"""Who may connect, and what nobody on the way can do."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest
from hal_plugin_remote.address import places

import hal
from hal.core.errors import DeviceLost, PluginError
from hal.core.values import AllocOptions
from tests.draw import stream

WAIT_S = 60.0


def works():
    with contextlib.closing(hal.open("remote:0")) as device:
        timeline = device.create_timeline(False)
        buffer = device.alloc(8, AllocOptions())
        point = device.fill(buffer.region(), b"ab", timeline, ())
        host = bytearray(8)
        device.copy(host, buffer.region(), timeline, (point,))
        assert device.wait([type(point)(timeline, 2)], WAIT_S, True)
        return bytes(host) == b"abababab"


@pytest.mark.slow
@pytest.mark.turns
def test_another_secret_is_refused_in_words(serve, tmp_path, monkeypatch):
    serve("cpu:0", tcp=True)
    assert works()
    other = tmp_path / "other"
    other.write_bytes(b"another secret, as long as it")
    other.chmod(0o600)
    monkeypatch.setenv("HAL_REMOTE_SECRET", str(other))
    with pytest.raises(PluginError, match="refuses the secret of HAL_REMOTE_SECRET"):
        hal.open("remote:0")
    other.chmod(0o644)
    with pytest.raises(PluginError, match="chmod 600"):
        hal.open("remote:0")
    monkeypatch.delenv("HAL_REMOTE_SECRET")
    with pytest.raises(PluginError, match="set HAL_REMOTE_SECRET"):
        hal.open("remote:0")


NOISES = (
    b"",
    b"\0" * 4096,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 95,
    stream("noise").randbytes(1 << 16),
)


@pytest.mark.slow
@pytest.mark.turns
def test_strangers_harm_nobody(serve):
    serve("cpu:0", tcp=True)
    host, _, port = places()[0].address.rpartition(":")
    with contextlib.ExitStack() as strangers:
        for noise in NOISES:
            stranger = socket.create_connection((host, int(port)), WAIT_S)
            strangers.enter_context(stranger)
            with contextlib.suppress(OSError):
                stranger.sendall(noise)
        assert works()


class Path:
    """Stands between clients and a server: drops the first callers, and may change what passes of
    the others. They are many: a client that hears nothing for long asks whether the server lives.
    """

    def __init__(self, address, change, dropped=0):
        host, _, port = address.rpartition(":")
        self._there, self._change, self._dropped = (host, int(port)), change, dropped
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self._links = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            for _ in range(self._dropped):
                self._listener.accept()[0].close()
            while True:
                here, there = self._listener.accept()[0], socket.create_connection(self._there)
                self._links += (here, there)
                up = (here, there, self._change)
                down = (there, here, lambda data: data)
                for ends in (up, down):
                    threading.Thread(target=self._move, args=ends, daemon=True).start()

    def _move(self, source, sink, change):
        source.settimeout(WAIT_S)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(change(data))
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        for link in self._links:
            link.close()


@pytest.mark.slow
@pytest.mark.turns
def test_a_caller_that_is_dropped_for_strangers_comes_again(serve, monkeypatch):
    serve("cpu:0", tcp=True)
    path = Path(places()[0].address, lambda data: data, dropped=2)
    monkeypatch.setenv("HAL_REMOTE", f"{path.address}/cpu:0")
    with contextlib.closing(path):
        assert works()


class Flip:
    """Changes one bit of the first message that has `text`."""

    def __init__(self, text):
        self._text = text

    def __call__(self, data):
        at = data.find(self._text) if self._text else -1
        if at < 0:
            return data
        self._text = b""
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Twice:
    """Sends the first message that has `text` a second time."""

    def __init__(self, text):
        self._text = text

    def __call__(self, data):
        if not self._text or self._text not in data:
            return data
        self._text = b""
        return data + data


def ask_often(device, point):
    for _ in range(1000):
        device.wait([point], WAIT_S, True)
        device.stats("")


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("change", [Flip, Twice])
def test_what_somebody_on_the_way_changes_or_repeats_ends_the_connection(
    serve, monkeypatch, change
):
    serve("cpu:0", tcp=True)
    path = Path(places()[0].address, change(b"\xa4fill"))
    monkeypatch.setenv("HAL_REMOTE", f"{path.address}/cpu:0")
    with contextlib.closing(path), contextlib.closing(hal.open("remote:0")) as device:
        timeline = device.create_timeline(False)
        buffer = device.alloc(8, AllocOptions())
        point = device.fill(buffer.region(), b"ab", timeline, ())
        with pytest.raises(DeviceLost, match="the connection to the server ended"):
            ask_often(device, point)


AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(30)
    link.connect(sys.argv[1])
    try:
        print(link.recv(1).hex() or "nothing")
    except ConnectionResetError:
        print("nothing")
"""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_this_machine_is_not_heard(serve, tmp_path):
    serve("cpu:0")
    path = places()[0].address.removeprefix("unix:")
    os.chmod(path, 0o777)
    for folder in tmp_path.parents[:3]:
        os.chmod(folder, 0o755)
    os.chmod(tmp_path, 0o755)
    command = [sys.executable, "-c", AS_NOBODY, path]
    said = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert said.stdout.strip() == "nothing"
    assert works()


@pytest.mark.parametrize(
    "entry",
    ["cpu:0", "/cpu:0", "10.0.0.1/cpu:0", "10.0.0.1:70/cpu", "10.0.0.1:99999/cpu:0", "unix:/x/0"],
)
def test_an_entry_that_is_none_is_named(monkeypatch, entry):
    monkeypatch.setenv("HAL_REMOTE", entry)
    with pytest.raises(PluginError, match=r"address|HAL_REMOTE has"):
        places()


def test_a_server_that_is_not_there_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("HAL_REMOTE", f"127.0.0.1:{port}/cpu:0")
    with pytest.raises(PluginError, match=r"no server at .* hal serve cpu:0"):
        hal.open("remote:0")
