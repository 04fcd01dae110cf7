"""Hosts on one machine: network namespaces on a bridge. They need root and the command `ip`."""

import ctypes
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_LINK = "eth0"


def why_not():
    """Why there are no namespaces here; empty where there are."""
    if os.geteuid() or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    name = f"haltry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if made.returncode:
        return f"there are no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True, timeout=20)
    return ""


class Hosts:
    """Namespaces, by number; the bridge has `address`."""

    def __init__(self, count):
        self.count = count
        self._net = _free_net()
        self.address = f"{self._net}.1"
        self._prefix = f"hl{os.getpid() % 100_000}"

    def make(self):
        bridge = f"{self._prefix}b"
        _ip(f"link add {bridge} type bridge")
        _ip(f"addr add {self.address}/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        for host in range(self.count):
            name, port = self.namespace(host), self.port(host)
            _ip(f"netns add {name}")
            _ip(f"link add {port} type veth peer name {_LINK} netns {name}")
            _ip(f"link set {port} master {bridge} up")
            _ip(f"-n {name} addr add {self._net}.{10 + host}/24 dev {_LINK}")
            _ip(f"-n {name} link set {_LINK} up")
            _ip(f"-n {name} link set lo up")

    def namespace(self, host):
        return f"{self._prefix}n{host}"

    def port(self, host):
        """The bridge's end of the host's cable."""
        return f"{self._prefix}v{host}"

    def cut(self, host):
        _ip(f"link set {self.port(host)} down")

    def mend(self, host):
        _ip(f"link set {self.port(host)} up")

    def remove(self):
        for host in range(self.count):
            _ip(f"netns del {self.namespace(host)}", check=False)
            _ip(f"link del {self.port(host)}", check=False)
        _ip(f"link del {self._prefix}b", check=False)


@contextmanager
def hosts(count):
    """So many hosts, until the end."""
    made = Hosts(count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def enter(namespace):
    """Move this thread, and those that it starts, into a namespace."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"no way into the namespace {namespace}")


def _free_net():
    """The first three numbers of addresses that no other hosts on this machine have."""
    taken = _ip("-o -4 addr show")
    first = os.getpid()
    nets = (f"10.213.{(first + i) % 256}" for i in range(256))
    return next(net for net in nets if f" {net}." not in taken)


def _ip(words, check=True):
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, timeout=20)
    if check and done.returncode:
        raise RuntimeError(f"ip {words}: {done.stderr.strip()}")
    return done.stdout
