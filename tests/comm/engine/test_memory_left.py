"""How much memory a process may take: by the machine, and by every control group around it."""

import pytest

from stack.comm.engine.library import lib

GIB = 1 << 30
KEPT = 31 / 32
"""What is not left for everybody else."""


@pytest.fixture
def system(tmp_path):
    """Folders that stand for /proc and /sys/fs/cgroup, with so many bytes in their files."""

    def make(files, membership="0::/job/rank\n", total=64 * GIB, available=48 * GIB):
        proc, groups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        groups.mkdir()
        meminfo = f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB\n"
        (proc / "meminfo").write_text(meminfo)
        (proc / "self" / "cgroup").write_text(membership)
        for name, text in files.items():
            path = groups / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return lib.he_memory_left_in(str(proc).encode(), str(groups).encode())

    return make


def left(limit, used):
    return int(limit * KEPT) - used


def test_without_groups_it_is_what_the_machine_has(system):
    assert system({}) == left(64 * GIB, 16 * GIB)


def test_a_machine_that_is_full_has_nothing(system):
    assert system({}, available=1 * GIB) == 0


def test_the_narrowest_group_around_counts_and_gives_back_what_it_only_keeps(system):
    found = system(
        {
            "job/rank/memory.max": "max",
            "job/rank/memory.current": 1 * GIB,
            "job/memory.max": 8 * GIB,
            "job/memory.current": 5 * GIB,
            "job/memory.stat": f"anon 7\nfile 9\ninactive_file {2 * GIB}",
            "memory.max": 32 * GIB,
            "memory.current": 1 * GIB,
        }
    )
    assert found == left(8 * GIB, 3 * GIB)


def test_groups_of_the_first_version_count_too(system):
    found = system(
        {
            "memory/job/memory.limit_in_bytes": 4 * GIB,
            "memory/job/memory.usage_in_bytes": 3 * GIB,
            "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {1 * GIB}",
        },
        membership="5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n",
    )
    assert found == left(4 * GIB, 2 * GIB)


def test_of_this_machine_it_is_less_than_all(system):
    assert 0 < lib.he_memory_left() < 1 << 50
