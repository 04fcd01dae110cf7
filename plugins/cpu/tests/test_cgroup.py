import pytest
from hal_plugin_cpu.cgroup import cpu_limit, memory_limit_nbytes


@pytest.fixture
def groups(tmp_path):
    """Writes files of a made-up control group tree; gives the root and the membership file."""

    def make(membership, **files):
        (tmp_path / "membership").write_text(membership)
        for path, text in files.items():
            target = tmp_path / "root" / path.replace("__", "/").replace("_dot_", ".")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return tmp_path / "root", tmp_path / "membership"

    return make


def test_version_2_takes_the_least_limit_around_the_process(groups):
    where = groups(
        "0::/box/job\n",
        box__memory_dot_max="5000\n",
        box__job__memory_dot_max="max\n",
        box__cpu_dot_max="150000 100000\n",
        box__job__cpu_dot_max="max 100000\n",
    )
    assert memory_limit_nbytes(*where) == 5000
    assert cpu_limit(*where) == 1.5


def test_version_1_has_a_tree_for_each_controller(groups):
    where = groups(
        "4:memory:/a\n2:cpu,cpuacct:/b\n",
        memory__a__memory_dot_limit_in_bytes="7000",
        memory__memory_dot_limit_in_bytes="9223372036854771712",
        cpu__b__cpu_dot_cfs_quota_us="300000",
        cpu__b__cpu_dot_cfs_period_us="100000",
        cpu__cpu_dot_cfs_quota_us="-1",
        cpu__cpu_dot_cfs_period_us="100000",
    )
    assert memory_limit_nbytes(*where) == 7000
    assert cpu_limit(*where) == 3.0


def test_no_control_group_is_no_limit(tmp_path):
    nowhere = (tmp_path / "root", tmp_path / "membership")
    assert memory_limit_nbytes(*nowhere) is None
    assert cpu_limit(*nowhere) is None
