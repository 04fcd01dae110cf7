"""Groups between processes when something goes wrong: every survivor learns who and what."""

import itertools
import os
import re
import select
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import FailureKind, Scope
from hal.core.values import Collective, CollectiveKind, GroupSpec

SUM = {"kind": "all-reduce", "dtype": "f32", "count": 4, "reduce": "sum", "root": 0, "counts": ()}
ONES = np.ones(4, np.float32).tobytes().hex()
numbers = itertools.count()


@pytest.fixture(scope="module")
def processes(start_process):
    """Three processes for those tests that leave them alive."""
    return [start_process() for _ in range(3)]


def join(processes, name, timeout_s=30.0):
    """Gives the name on return; it is used in all processes. A time that is short for a busy
    machine is tried again."""
    size = len(processes)
    for _ in range(50):
        key = f"{name} {os.getpid()} {next(numbers)}"
        for rank, process in enumerate(processes):
            process.ask("join", name=key, key=key, rank=rank, size=size, timeout_s=timeout_s)
        answers = [process.answer() for process in processes]
        if answers == [{"value": None}] * size:
            return key
        assert timeout_s < 1, answers
    raise AssertionError(answers)


def submit(process, name, **changes):
    call = SUM | changes
    process.ask("submit", name=name, point="p", src=ONES, dst_nbytes=16, **call)
    assert process.answer() == {"value": None}


def do(process, what, **arguments):
    process.ask(what, **arguments)
    return process.answer()


def failure(process):
    """The failure of the process's last call."""
    return do(process, "result", point="p")["failure"]


def sums(processes, name):
    """All members add ones; gives what each one gets."""
    for process in processes:
        submit(process, name)
    got = [do(process, "result", point="p")["value"] for process in processes]
    return [np.frombuffer(bytes.fromhex(text), np.float32).tolist() for text in got]


def check_lost(failure, rank, *words, device="cpu:0"):
    assert failure["kind"] == FailureKind.PEER_LOST.value
    assert failure["scope"] == Scope.PEER.value
    for word in (f"rank {rank} ({device})", *words):
        assert word in failure["message"]


def test_a_mismatch_fails_on_every_member_and_names_both_calls(processes):
    name = join(processes, "mismatch")
    for rank, process in enumerate(processes):
        submit(process, name, root=rank % 2)
    for process in processes:
        cause = failure(process)
        assert cause["kind"] == FailureKind.ABORTED.value
        assert cause["scope"] == Scope.PEER.value
        other = "(sum, root 0) on rank "
        for said in ("call 0 is all-reduce of 4 f32 ", "(sum, root 1) on rank 1", other):
            assert said in cause["message"]
        assert do(process, "error", name=name)["value"] == cause


def test_a_member_that_does_not_call_is_named_at_the_deadline(processes):
    name = join(processes, "missing", timeout_s=0.2)
    for process in processes[:2]:
        submit(process, name)
    for process in processes[:2]:
        cause = failure(process)
        assert cause["kind"] == FailureKind.PEER_LOST.value
        assert "2] did not come in 0.2 s" in cause["message"]
    assert do(processes[2], "error", name=name) == {"value": None}


def test_who_does_not_join_is_named_and_may_come_later(processes):
    key = f"late {os.getpid()}"
    arguments = {"name": key, "key": key, "size": 3}
    for rank in (1, 2):
        processes[rank].ask("join", rank=rank, timeout_s=0.3, **arguments)
    for rank in (1, 2):
        answer = processes[rank].answer()
        assert answer["error"] == "DeadlineExceeded"
        assert re.search(r"ranks \[0(, .)?\] did not join in 0.3 s", answer["text"])
    for rank, process in enumerate(processes):
        process.ask("join", rank=rank, timeout_s=30, **arguments)
    assert [process.answer() for process in processes] == [{"value": None}] * 3
    assert sums(processes, key) == [[3.0] * 4] * 3


def test_members_that_disagree_are_refused(processes):
    key = f"odd {os.getpid()}"
    for rank, process in enumerate(processes[:2]):
        peers = ["cpu:0", "cpu:0", "cpu:1"][: 2 + rank]
        process.ask("join", name=key, key=key, rank=rank, size=2, timeout_s=30, peers=peers)
    for process in processes[:2]:
        answer = process.answer()
        assert answer["error"] == "InvalidCall"
        assert "cpu:1" in answer["text"]


def test_a_rank_that_is_taken_is_refused(processes):
    key = f"twice {os.getpid()}"
    arguments = {"name": key, "key": key, "size": 2, "timeout_s": 30}
    for process in processes[:2]:
        process.ask("join", rank=0, **arguments)
    outputs = [process.process.stdout for process in processes]
    refused = outputs.index(select.select(outputs, [], [], 60)[0][0])
    answer = processes[refused].answer()
    assert answer["error"] == "InvalidCall"
    assert "rank 0 has joined already" in answer["text"]
    processes[2].ask("join", rank=1, **arguments)
    for rank in (1 - refused, 2):
        assert processes[rank].answer() == {"value": None}


