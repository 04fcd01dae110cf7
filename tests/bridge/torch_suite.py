"""PyTorch's own tests of process groups on backend hal and on gloo.

    python -m tests.bridge.torch_suite [--backends hal,gloo] [--ranks N] [NAME...]
    python -m tests.bridge.torch_suite [--backends hal,gloo] --gloo-tests FILE [NAME...]

The tests are those of `torch.testing._internal.distributed.distributed_test` in the wheel that is
installed, with three ranks by default (some need four); or those of all classes in FILE whose tests
have ranks, which is PyTorch's test/distributed/test_c10d_gloo.py and comes from its source package.
NAMEs choose among them. Prints what each test gave on each backend, and how many passed.

Most of the tests run only where the backend's name is gloo. So backend hal runs under that name:
the class that torch makes for "gloo" is replaced by one of backend hal.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.bridge.in_place_of_gloo import InPlaceOfGloo

WHEEL = "torch.testing._internal.distributed.distributed_test"
RANKS = 3
TEST_S = 60
"""Seconds that a test may take."""
DEADLINE_S = 3600.0
CONTEXT = torch.multiprocessing.get_context("fork")


def outcomes(backend, names=(), gloo_tests=None, log=subprocess.DEVNULL, ranks=RANKS):
    """What each test gave on a backend: its name, and "passed", "skipped", or how it failed. What
    tests and their ranks write goes to `log`."""
    with tempfile.TemporaryDirectory() as folder:
        place = {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "MASTER_ADDR": "127.0.0.1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_S),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        told = Path(folder, "told.json")
        command = [sys.executable, "-W", "ignore", "-m", "tests.bridge.torch_suite", *names]
        command += ["--run-on", backend, "--tell", str(told)]
        command += ["--gloo-tests", str(gloo_tests)] if gloo_tests else []
        subprocess.run(
            command, env={**os.environ, **place}, stdout=log, stderr=subprocess.STDOUT,
            timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        return json.loads(told.read_text())


def run_here(backend, names, gloo_tests):
    """As `outcomes`, in this process, whose environment tells the tests their place."""
    torch.set_num_threads(1)
    if backend == "hal":
        put_in_place_of_gloo()
    known = cases_of_file(gloo_tests) if gloo_tests else cases_of_wheel(backend)
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f"torch {torch.__version__} has no tests {', '.join(missing)}")
    found = {}
    for name in names or known:
        result = unittest.TestResult()
        known[name].run(result)  # of which the ranks are processes
        bad = result.errors + result.failures
        good = "skipped" if result.skipped else "passed"
        found[name] = bad[0][1] if bad else good
    return found


def put_in_place_of_gloo():
    """Let torch make a process group of backend hal wherever it makes one of gloo."""
    distributed_c10d.ProcessGroupGloo = dist.ProcessGroupGloo = InPlaceOfGloo


def cases_of_wheel(backend):
    """The wheel's tests, each of which forks its ranks: they need not import torch then."""
    tests = importlib.import_module(WHEEL)
    if backend == "hal":  # it has no events of its own in torch's profiler
        tests.PROFILING_SUPPORTED_BACKENDS.remove("gloo")
        tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.remove("gloo")

    class Cases(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(CONTEXT.Process)

    return {name: Cases(name) for name in dir(Cases) if name.startswith("test_")}


def cases_of_file(path):
    """The tests of gloo in PyTorch's sources as CLASS.TEST, each of which forks its ranks."""
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    found = {}
    for of in vars(module).values():
        if isinstance(of, type) and issubclass(of, module.MultiProcessTestCase):
            fork = lambda self: self._start_processes(CONTEXT.Process)
            cases = type(of.__name__, (of,), {"_spawn_processes": fork})
            names = [name for name in dir(of) if name.startswith("test_")]
            found |= {f"{of.__name__}.{name}": cases(name) for name in names}
    return found


def table(found):
    """The outcomes of backends side by side, and how many tests passed on each."""
    backends, names = list(found), list(next(iter(found.values())))
    short = lambda said: said if said in ("passed", "skipped") else "FAILED"
    lines = [
        f"{name:<90} " + " ".join(f"{b}: {short(found[b][name]):<8}" for b in backends)
        for name in names
    ]
    for b in backends:
        counts = Counter(short(said) for said in found[b].values())
        told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
        lines.append(f"{b}: {told} of {len(names)}")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--backends", default="hal,gloo")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--gloo-tests", type=Path)
    parser.add_argument("--errors", action="store_true", help="show how tests failed")
    parser.add_argument("--run-on", help=argparse.SUPPRESS)
    parser.add_argument("--tell", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run_on:
        given.tell.write_text(json.dumps(run_here(given.run_on, given.names, given.gloo_tests)))
        return
    log = sys.stderr if given.errors else subprocess.DEVNULL
    found = {
        b: outcomes(b, given.names, given.gloo_tests, log, given.ranks)
        for b in given.backends.split(",")
    }
    for backend, each in found.items() if given.errors else ():
        for name, said in each.items():
            if said not in ("passed", "skipped"):
                sys.stdout.write(f"--- {name} on {backend}\n{said}\n")
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
