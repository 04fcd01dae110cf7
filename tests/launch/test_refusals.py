"""What `hal run` refuses, in words, before anything runs."""

import socket

import pytest
from click.testing import CliRunner

from hal_tools.cli import main


@pytest.fixture
def refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("raise AssertionError('it ran')")
    (tmp_path / "hosts").write_text("127.0.0.1 slots=2\n")

    def run(*arguments):
        done = CliRunner().invoke(main, ["run", *arguments])
        assert done.exit_code in (1, 2)
        assert not done.stdout
        return done.stderr

    return run


def test_too_few_slots(refused):
    said = refused("-n", "3", "--hosts", "hosts", "--devices", "cpu:0", "script.py")
    assert "3 ranks are asked for, but the hosts have 2 slots: 127.0.0.1: 2" in said


@pytest.mark.slow
def test_too_few_devices(refused):
    said = refused("-n", "1000", "script.py")
    assert "1000 ranks are asked for, but there are " in said
    assert "name those that the ranks are to share, in turn: --devices " in said
    said = refused("-n", "1000", "--spares", "2", "script.py")
    assert "1000 ranks and 2 spares are asked for, but there are " in said


def test_an_elastic_job_that_cannot_be(refused):
    common = ("--devices", "cpu:0")
    said = refused("-n", "2", "--least", "3", *common, "script.py")
    assert "--least is 3; it must be from 1 to the number of ranks, 2" in said
    for size in ((), ("-n", "1")):
        said = refused(*size, "--spares", "2", "--hosts", "hosts", *common, "script.py")
        assert "1 ranks and 2 spares are asked for, but the hosts have 2 slots" in said
    for option, value in (("--keep", "kept"), ("--faults", "kill at step nth 3")):
        assert "give --least, too" in refused(option, value, *common, "script.py")
    said = refused("--least", "1", "--instead", "cpu:0", *common, "script.py")
    assert "give --least and --restarts, too" in said
    elastic = ("--least", "1", "--restarts", "1", *common)
    assert "no plugin for nochip:0" in refused("--instead", "nochip:0", *elastic, "script.py")
    said = refused("--instead", "cpu:0,cpu:1", *elastic, "script.py")
    assert "--instead takes one device, not cpu:0,cpu:1" in said
    said = refused("--least", "1", "--faults", "torn-write at keep", *common, "script.py")
    assert "give --keep, too" in said


def test_what_cannot_be_a_device(refused):
    assert "no plugin for nochip:0 is installed" in refused("--devices", "nochip:0", "script.py")
    assert "'cpu' in 'cpu' is not a device name" in refused("--devices", "cpu", "script.py")


def test_no_script(refused):
    said = refused("--devices", "cpu:0", "part")
    assert "there is no script 'part'; for a module use `hal run -m part`" in said


def test_no_ranks_and_no_time(refused):
    assert "0 is not in the range" in refused("-n", "0", "script.py")
    for wrong, said in (("0", "0"), ("nan", "nan"), ("1e300", "1e+300")):
        why = refused("--deadline", wrong, "--devices", "cpu:0", "script.py")
        assert f"--deadline is '{said}'; it must be a number of seconds above 0" in why


def test_a_rank_of_mpi_starts_no_others(refused):
    given = ("-n", "2"), ("--hosts", "hosts"), ("--restarts", "1"), ("--least", "1")
    for more in given:
        said = refused("--mpi", *more, "script.py")
        assert "leave out -n, --hosts, --log-dir, --address, --restarts, --least" in said


def test_a_port_that_is_taken(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(
            *("--hosts", "hosts", "--devices", "cpu:0"),
            *("--address", f"127.0.0.1:{port}", "script.py"),
        )
    assert f"the store cannot listen at 127.0.0.1:{port}" in said
    assert "choose another port or address" in said


def test_a_folder_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").write_text("")
    said = refused("--log-dir", "file/logs", "--devices", "cpu:0", "script.py")
    assert "the ranks' output cannot be kept in file/logs" in said


def test_what_is_no_elastic_job(refused):
    said = refused("-n", "2", "--least", "3", "--devices", "cpu:0", "script.py")
    assert "--least is 3; it must be from 1 to the number of ranks, 2" in said
    assert "2 devices" not in refused(
        "-n", "2", "--spares", "-1", "--devices", "cpu:0", "script.py"
    )
    said = refused("-n", "1", "--spares", "1", "--hosts", "hosts", "--mpi", "script.py")
    assert "--least, --spares" in said


@pytest.mark.slow
def test_a_script_whose_groups_know_no_epoch(folder):
    folder.write(
        "from stack.comm.group import Group\n"
        "from stack.comm.world import World\n"
        "Group.of(World.from_environment())\n"
    )
    done = folder.run("-n", "2", "--least", "1", "--devices", "cpu:0", "script.py")
    assert done.code == 1
    assert any("what a rank holds has to be declared" in line for line in done.err)