def test_abort_wakes_this_member_alone_and_shrink_goes_on(processes):
    name = join(processes, "abort")
    submit(processes[0], name)
    assert do(processes[0], "abort", name=name, message="enough") == {"value": None}
    assert failure(processes[0])["message"] == "enough"
    do(processes[0], "abort", name=name, message="again")
    assert do(processes[0], "error", name=name)["value"]["message"] == "enough"
    assert do(processes[1], "error", name=name) == {"value": None}
    for rank in (2, 0):
        processes[rank].ask("shrink", name=name, new="fewer", ranks=[2, 0])
    assert [processes[rank].answer()["value"] for rank in (2, 0)] == [[0, 2], [1, 2]]
    assert sums([processes[0], processes[2]], "fewer") == [[2.0] * 4] * 2


def test_a_lost_device_and_one_that_left_are_named_at_once(processes, start_process):
    lost = start_process()
    name = join([processes[0], processes[1], lost], "lost", timeout_s=300)
    submit(processes[0], name)
    assert do(lost, "lose") == {"value": None}
    check_lost(failure(processes[0]), 2, "has lost its device")
    assert do(processes[1], "leave", name=name) == {"value": None}
    name = join(processes[:2], "left", timeout_s=300)
    assert do(processes[1], "leave", name=name) == {"value": None}
    assert do(processes[0], "error", name=name) == {"value": None}
    submit(processes[0], name)
    check_lost(failure(processes[0]), 1, "has left the group")


def test_members_of_one_process_and_of_another_meet(processes, pair):
    key = f"mixed {os.getpid()}"
    peers = ("cpu:0", "cpu:1", "cpu:0")
    processes[0].ask("join", name=key, key=key, rank=2, size=3, timeout_s=30, peers=peers)
    with ThreadPoolExecutor(2) as pool:
        specs = [GroupSpec(key, rank, peers, 30.0) for rank in (0, 1)]
        groups = list(pool.map(lambda rig, spec: rig.device.create_group(spec), pair, specs))
    assert processes[0].answer() == {"value": None}
    submit(processes[0], key)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    cells = [rig.upload(np.ones(4, np.float32)) for rig in pair]
    for rig, group, cell in zip(pair, groups, cells, strict=True):
        rig.device.collective(group, call, cell.region(), cell.region(), rig.timeline, ())
    for rig, cell in zip(pair, cells, strict=True):
        assert rig.download(cell, np.float32).tolist() == [3.0] * 4
    submit(processes[0], key)
    pair[1].device.close()
    check_lost(failure(processes[0]), 1, "has left the group", device="cpu:1")


def test_a_child_of_a_fork_does_not_hide_the_end_of_its_parent(processes, start_process):
    parent = start_process()
    name = join([processes[0], parent], "forked", timeout_s=300)
    child = do(parent, "fork")["value"]
    submit(processes[0], name)
    parent.end()
    check_lost(failure(processes[0]), 1, "its process ended")
    os.kill(child, signal.SIGKILL)


def test_a_killed_process_is_named_and_the_others_shrink(processes, start_process):
    crowd = [*processes[:2], start_process()]
    name = join(crowd, "killed", timeout_s=300)
    assert sums(crowd, name) == [[3.0] * 4] * 3
    submit(crowd[0], name)
    crowd[2].end()
    check_lost(failure(crowd[0]), 2, "its process ended")
    submit(crowd[1], name)
    check_lost(failure(crowd[1]), 2, "its process ended")
    for process in crowd[:2]:
        process.ask("shrink", name=name, new="fewer", ranks=[0, 1])
    assert [process.answer()["value"] for process in crowd[:2]] == [[0, 2], [1, 2]]
    assert sums(crowd[:2], "fewer") == [[2.0] * 4] * 2


def test_a_process_killed_amid_a_long_call_is_named(processes, start_process):
    crowd = [processes[0], start_process()]
    name = join(crowd, "long", timeout_s=300)
    long = SUM | {"count": 4 << 20, "src": 16 << 20, "dst_nbytes": 16 << 20}
    for process in (*crowd, crowd[0]):
        process.ask("submit", name=name, point="p", **long)
    crowd[1].end()
    assert [crowd[0].answer(), crowd[0].answer()] == [{"value": None}] * 2
    check_lost(failure(crowd[0]), 1, "its process ended")


def test_a_stopped_process_is_named_at_the_deadline(processes, start_process):
    crowd = [processes[0], start_process()]
    name = join(crowd, "stopped", timeout_s=0.3)
    os.kill(crowd[1].process.pid, signal.SIGSTOP)
    submit(crowd[0], name)
    assert "ranks [1] did not come" in failure(crowd[0])["message"]


@pytest.mark.slow
def test_a_hundred_groups_leave_nothing_open(processes):
    pids = [process.process.pid for process in processes]

    def count():
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

    def come_and_go():
        name = join(processes, "many")
        for process in processes:
            process.ask("leave", name=name)
        assert [process.answer() for process in processes] == [{"value": None}] * 3

    come_and_go()  # the first one opens what stays
    before = count()
    for _ in range(100):
        come_and_go()
    until_s = time.monotonic() + 10
    while count() != before and time.monotonic() < until_s:
        time.sleep(0.02)  # a connection ends when both sides have looked
    assert count() == before
