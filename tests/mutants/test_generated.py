"""Generated faults are killed: variants of twenty that an outsider planted, and a blind sample.

Each is tried on the cases that exercise its place; `make mutants` tries the whole population.
"""

import copy
import itertools
import random
import secrets
import sys
import time

import pytest

from hal.core.errors import DeviceLost, Failure, FailureKind, Scope
from hal_conformance.catalog import catalog
from hal_conformance.judge import Outcome, judge
from tests.draw import stream
from tests.mutants.generated import ALL, KILLS, kill, page, read, setting_of, wrong
from tests.mutants.population import Generated, around
from tests.mutants.table import PAGE

FRESH = (
    "swallowed machine hang always on reference",
    "swallowed machine run always on reference",
    "dropped copy.waits beyond 64 on cpu",
    "dropped host_call.waits beyond 1000 on reference",
    "ignored fill.waits above 8 MiB on cpu",
    "ignored launch.waits above 1000 instances on reference",
    "stale load by first 200 characters on cpu",
    "sign dot i8 on reference",
    "sign reduce u16 on reference",
    "wrapped scatter 2^15 on reference",
    "wrapped launch grid y 2^15 on cpu",
    "dropped dot beyond k=128 on reference",
    "narrow reduce beyond 1000 on reference",
    "dropped record copy beyond 128 on cpu",
    "dropped copy bytes above 16 MiB on reference",
    "dropped alloc zero above 32 MiB on cpu",
    "dropped fill bytes above 8 MiB on cpu",
    "wrapped signal value 2^31 on cpu",
    "dropped wait points beyond 500 on cpu",
    "leaked launch 4 KiB a call on cpu",
    "reordered reduce by the offset of its data on reference",
    "range tanh f64 beyond 355 on reference",
    "swallowed machine progress between operations on reference",
    "reordered text fadd llvm-ir on cpu",
    "narrow text fdiv llvm-ir on cpu",
    "sign text comparison of integers opencl-c on opencl",
    "swallowed copy failed waits beyond 70 on cpu",
    "wrapped timestamps value 2^10 on reference",
)
"""The classes of the twenty, at other hooks and with other sizes. That a cache forgets the
compiler's version is the one that no case can see: see `NOT_GENERATED`."""

SAMPLED = (
    "kernels_control",
    "kernels_grid",
    "kernels_memory",
    "kernels_scratch",
    "order_graphs",
    "order_hazards",
    "order_host_call",
    "order_poison",
    "order_submit",
    "failure_loss",
    "failure_operation",
)
"""Files of cases that have a form for a device with little, none of which takes seconds."""

FEW, BLIND = 12, 24
"""So many are drawn, and tried for `MOST_S`: all of them on a machine that is not busy."""
MOST_S = 4.0
BY_NAME = {fault.name: fault for fault in ALL}


def killed_of(names, folder, most_s):
    """The kills of as many of the names as the time allows, at least one."""
    end_s, found = time.monotonic() + most_s, []
    for name in names:
        found.append(kill(BY_NAME[name], f"{folder}/cache"))
        if time.monotonic() > end_s:
            break
    return found


def check(found, seed=None):
    lived = wrong(found)
    vague = [(k.fault, k.case, k.detail) for k in found if k.case and not k.points]
    assert not lived, f"seed {seed}: these lived"
    assert not vague, f"seed {seed}: vague messages"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_device_of_32_bits_with_one_timeline_is_right(tmp_path):
    cases = [case for case in catalog() if case.module.endswith(SAMPLED)]
    for case in stream("narrow").sample(cases, 12):
        result = judge(case, setting_of("narrow", str(tmp_path), None))
        assert result.outcome in (Outcome.PASS, Outcome.UNSUPPORTED), result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fresh_variants_of_the_planted_faults_are_killed(tmp_path):
    order = stream("fresh faults").sample(FRESH, FEW)
    check(killed_of(order, tmp_path, MOST_S))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_blind_sample_is_killed(tmp_path, record_property):
    """Another one in each run; the seed is in the message of a failure."""
    seed = secrets.randbits(32)
    record_property("seed", seed)
    sys.stdout.write(f"blind sample of seed {seed}\n")
    names = random.Random(seed).sample(sorted(BY_NAME), BLIND)
    check(killed_of(names, tmp_path, MOST_S), seed)


def hangs(hook, after):
    """A device that is lost to a hang at every call of a hook but so many."""

    def plant(device):
        calls = itertools.count()

        def wrong(real, *given):
            if next(calls) >= after:
                text = "no progress for 0.1 s"
                raise DeviceLost(Failure(FailureKind.HANG, Scope.DEVICE, "reference:0", "", text))
            return real(*given)

        around(device, hook, wrong)

    return Generated("found", hook, f"after {after}", "reference", (), (), plant)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "hook", "after"),
    [
        *((f"I.getting-on-is-no-hang-{how}", hook, after)
          for how in ("each", "within") for hook, after in (("bind", 0), ("wait", 2))),
        *((f"I.getting-on-is-no-hang-{how}", "create_timeline", 1) for how in ("each", "within")),
        ("I.real-hang-launch", "wait", 2),
        ("I.waiting-is-no-hang", "wait", 2),
        ("F.slow-host-call-is-no-hang", "wait", 1),
    ],
)  # fmt: skip
def test_a_hang_that_is_none_is_told_whenever_it_is_found(tmp_path, case, hook, after):
    """While a case times the device, when it binds, and where it waits."""
    (case,) = [one for one in catalog() if one.id == case]
    result = judge(case, setting_of("reference", str(tmp_path), hangs(hook, after)))
    assert result.outcome is Outcome.FAIL
    assert "was taken for a hang: no progress for 0.1 s" in result.detail


def reached_and_lost(device):
    """Once there is a timeline for it, a launch that hangs is said to be reached when the device is
    lost to it."""
    lines, binds = itertools.count(), itertools.count()

    def made(real, host_driven):
        next(lines)
        return real(host_driven)

    def bound(real, *given):
        if next(copy.copy(lines)) > 1 and next(binds):
            text = "no progress for 0.1 s"
            raise DeviceLost(Failure(FailureKind.HANG, Scope.DEVICE, "reference:0", "", text))
        return real(*given)

    def waited(real, *given):
        return next(copy.copy(lines)) > 1 or real(*given)

    for hook, change in (("create_timeline", made), ("bind", bound), ("wait", waited)):
        around(device, hook, change)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_hang_that_is_found_when_the_launch_ends_is_one(tmp_path):
    """It says nothing against the device, which the case then closes."""
    (case,) = [one for one in catalog() if one.id == "I.close-ends-a-real-hang"]
    fault = Generated("found", "wait", "late", "reference", (), (), reached_and_lost)
    result = judge(case, setting_of("reference", str(tmp_path), fault))
    assert result.outcome is Outcome.PASS, result.detail


def test_every_fault_was_tried_and_none_lived():
    kills = {k.fault: k for k in read()}
    assert set(kills) == set(BY_NAME), f"run: python -m tests.mutants.generated; {KILLS} is old"
    assert wrong(kills.values()) == []


def test_the_page_has_the_generated_faults():
    assert page() in PAGE.read_text(), "run: python -m tests.mutants.table"
