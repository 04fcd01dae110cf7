"""The end of a process, and its forks: every use of a device ends, with a value or in words."""

import sys

import pytest

from tests.draw import sample

pytestmark = [pytest.mark.slow, pytest.mark.turns]


def devices(what, *others):
    """The host's processor and one of the others, which is drawn: what a process does at its end
    is the same code for all, each of which takes seconds to compile for."""
    names = ["cpu:0", *sample(what, others, 1)]
    return [pytest.param(name, marks=pytest.mark.device(name)) for name in names]


EXIT = """
import atexit, sys, threading, time

def said(when, use):
    try:
        print(when, use(), flush=True)
    except Exception as error:
        print(when, type(error).__name__, error, flush=True)

class AtTheEnd:
    def __init__(self, when, use):
        self.when, self.use, self.said = when, use, said

    def __del__(self):
        self.said(self.when, self.use)

atexit.register(lambda: said("handler-before", lambda: x.sum().item()))
atexit.register(lambda: said("device-before", lambda: device.health().state.value))
import hal
import stack.framework as ht
from hal.core.values import AllocOptions, Point

name = sys.argv[1]
ht.set_default_device(name)
x = ht.ones(4) + 1
x.numpy()
device = hal.open(name)
timeline, gate = device.create_timeline(False), device.create_timeline(True)
buffer = device.alloc(64, AllocOptions())
device.fill(buffer.region(), b"x", timeline, (Point(gate, 1),))
atexit.register(lambda: said("handler-after", lambda: x.sum().item()))

def several():
    # No kernel was compiled for it before, and it takes more than one.
    return (x.cumsum(0) @ ht.ones(4, 5)).cumsum(0).tolist()

atexit.register(lambda: said("handler-new", several))

def fill_and_wait(device=device, timeline=device.create_timeline(False), region=buffer.region()):
    return device.wait([device.fill(region, b"y", timeline, ())], 30, True)

double = ht.jit(lambda x: x * 2)
y = double(x)
kept = [
    AtTheEnd("del-tensor", lambda x=x: x.sum().item()),
    AtTheEnd("del-new", lambda ht=ht: ht.ones(3).tolist()),
    AtTheEnd("del-jit", lambda double=double, x=x: double(x).tolist()),
    AtTheEnd("del-device", fill_and_wait),
    AtTheEnd("del-close", device.close),
]
threading.excepthook = str  # not a word

WORK = "z = ht.ones(64)\\nwhile True: z = z * 1.5; z.numpy()"
for _ in range(2):
    # With globals of their own: threads that never return would keep the objects below alive.
    threading.Thread(target=exec, args=(WORK, {"ht": ht}), daemon=True).start()
time.sleep(0.3)
for _ in range(8):
    y = double(y)
ht.realize(y * 3)
print("ends", flush=True)
"""


@pytest.mark.parametrize("name", devices("ends", "reference:0", "opencl:0", "sunway:0"))
def test_a_process_ends_whatever_still_uses_a_device(commands, name):
    """`communicate` has a deadline: a hang fails here."""
    done = commands.ended(commands.start(sys.executable, "-c", EXIT, name))
    said = dict(line.partition(" ")[::2] for line in done.out.splitlines())
    assert done.code == 0, done.err
    assert said.pop("handler-after") == "8.0"
    assert said.pop("handler-new") == str([20.0 * (i + 1) for i in range(5)])
    assert said.pop("ends") == ""
    assert said.pop("del-close") == "None", "close never raises"
    assert set(said) == {
        "handler-before", "device-before", "del-tensor", "del-new", "del-jit", "del-device",
    }  # fmt: skip
    for when, words in said.items():
        assert words.startswith(("InvalidCall ", "StaleHandle ")), (when, words)
        assert "ends" in words or "has ended" in words, (when, words)
        assert "exit handler" in words, (when, words)


FORK = """
import os, select, sys
import numpy as np
import stack.framework as ht
from stack.framework import nn, optim
name = sys.argv[1]
ht.set_default_device(name)
old = ht.ones(4) + 1
values = old.numpy()
pending, weight = old * 3, ht.ones(3, requires_grad=True)
ht.rand(2).numpy()
scaled = ht.jit(lambda x: x * 2)
with_weight = ht.jit(lambda x: x * weight)
for function in (scaled, with_weight):
    function(ht.ones(3)).numpy()

def trained():
    model = nn.Linear(3, 2)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(ht.ones(1, 3)).square().sum()
        loss.backward()
        optimizer.step()
    return np.isfinite(loss.item())

USES = {
    "new": lambda: (ht.ones(3) * 2).tolist(),
    "handed": lambda: (ht.tensor(values) * 2).tolist(),
    "old": lambda: old.tolist(),
    "pending": lambda: pending.tolist(),
    "mixed": lambda: (old + ht.ones(4)).tolist(),
    "new-again": lambda: (ht.ones(3) * 5).tolist(),
    "random": lambda: ht.rand(2).numpy().shape,
    "seeded": lambda: (ht.manual_seed(3), ht.rand(2).numpy().shape)[1],
    "jit": lambda: scaled(ht.ones(3)).tolist(),
    "jit-with-old": lambda: with_weight(ht.ones(3)).tolist(),
    "trained": trained,
}
child = os.fork()
if child == 0:
    for use, run in USES.items():
        try:
            print(use, run(), flush=True)
        except Exception as error:
            print(use, type(error).__name__, error, flush=True)
    sys.exit(0)
select.select([os.pidfd_open(child)], [], [], 100)
_, status = os.waitpid(child, os.WNOHANG)
print("parent", status, pending.tolist(), with_weight(ht.ones(3)).tolist(), flush=True)
"""


def forked(commands, name):
    done = commands.ended(commands.start(sys.executable, "-W", "ignore", "-c", FORK, name))
    assert (done.code, done.err) == (0, "")
    said = dict(line.partition(" ")[::2] for line in done.out.splitlines())
    assert said.pop("parent") == "0 [6.0, 6.0, 6.0, 6.0] [1.0, 1.0, 1.0]"
    return said


@pytest.mark.parametrize("name", devices("forks", "reference:0", "sunway:0"))
def test_a_forked_process_opens_its_devices_anew(commands, name):
    """It computes with what it makes, and is told of what stayed in its parent."""
    said = forked(commands, name)
    out_of_reach = [said.pop(use) for use in ("old", "pending", "mixed", "random", "jit-with-old")]
    assert said == {
        "new": "[2.0, 2.0, 2.0]",
        "handed": "[4.0, 4.0, 4.0, 4.0]",
        "new-again": "[5.0, 5.0, 5.0]",
        "seeded": "(2,)",
        "jit": "[2.0, 2.0, 2.0]",
        "trained": "True",
    }
    for words in out_of_reach:
        assert words.startswith("StaleHandle <Array "), words
        assert f"{name} was opened by the parent of this process" in words
        assert "numpy arrays that were made before the fork" in words


@pytest.mark.device("opencl:0")
def test_a_driver_that_does_not_survive_a_fork_is_refused_at_once(commands):
    said = forked(commands, "opencl:0")
    for use in ("new", "handed", "jit"):
        assert said[use].startswith("PluginError "), said[use]
        assert "multiprocessing.get_context('spawn')" in said[use]
